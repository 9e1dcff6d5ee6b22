package forwarder

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/testing/modeldb"
)

const (
	leaseOfBubbles = 10 * time.Second // the default
	queryTimeout   = 10 * time.Second // the default
	// bubbleLiveness is the time within which everything must be published after the last fault: a lease expires, a
	// statement times out, and the longest backoff ends.
	bubbleLiveness = 2*leaseOfBubbles + 2*queryTimeout + 30*time.Second
	// bubbleEvery selects every nth fault, and bubbleEveryShort fewer ones for make test: the race detector makes them ten
	// times as slow.
	bubbleEvery, bubbleEveryShort = 100, 500
)

// TestEachOperationWithEachFault runs complete Forwarders, Subscribers and Groups in a bubble of testing/synctest,
// against a model of the server, through each scenario: once without a fault, and then with each kind of fault in each
// database operation. Every time, all messages are published in the order of their keys and settled in bounded time,
// and Run returns. Without OUTBOX_LONG only some faults are tried.
func TestEachOperationWithEachFault(t *testing.T) {
	every := bubbleEvery
	switch {
	case os.Getenv("OUTBOX_LONG") != "":
		every = 1
	case testing.Short():
		every = bubbleEveryShort
	}
	n, tried, missed, slowest := 0, 0, 0, time.Duration(0)
	for _, s := range bubbleScenarios {
		t.Run(s.name, func(t *testing.T) {
			calm := runBubble(t, s, fault{})
			for _, f := range calm.faults() {
				if n++; n%every != 0 {
					continue
				}
				b := runBubble(t, s, f)
				if tried++; !b.hit {
					missed++
				}
				slowest = max(slowest, b.took)
				if t.Failed() {
					t.Fatalf("with a fault: OUTBOX_BUBBLE=%q", s.name+"/"+f.String())
				}
			}
		})
	}
	if missed > tried/2 {
		t.Errorf("%d of %d faults did not occur", missed, tried)
	}
	t.Logf("%d faults, one in %d was tried, %d of these did not occur; the slowest run took %s", n, every,
		missed, slowest)
}

// TestBubble runs one scenario with one fault: OUTBOX_BUBBLE=scenario/operation/nth/forwarder/kind.
func TestBubble(t *testing.T) {
	parts := strings.Split(os.Getenv("OUTBOX_BUBBLE"), "/")
	if len(parts) != 5 {
		t.Skip("OUTBOX_BUBBLE is not set")
	}
	f := fault{operation: parts[1]}
	f.nth, _ = strconv.Atoi(parts[2])
	f.forwarder, _ = strconv.Atoi(parts[3])
	for k := range faultKinds {
		if k.String() == parts[4] {
			f.kind = k
		}
	}
	for _, s := range bubbleScenarios {
		if s.name == parts[0] {
			b := runBubble(t, s, f)
			t.Logf("the fault occurred: %v; everything was published after %s", b.hit, b.took)
		}
	}
}

// bubble is one run.
type bubble struct {
	t          *testing.T
	ctx        context.Context
	fault      fault
	began      time.Time
	topics     int
	server     *bubbleServer   // the first one
	servers    []*bubbleServer // all
	broker     *bubbleBroker
	forwarders []*bubbleForwarder

	hit  bool
	took time.Duration // from the last write until everything was published
}

func runBubble(t *testing.T, s bubbleScenario, f fault) (b *bubble) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		b = &bubble{t: t, ctx: ctx, fault: f, began: time.Now(), topics: s.runs.topics, broker: &bubbleBroker{}}
		for range s.runs.databases {
			b.servers = append(b.servers, newBubbleServer())
		}
		b.server = b.servers[0]
		if s.writes == 0 { // everything is written before the start
			b.write(0)
		}
		for i := range s.runs.processes {
			s.runs.start(b, i, s.atOnce)
		}
		var writers sync.WaitGroup
		if s.writes > 0 {
			writers.Go(func() { b.write(s.writes) })
		}
		s.happens(b)
		writers.Wait()
		last := time.Now()
		for b.pending() > 0 && time.Since(last) < bubbleLiveness {
			time.Sleep(100 * time.Millisecond)
		}
		b.took = time.Since(last)
		if n := b.pending(); n > 0 {
			t.Errorf("%d messages are still pending after %s", n, b.took)
		}
		b.rests()
		for _, f := range b.forwarders {
			f.stop()
			f.pool.stragglers.Wait()
			_, _, hit := f.pool.operations()
			b.hit = b.hit || hit
		}
		b.broker.check(t, s.calm && f.kind == 0, b.servers)
	})
	return b
}

// pending returns the number of unpublished messages.
func (b *bubble) pending() (n int) {
	for _, s := range b.servers {
		n += s.pending()
	}
	return n
}

const bubbleKeys, bubbleMessages = 6, 8 // per database

// write writes the messages of each key one after another, in transactions of different lengths.
func (b *bubble) write(during time.Duration) {
	var all sync.WaitGroup
	for i, server := range b.servers {
		for k := range bubbleKeys {
			all.Go(func() {
				key := fmt.Sprint("key-", i*bubbleKeys+k)
				for n := 1; n <= bubbleMessages; n += 2 {
					server.transaction(func(tx *modeldb.Tx) {
						insertMessage(tx, fmt.Sprint("topic-", k%b.topics), key, n)
						if k%3 == 0 {
							tx.Savepoint()
							tx.Write()
						}
						insertMessage(tx, fmt.Sprint("topic-", (k+1)%b.topics), key, n+1)
					}, func() { time.Sleep(during * time.Duration(k+1) / (2 * bubbleKeys * bubbleMessages / 2)) })
					time.Sleep(during / bubbleMessages)
				}
			})
		}
	}
	all.Wait()
}

// rests checks that idle forwarders do little.
func (b *bubble) rests() {
	const rest = 10 * time.Second
	var before []int
	for _, f := range b.forwarders {
		_, total, _ := f.pool.operations()
		before = append(before, total)
	}
	time.Sleep(rest)
	for i, f := range b.forwarders {
		if _, total, _ := f.pool.operations(); total-before[i] > 100 {
			b.t.Errorf("idle forwarder %d did %d operations in %s", i, total-before[i], rest)
		}
	}
}

// faults lists all faults that are possible in a run like this one.
func (b *bubble) faults() (all []fault) {
	for _, f := range b.forwarders {
		asked, _, _ := f.pool.operations()
		for _, name := range slices.Sorted(maps.Keys(asked)) {
			for nth := 1; nth <= asked[name]; nth++ {
				for kind := refused; kind < faultKinds; kind++ {
					all = append(all, fault{f.pool.number, name, nth, kind})
				}
			}
		}
	}
	return all
}

// lockFirst locks the first pending message while fn runs.
func (s *bubbleServer) lockFirst(fn func()) {
	s.transaction(func(tx *modeldb.Tx) {
		for _, r := range s.db.Rows() {
			if !r.Published {
				tx.Lock(r.ID)
				return
			}
		}
	}, fn)
}
