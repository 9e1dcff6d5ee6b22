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

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/modeldb"
)

const (
	leaseOfBubbles = 10 * time.Second // the default
	queryTimeout   = 10 * time.Second // the default
	// bubbleLiveness is how long messages may take after the last trouble: a lease runs out, a statement times out, and
	// the longest pause of what retries is over.
	bubbleLiveness = 2*leaseOfBubbles + 2*queryTimeout + 30*time.Second
	// bubbleEvery is which of the faults make test tries: the race detector makes them ten times as slow.
	bubbleEvery = 100
)

// TestEachOperationWithEachFault runs complete forwarders in a bubble of testing/synctest, against a model of the
// server, through each scenario: once as it is, and then with each operation on the database going wrong in each way.
// Whatever goes wrong, all messages are published, in the order of each key, and settled, in bounded time, and Run
// returns. OUTBOX_LONG tries all, else some of them are tried.
func TestEachOperationWithEachFault(t *testing.T) {
	every := bubbleEvery
	if os.Getenv("OUTBOX_LONG") != "" {
		every = 1
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
		t.Errorf("%d of %d faults did not come to pass", missed, tried)
	}
	t.Logf("%d faults, of which every %d. was tried, and %d of these did not come to pass; the slowest took %s", n, every,
		missed, slowest)
}

// TestBubble runs one scenario with one fault: OUTBOX_BUBBLE=scenario/operation/nth/forwarder/kind.
func TestBubble(t *testing.T) {
	parts := strings.Split(os.Getenv("OUTBOX_BUBBLE"), "/")
	if len(parts) != 5 {
		t.Skip("OUTBOX_BUBBLE names no fault")
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
			t.Logf("it came to pass: %v; all was published after %s", b.hit, b.took)
		}
	}
}

// bubble is one run.
type bubble struct {
	t          *testing.T
	ctx        context.Context
	fault      fault
	began      time.Time
	server     *bubbleServer
	broker     *bubbleBroker
	forwarders []*bubbleForwarder

	hit  bool
	took time.Duration // from the last write until all was published
}

// bubbleForwarder is a forwarder that runs.
type bubbleForwarder struct {
	first  *Forwarder
	runs   context.Context // over when the first could not start
	failed context.CancelFunc
	pool   *bubblePool
	stop   func() // and wait for it
}

// drain is Drain of the first one, beside its Run.
func (f *bubbleForwarder) drain() error { return f.first.engine.drain(f.runs, true) }

func runBubble(t *testing.T, s bubbleScenario, f fault) (b *bubble) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		b = &bubble{
			t: t, ctx: ctx, fault: f, began: time.Now(), server: newBubbleServer(), broker: &bubbleBroker{},
		}
		if s.writes == 0 { // all is there before
			b.write(0)
		}
		for i := range s.forwarders {
			b.start(i, s.atOnce)
		}
		var writers sync.WaitGroup
		if s.writes > 0 {
			writers.Go(func() { b.write(s.writes) })
		}
		s.happens(b)
		writers.Wait()
		last := time.Now()
		for b.server.pending() > 0 && time.Since(last) < bubbleLiveness {
			time.Sleep(100 * time.Millisecond)
		}
		b.took = time.Since(last)
		if n := b.server.pending(); n > 0 {
			t.Errorf("%d messages are still pending after %s", n, b.took)
		}
		b.rests()
		for _, f := range b.forwarders {
			f.stop()
			f.pool.stragglers.Wait()
			_, _, hit := f.pool.operations()
			b.hit = b.hit || hit
		}
		b.broker.check(t, s.calm && f.kind == 0, b.server)
	})
	return b
}

// start runs a forwarder, with an error of its start as a reason to start it again, as a supervisor does.
func (b *bubble) start(number, atOnce int) {
	pool := newBubblePool(b.t, b.server, number, b.fault)
	db, err := core.NewDB(pool, core.Config{DisableNotify: true}, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.ctx)
	bf, over := &bubbleForwarder{pool: pool}, make(chan struct{})
	bf.runs, bf.failed = context.WithCancel(b.ctx)
	made := func() *Forwarder {
		pub := &bubblePublisher{bubbleBroker: b.broker, server: b.server}
		f, err := New((*outbox.DB)(db), pub, Config{Name: fmt.Sprint(number), Concurrency: atOnce}, nil)
		if err != nil {
			panic(err)
		}
		pub.owner = f.engine.owner
		return f
	}
	bf.first = made()
	go func() {
		defer close(over)
		for f := bf.first; ; f = made() {
			err := runUnchecked(ctx, f)
			if err == nil || ctx.Err() != nil {
				return
			}
			if b.fault.kind == 0 {
				b.t.Error("Run:", err)
			}
			bf.failed()
			time.Sleep(time.Second)
		}
	}()
	bf.stop = sync.OnceFunc(func() {
		cancel()
		begun := time.Now()
		<-over
		if took, most := time.Since(begun), 30*time.Second+2*queryTimeout+leaveTimeout; took > most {
			b.t.Errorf("Run returned after %s: %s is the most", took, most)
		}
	})
	b.forwarders = append(b.forwarders, bf)
}

// runUnchecked is Run but for the look at the schema.
func runUnchecked(ctx context.Context, f *Forwarder) error {
	ctx, end, err := f.life.Begin(ctx)
	if err != nil {
		return err
	}
	defer end()
	defer f.engine.reports.start(f.engine.cfg.CloseTimeout)()
	if err := f.engine.enter(ctx); err != nil {
		return err
	}
	return f.engine.run(ctx)
}

const bubbleKeys, bubbleMessages = 6, 8

// write writes the messages of each key one after another, in transactions of different lengths.
func (b *bubble) write(during time.Duration) {
	var all sync.WaitGroup
	for k := range bubbleKeys {
		all.Go(func() {
			key := fmt.Sprint("key-", k)
			for n := 1; n <= bubbleMessages; n += 2 {
				b.server.transaction(func(tx *modeldb.Tx) {
					insertMessage(tx, fmt.Sprint("topic-", k%2), key, n)
					if k%3 == 0 {
						tx.Savepoint()
						tx.Write()
					}
					insertMessage(tx, fmt.Sprint("topic-", (k+1)%2), key, n+1)
				}, func() { time.Sleep(during * time.Duration(k+1) / (2 * bubbleKeys * bubbleMessages / 2)) })
				time.Sleep(during / bubbleMessages)
			}
		})
	}
	all.Wait()
}

// rests sees that forwarders do little when there is nothing to do.
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
			b.t.Errorf("forwarder %d at rest did %d operations in %s", i, total-before[i], rest)
		}
	}
}

// faults are all that can go wrong in a run that went as this one did.
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

// lockFirst locks the first message that is pending while fn runs.
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
