package forwarder

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// bubbleBroker records the messages that arrive.
type bubbleBroker struct {
	mu      sync.Mutex
	fails   func(key, uuid string) error // nil = every publish works
	arrived []string                     // uuids
	foreign []string                     // sent by a forwarder that does not own their lane
}

func (k *bubbleBroker) set(fails func(key, uuid string) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fails = fails
}

func (k *bubbleBroker) Close() error { return nil }

// bubblePublisher is the publisher of one forwarder, or the handler of a Subscriber's messages.
type bubblePublisher struct {
	*bubbleBroker
	pool *bubblePool
}

func (k *bubblePublisher) Publish(_ string, messages ...*message.Message) error {
	for _, msg := range messages {
		key, _, _ := strings.Cut(msg.UUID, "/")
		owned := k.pool.owns(laneOf(key))
		k.mu.Lock()
		if !owned {
			k.foreign = append(k.foreign, msg.UUID)
		}
		fails := k.fails
		k.mu.Unlock()
		time.Sleep(roundTrip)
		if fails != nil {
			if err := fails(key, msg.UUID); err != nil {
				return err
			}
		}
		k.mu.Lock()
		k.arrived = append(k.arrived, msg.UUID)
		k.mu.Unlock()
	}
	return nil
}

// check compares the messages that arrived with the committed ones.
func (k *bubbleBroker) check(t *testing.T, once bool, servers []*bubbleServer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, uuid := range k.foreign {
		t.Errorf("%s was sent by a forwarder that does not own its lane", uuid)
	}
	count, last := map[string]int{}, map[string]int{}
	for _, uuid := range k.arrived {
		key, number, _ := strings.Cut(uuid, "/")
		if count[uuid]++; count[uuid] > 1 {
			continue
		}
		n, _ := strconv.Atoi(number)
		if n < last[key] {
			t.Errorf("%s arrived after %s/%d", uuid, key, last[key])
		}
		last[key] = n
	}
	for _, s := range servers {
		for _, r := range s.db.Rows() {
			switch n := count[r.UUID]; {
			case n == 0:
				t.Errorf("%s is lost", r.UUID)
			case n > 1 && once:
				t.Errorf("%s arrived %d times", r.UUID, n)
			}
			delete(count, r.UUID)
		}
	}
	for uuid := range count {
		t.Errorf("%s arrived but was never committed", uuid)
	}
}
