package middleware

import (
	"crypto/sha256"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// maxRecalled bounds the memory of a recall. A forgotten message is counted from zero again.
const maxRecalled = 1000

// recall is this process's memory of messages that have no row in a table: they failed before the inbox looked them up,
// or their handler requested a later retry. The zero value is ready for use, and it is safe for concurrent use.
type recall struct {
	some  atomic.Bool // known is not empty; read without mu
	mu    sync.Mutex
	known map[recallKey]*recalled
}

type recallKey [sha256.Size]byte

// recalled is guarded by the mu of its recall.
type recalled struct {
	failures    int       // of all kinds
	charged     int       // failures that count against the message
	first, last time.Time // first is the time of the first charged failure
	due         time.Time // do not handle the message before
	err         error     // the reason to wait
}

// keyOf returns the same key for each delivery of a message to a handler. It ignores metadata, which brokers may
// change, and works without a UUID.
func keyOf(handler string, msg *message.Message) recallKey {
	h := sha256.New()
	fmt.Fprintf(h, "%d:%s%d:%s", len(handler), handler, len(msg.UUID), msg.UUID)
	h.Write(msg.Payload)
	return recallKey(h.Sum(nil))
}

// get returns the entry of a message, or a new one, which replaces the least recently used if there are too many. mu
// must be held.
func (r *recall) get(key recallKey, now time.Time) *recalled {
	known := r.known[key]
	if known == nil {
		if r.known == nil {
			r.known = map[recallKey]*recalled{}
		}
		if len(r.known) >= maxRecalled {
			var oldest recallKey
			for k, e := range r.known {
				if o := r.known[oldest]; o == nil || e.last.Before(o.last) {
					oldest = k
				}
			}
			delete(r.known, oldest)
		}
		known = &recalled{}
		r.known[key] = known
		r.some.Store(true)
	}
	known.last = now
	return known
}

// failed counts a failure and returns the total.
func (r *recall) failed(key recallKey) (failures int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.get(key, time.Now())
	known.failures++
	return known.failures
}

// charge counts the last failure against the message. It returns how many count, and since when.
func (r *recall) charge(key recallKey) (charged int, since time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	known := r.get(key, now)
	if known.charged++; known.charged == 1 {
		known.first = now
	}
	return known.charged, now.Sub(known.first)
}

// postpone records that a message must not be handled before the wait is over, and why.
func (r *recall) postpone(key recallKey, wait time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	known := r.get(key, now)
	known.due, known.err = now.Add(wait), err
}

// early returns how long to wait until a message may be handled, and why.
func (r *recall) early(key recallKey) (time.Duration, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.known[key]; known != nil {
		return time.Until(known.due), known.err
	}
	return 0, nil
}

// forget removes a message that no longer fails.
func (r *recall) forget(key recallKey) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, key)
	r.some.Store(len(r.known) > 0)
}
