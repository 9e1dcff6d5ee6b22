//go:build unix

package integration_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"
)

// Copy is a message that a forwarder publishes.
type Copy struct {
	UUID, Topic, Key string
	Payload          []byte
}

// broker records what all forwarders publish, in one order, and outlives them. It checks the order of
// each key as messages come: the first copies of a key's events must come in the order of their numbers,
// so a number that is left out was lost or overtaken.
type broker struct {
	mu      sync.Mutex
	arrived map[string]time.Time // first copies, by UUID
	uuids   map[event]string
	letters map[string]bool
	last    map[string]int64    // number of the last event, by key
	history map[string][]string // of each key, for whoever has to find out what went wrong
	copies  int
	wrong   []string

	// answer decides what becomes of a message; it may block. The message arrives if it calls arrive,
	// whatever it returns.
	answer func(w *worker, c Copy, arrive func()) error
}

func newBroker() *broker {
	return &broker{
		arrived: map[string]time.Time{}, uuids: map[event]string{}, letters: map[string]bool{}, last: map[string]int64{},
		history: map[string][]string{},
		answer:  func(_ *worker, _ Copy, arrive func()) error { arrive(); return nil },
	}
}

// flaky is an answer of a broker that fails now and then, before or after it has taken the message.
func flaky(_ *worker, _ Copy, arrive func()) error {
	switch n := rand.IntN(100); {
	case n < 3:
		return fmt.Errorf("rejected")
	case n < 5:
		return fmt.Errorf("unavailable")
	case n < 8:
		arrive()
		return fmt.Errorf("rejected, but it has arrived")
	}
	arrive()
	return nil
}

func (b *broker) publish(w *worker, c Copy) error {
	b.mu.Lock()
	answer := b.answer
	b.mu.Unlock()
	return answer(w, c, func() {
		b.arrive(w, c)
		w.at("landed", 1) // what it answers will not arrive if the worker is to end here
	})
}

func (b *broker) arrive(w *worker, c Copy) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, again := b.arrived[c.UUID]; again {
		b.copies++
	} else {
		b.arrived[c.UUID] = time.Now()
	}
	if c.Topic == letterTopic {
		b.letters[c.UUID] = true
		return
	}
	var e event
	if err := json.Unmarshal(c.Payload, &e); err != nil || e.Key != c.Key {
		b.fail("message %s has payload %q and key %q", c.UUID, c.Payload, c.Key)
		return
	}
	b.history[e.Key] = append(b.history[e.Key], fmt.Sprintf("%s %s: %d", time.Now().Format("05.000"), w.cfg.Name, e.N))
	if first, known := b.uuids[e]; known && first != c.UUID {
		b.fail("event %v was published as %s and as %s", e, first, c.UUID)
	}
	b.uuids[e] = c.UUID
	switch last := b.last[e.Key]; {
	case e.N < 1:
		b.fail("event %v of an undone savepoint was published", e)
	case e.N > last+1:
		b.fail("key %s: event %d came after %d: %v", e.Key, e.N, last, b.history[e.Key])
		b.last[e.Key] = e.N
	case e.N == last+1:
		b.last[e.Key] = e.N
	}
}

// fail is called with mu held.
func (b *broker) fail(format string, args ...any) {
	b.wrong = append(b.wrong, fmt.Sprintf(format, args...))
}

func (b *broker) answers(answer func(*worker, Copy, func()) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = answer
}

// duplicates returns how many messages arrived that had arrived before.
func (b *broker) duplicates() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.copies
}

// arrivals returns when each message arrived first, by UUID.
func (b *broker) arrivals() map[string]time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.arrived)
}
