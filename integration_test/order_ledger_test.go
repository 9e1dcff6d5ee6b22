package integration_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
)

// ghost is the payload of messages that must never be published, because their transaction or savepoint was rolled
// back.
const ghost = "ghost"

// errRefused blames the message.
var errRefused error = &forwarder.PublishError{Verdict: forwarder.Retry, Err: errors.New("refused")}

// ledger records commits of each key and, as a publisher, arrivals. Payloads are the positions of messages in their
// key's sequence, starting at 1. It delays calls, refuses some, and occasionally accepts a message but returns an
// error.
type ledger struct {
	trouble bool

	mu        sync.Mutex
	committed map[string]int
	at        map[string]time.Time // time of a key's last commit
	arrived   map[string]int       // last position up to which all messages have arrived
	early     map[string]map[int]bool
	wrong     []string
	calls     int
	repeated  int
	violated  chan struct{} // closed at the first violation
}

var _ message.Publisher = (*ledger)(nil)

func newLedger(trouble bool) *ledger {
	return &ledger{trouble: trouble, committed: map[string]int{}, at: map[string]time.Time{}, arrived: map[string]int{},
		early: map[string]map[int]bool{}, violated: make(chan struct{})}
}

// commit records that all messages of a key up to n are committed.
func (l *ledger) commit(key string, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.committed[key], l.at[key] = n, time.Now()
}

func (l *ledger) Publish(topic string, msgs ...*message.Message) error {
	roll := rand.IntN(1000)
	if l.trouble {
		if roll < 300 {
			time.Sleep(rand.N(2 * time.Millisecond))
		}
		if roll < 10 {
			return errRefused
		}
	}
	for _, msg := range msgs {
		l.arrive(msg)
	}
	if l.trouble && roll >= 995 {
		return errRefused
	}
	return nil
}

func (l *ledger) arrive(msg *message.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	key := msg.Metadata[outbox.MetadataKey]
	n, err := strconv.Atoi(string(msg.Payload))
	switch {
	case err != nil:
		l.fault("%s of key %s was published", msg.Payload, key)
	case n <= l.arrived[key] || l.early[key][n]:
		l.repeated++
	case n == l.arrived[key]+1:
		l.arrived[key]++
		for l.early[key][l.arrived[key]+1] {
			l.arrived[key]++
			delete(l.early[key], l.arrived[key])
		}
	default:
		l.fault("key %s: %d arrived before %d", key, n, l.arrived[key]+1)
		if l.early[key] == nil {
			l.early[key] = map[int]bool{}
		}
		l.early[key][n] = true
	}
}

func (l *ledger) fault(format string, args ...any) {
	if len(l.wrong) == 0 {
		close(l.violated)
	}
	if len(l.wrong) < 20 {
		l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
	}
}

func (l *ledger) Close() error { return nil }

// missing lists committed messages that have not arrived.
func (l *ledger) missing() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []string
	for key, n := range l.committed {
		for i := l.arrived[key] + 1; i <= n; i++ {
			if !l.early[key][i] {
				list = append(list, fmt.Sprintf("%s:%d (last commit %s ago)", key, i,
					time.Since(l.at[key]).Round(time.Millisecond)))
			}
		}
	}
	slices.Sort(list)
	return list
}

// allArrive waits until all committed messages have arrived.
func (l *ledger) allArrive(t testing.TB) {
	t.Helper()
	begun := time.Now()
	missing := l.missing()
	for len(missing) > 0 && time.Since(begun) < patience {
		time.Sleep(10 * time.Millisecond)
		missing = l.missing()
	}
	if len(missing) > 0 {
		t.Errorf("%d messages never arrived, such as %v", len(missing), missing[:min(10, len(missing))])
	}
}

func (l *ledger) faults() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.wrong)
}

func (l *ledger) total() (committed, calls, repeated int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range l.committed {
		committed += n
	}
	return committed, l.calls, l.repeated
}

// orderConfig retries soon and makes no message dead.
func orderConfig() forwarder.Config {
	return forwarder.Config{
		Concurrency: 16, MaxAttempts: -1, LeaseTTL: 2 * time.Second, PollInterval: 50 * time.Millisecond,
		Backoff:       outbox.Backoff{Initial: 5 * time.Millisecond, Max: 50 * time.Millisecond},
		OutageBackoff: outbox.Backoff{Initial: 5 * time.Millisecond, Max: 50 * time.Millisecond},
		QueryTimeout:  20 * time.Second, CloseTimeout: 10 * time.Second,
	}
}
