package core

import (
	"maps"
	"slices"
	"sync"
)

// maxConsumers limits the number of recorded consumers: names generated per message would fill the memory.
const maxConsumers = 1000

// consumers records the inbox consumers that handled messages through a handle, with their topics. A forwarder writes
// them to its row, so that two services with the same name can be detected.
type consumers struct {
	known sync.Map // set of consumption; each message reads it

	mu sync.Mutex
	n  int
}

type consumption struct{ consumer, topic string }

// Consumes records that a consumer of the inbox handles messages of a topic.
func (db *DB) Consumes(consumer, topic string) {
	c := consumption{consumer, topic}
	if _, ok := db.consumers.known.Load(c); ok {
		return
	}
	db.consumers.mu.Lock()
	defer db.consumers.mu.Unlock()
	if db.consumers.n < maxConsumers {
		if _, known := db.consumers.known.LoadOrStore(c, nil); !known {
			db.consumers.n++
		}
	}
}

// Consumers returns the recorded consumers, each with its topics.
func (db *DB) Consumers() map[string][]string {
	sets := map[string]map[string]bool{}
	for c := range db.consumers.known.Range {
		c := c.(consumption)
		if sets[c.consumer] == nil {
			sets[c.consumer] = map[string]bool{}
		}
		sets[c.consumer][c.topic] = true
	}
	all := make(map[string][]string, len(sets))
	for consumer, topics := range sets {
		all[consumer] = slices.Sorted(maps.Keys(topics))
	}
	return all
}
