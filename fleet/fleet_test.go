package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// capture is a logger that records its lines.
type capture struct {
	watermill.NopLogger
	mu    sync.Mutex
	lines []string
}

func (c *capture) add(level, msg string, err error, fields watermill.LogFields) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lines = append(c.lines, fmt.Sprint(level, " ", msg, " ", err, " ", fields))
}

func (c *capture) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.lines, "\n")
}

func (c *capture) Error(msg string, err error, fields watermill.LogFields) {
	c.add("error", msg, err, fields)
}
func (c *capture) Info(msg string, fields watermill.LogFields)      { c.add("info", msg, nil, fields) }
func (c *capture) With(watermill.LogFields) watermill.LoggerAdapter { return c }

// world provides a Discovery and an Open that count their calls.
type world struct {
	mu      sync.Mutex
	targets []fleet.Target
	err     error
	hang    chan struct{} // blocks until it is closed, even when the context ends
	asked   int
	opened  map[string]int
	closed  map[string]int
	broken  map[string]error
}

func newWorld(targets ...fleet.Target) *world {
	return &world{targets: targets, opened: map[string]int{}, closed: map[string]int{}, broken: map[string]error{}}
}

func (w *world) Discover(context.Context) ([]fleet.Target, error) {
	w.mu.Lock()
	w.asked++
	targets, err, hang := w.targets, w.err, w.hang
	w.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return targets, err
}

func (w *world) open(_ context.Context, t fleet.Target) (*outbox.DB, func(), error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.broken[t.Key]; err != nil {
		return nil, nil, err
	}
	w.opened[t.Key]++
	pool, err := pgxpool.New(context.Background(), "postgres://localhost/"+t.Key)
	if err != nil {
		return nil, nil, err
	}
	db, err := outbox.FromPgx(pool, outbox.DBConfig{Name: t.Key}, nil)
	return db, func() {
		pool.Close()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.closed[t.Key]++
	}, err
}

func (w *world) set(targets ...fleet.Target) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.targets = targets
}

// breaks makes a target impossible to open.
func (w *world) breaks(key string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken[key] = err
}

func (w *world) counts(key string) (opened, closed int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.opened[key], w.closed[key]
}

// inWorld runs a fleet with its own clock.
func inWorld(t *testing.T, w *world, test func(t *testing.T, f *fleet.Fleet, log *capture)) {
	synctest.Test(t, func(t *testing.T) {
		log := &capture{}
		f := run(t, w.Discover, fleet.Config{Open: w.open}, log)
		synctest.Wait()
		test(t, f, log)
	})
}

// next advances the clock until the discovery is polled again.
func next() {
	time.Sleep(5*time.Minute + time.Second)
	synctest.Wait()
}

func get(t *testing.T, f *fleet.Fleet, key string) *outbox.DB {
	t.Helper()
	db, err := f.Get(key)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

var a, b, c = fleet.Target{Key: "a", DSN: "1"}, fleet.Target{Key: "b", DSN: "2"}, fleet.Target{Key: "c", DSN: "3"}

func TestFleetFollowsItsDiscovery(t *testing.T) {
	w := newWorld(b, a)
	inWorld(t, w, func(t *testing.T, f *fleet.Fleet, _ *capture) {
		first := get(t, f, "a")
		if first.Name() != "a" || !slices.Equal(f.Keys(), []string{"a", "b"}) {
			t.Error(first.Name(), f.Keys())
		}
		moved := b
		moved.DSN = "elsewhere"
		w.set(a, moved, c)
		old := get(t, f, "b")
		next()
		if get(t, f, "a") != first {
			t.Error("an unchanged target has another handle")
		}
		if get(t, f, "b") == old {
			t.Error("a target that moved has its old handle")
		}
		if opened, closed := w.counts("b"); opened != 2 || closed != 1 {
			t.Errorf("b: opened %d times, closed %d times", opened, closed)
		}
		w.set(c)
		next()
		if _, err := f.Get("a"); !errors.Is(err, fleet.ErrUnknownDatabase) || !strings.Contains(err.Error(), `"a"`) {
			t.Error(err)
		}
		if opened, closed := w.counts("a"); opened != 1 || closed != 1 {
			t.Errorf("a: opened %d times, closed %d times", opened, closed)
		}
		if !slices.Equal(f.Keys(), []string{"c"}) {
			t.Error(f.Keys())
		}
	})
	if opened, closed := w.counts("c"); opened != 1 || closed != 1 {
		t.Errorf("c: opened %d times, closed %d times", opened, closed)
	}
}

// A discovery that fails, returns nothing, panics or hangs changes nothing, and is used again afterwards.
func TestFleetKeepsWhatItKnows(t *testing.T) {
	for name, fault := range map[string]func(*world) (heal func()){
		"error": func(w *world) func() {
			w.err = errors.New("away")
			return func() { w.err = nil }
		},
		"hangs": func(w *world) func() {
			w.hang = make(chan struct{})
			return func() { close(w.hang); w.hang = nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(a, b)
			inWorld(t, w, func(t *testing.T, f *fleet.Fleet, log *capture) {
				before := get(t, f, "a")
				w.mu.Lock()
				heal := fault(w)
				w.mu.Unlock()
				time.Sleep(time.Hour)
				synctest.Wait()
				if get(t, f, "a") != before || len(f.Keys()) != 2 {
					t.Error("it was forgotten")
				}
				if said := log.text(); strings.Count(said, "discovering databases failed") != 1 {
					t.Error(said)
				}
				w.mu.Lock()
				heal()
				w.targets = []fleet.Target{a, c}
				w.mu.Unlock()
				next()
				next() // while it hangs the previous result stays
				if get(t, f, "a") != before || !slices.Equal(f.Keys(), []string{"a", "c"}) {
					t.Error(f.Keys())
				}
			})
		})
	}
}

// An empty discovery is first considered faulty, and accepted if that continues for RefreshInterval, which removes the
// last database too.
func TestFleetBelievesAnEmptyDiscoveryInTheEnd(t *testing.T) {
	w := newWorld(a, b)
	inWorld(t, w, func(t *testing.T, f *fleet.Fleet, log *capture) {
		before := get(t, f, "a")
		w.set()
		next()
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		if get(t, f, "a") != before || len(f.Keys()) != 2 {
			t.Error("it was forgotten immediately")
		}
		w.set(a, b) // it is back, so counting starts again
		time.Sleep(5 * time.Minute)
		w.set()
		time.Sleep(4 * time.Minute) // less than RefreshInterval, whenever the first empty result came
		synctest.Wait()
		if get(t, f, "a") != before {
			t.Error("two short times without an answer count as one long one")
		}
		time.Sleep(15 * time.Minute)
		synctest.Wait()
		if _, err := f.Get("a"); !errors.Is(err, fleet.ErrUnknownDatabase) || len(f.Keys()) != 0 {
			t.Error(f.Keys(), err)
		}
		for _, key := range []string{"a", "b"} {
			if opened, closed := w.counts(key); opened != 1 || closed != 1 {
				t.Errorf("%s was opened %d times and closed %d times", key, opened, closed)
			}
		}
		w.set(a)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		get(t, f, "a")
	})
}

// Equal targets with the same Key are one target; if they differ, none of them is used, in any order.
func TestFleetTwins(t *testing.T) {
	other := a
	other.DSN = "elsewhere"
	for name, targets := range map[string][]fleet.Target{
		"same": {a, b, a}, "same thrice": {a, a, a, b},
		"different": {a, other, b}, "different last": {a, b, a, other}, "different first": {other, a, a, b},
		"in the middle": {a, other, a, b},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, newWorld(targets...), func(t *testing.T, f *fleet.Fleet, log *capture) {
				get(t, f, "b")
				_, err := f.Get("a")
				said := strings.Contains(log.text(), "two targets have this Key")
				if same := strings.HasPrefix(name, "same"); same != (err == nil) || same == said {
					t.Error(err, log.text())
				}
			})
		})
	}
}

// A held handle outlives its target, reports that the target was removed, and is reused if the target returns.
func TestFleetHeldHandles(t *testing.T) {
	w := newWorld(a, b)
	inWorld(t, w, func(t *testing.T, f *fleet.Fleet, _ *capture) {
		held, err := f.Acquire("a")
		if err != nil {
			t.Fatal(err)
		}
		again, err := f.Acquire("a")
		if err != nil {
			t.Fatal(err)
		}
		w.set(b)
		next()
		select {
		case <-held.Done():
		default:
			t.Error("Done does not tell the holder that the target is gone")
		}
		if _, closed := w.counts("a"); closed != 0 {
			t.Error("closed while it is held")
		}
		w.set(a, b) // the target comes and goes
		next()
		if get(t, f, "a") != held.DB() {
			t.Error("another handle was opened although the first is held")
		}
		fresh, err := f.Acquire("a")
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-fresh.Done():
			t.Error("it is back, and gone")
		default:
		}
		w.set(b)
		next()
		held.Release()
		held.Release() // a second Release changes nothing
		again.Release()
		synctest.Wait()
		if _, closed := w.counts("a"); closed != 0 {
			t.Error("closed while it is held")
		}
		fresh.Release()
		synctest.Wait()
		if opened, closed := w.counts("a"); opened != 1 || closed != 1 {
			t.Errorf("opened %d times, closed %d times", opened, closed)
		}
	})
}

// A faulty target does not affect the others, and keeps its handle.
func TestFleetBadTargets(t *testing.T) {
	w := newWorld(a, b)
	w.breaks("b", errors.New("not today"))
	inWorld(t, w, func(t *testing.T, f *fleet.Fleet, log *capture) {
		get(t, f, "a")
		if _, err := f.Get("b"); !errors.Is(err, fleet.ErrUnknownDatabase) || !strings.Contains(err.Error(), "not today") {
			t.Error(err)
		}
		w.breaks("b", nil)
		next()
		before := get(t, f, "b")
		moved, twin := b, a
		moved.DSN, twin.DSN = "elsewhere", "twin"
		w.breaks("b", errors.New("moved into nowhere"))
		w.set(moved, a, twin, a, c, fleet.Target{})
		first := get(t, f, "a")
		next()
		next()
		if get(t, f, "b") != before || get(t, f, "a") != first {
			t.Error("a handle was lost to a fault of the discovery")
		}
		get(t, f, "c")
		for _, want := range []string{"moved into nowhere", "two targets have this Key", "Key is empty"} {
			if n := strings.Count(log.text(), want); n != 1 {
				t.Errorf("%q is in the log %d times", want, n)
			}
		}
	})
}

// TestFleetOpenThatHangs: a call of Open that ignores its context does not delay other targets, and the handle that it
// finally opens is closed.
func TestFleetOpenThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(fleet.Target{Key: "hung"}, fleet.Target{Key: "well"})
		gate := make(chan struct{})
		var calls atomic.Int32
		log := &capture{}
		f, err := fleet.New(w.Discover, fleet.Config{
			RefreshInterval: time.Minute, Open: func(ctx context.Context, target fleet.Target) (*outbox.DB, func(), error) {
				if target.Key == "hung" {
					calls.Add(1)
					<-gate
				}
				return w.open(ctx, target)
			},
		}, log)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- f.Run(t.Context()) }()
		select {
		case <-f.Running():
		case <-time.After(20 * time.Second):
			close(gate)
			t.Fatal("the fleet waits for it")
		}
		get(t, f, "well")
		if _, err := f.Get("hung"); !errors.Is(err, fleet.ErrUnknownDatabase) ||
			!strings.Contains(err.Error(), "did not return") {
			t.Error(err)
		}
		time.Sleep(3*time.Minute + 30*time.Second) // between two refreshes
		if n := calls.Load(); n != 1 {
			t.Errorf("called %d times while the first call hangs", n)
		}
		close(gate)
		synctest.Wait()
		if opened, closed := w.counts("hung"); opened != 1 || closed != 1 {
			t.Errorf("%d opened, %d closed", opened, closed)
		}
		time.Sleep(2 * time.Minute)
		get(t, f, "hung")
		if err := errors.Join(f.Close(), <-done); err != nil {
			t.Error(err)
		}
		if opened, closed := w.counts("hung"); opened != 2 || closed != 2 {
			t.Errorf("%d opened, %d closed", opened, closed)
		}
	})
}

func TestFleetOpensPools(t *testing.T) {
	s := newServer(t)
	log := &capture{}
	list := []fleet.Target{
		{Key: "one", DSN: s.dsn("db", "")},
		{Key: "two", DSN: s.dsn("db", ""), Tables: outbox.Tables{Schema: "two"}},
		{Key: "three", DSN: s.dsn("other", "&pool_min_conns=3")},
		{Key: "bad dsn", DSN: "postgres://me:hush-hush@host:no-port/db"},
		{Key: "bad table", DSN: s.dsn("db", ""), Tables: outbox.Tables{Outbox: "no good"}},
	}
	w := newWorld(list...)
	f := run(t, w.Discover, fleet.Config{RefreshInterval: 10 * time.Millisecond}, log)
	one, two := get(t, f, "one"), get(t, f, "two")
	if one == two || two.Tables().Schema != "two" || f.Pool(list[0].DSN) == f.Pool(list[2].DSN) {
		t.Error("targets of one DSN share a pool, and nothing else")
	}
	if _, err := f.Get("bad table"); !errors.Is(err, sqltext.ErrBadName) {
		t.Error(err)
	}
	_, err := f.Get("bad dsn")
	if err == nil || strings.Contains(err.Error()+log.text(), "hush") {
		t.Error(err, log.text())
	}
	shared := f.Pool(list[0].DSN)
	if err := shared.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if _, _, attempts := s.counts(); attempts != 1 {
		t.Errorf("%d connections were opened, one was requested", attempts)
	}
	w.set(list[1])
	eventually(t, "two is left alone", func() bool { return len(f.Keys()) == 1 })
	if f.Pool(list[0].DSN) != shared || shared.Ping(t.Context()) != nil {
		t.Error("the pool of a target that is left was closed")
	}
	w.set(list[2])
	eventually(t, "the pool is gone", func() bool { return f.Pool(list[0].DSN) == nil })
	eventually(t, "its connection is closed", func() bool { open, _, _ := s.counts(); return open == 0 })
}

func TestFleetLifecycle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(a)
		w.err = errors.New("not yet")
		f, err := fleet.New(w.Discover, fleet.Config{Open: w.open}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Get("a"); !errors.Is(err, fleet.ErrUnknownDatabase) ||
			!strings.Contains(err.Error(), "no discovery yet") {
			t.Error(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- f.Run(t.Context()) }()
		synctest.Wait()
		if err := f.Run(t.Context()); !errors.Is(err, outbox.ErrRunning) {
			t.Error(err)
		}
		select {
		case <-f.Running():
			t.Error("it runs without a discovery")
		default:
		}
		w.mu.Lock()
		w.err = nil
		w.mu.Unlock()
		time.Sleep(10 * time.Second) // failures are retried soon
		<-f.Running()
		held, err := f.Acquire("a")
		if err != nil {
			t.Fatal(err)
		}
		closed := make(chan struct{})
		go func() { f.Close(); close(closed) }()
		<-held.Done()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("closed while a handle is held")
		default:
		}
		held.Release()
		<-closed
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if _, err := f.Get("a"); !errors.Is(err, outbox.ErrClosed) {
			t.Error(err)
		}
		if err := f.Run(t.Context()); !errors.Is(err, outbox.ErrClosed) {
			t.Error(err)
		}
	})
}

// By default the Discovery is polled every five minutes.
func TestFleetRefreshInterval(t *testing.T) {
	w := newWorld(a)
	inWorld(t, w, func(t *testing.T, _ *fleet.Fleet, _ *capture) {
		for n := 1; n < 4; n++ {
			for _, wait := range []time.Duration{5*time.Minute - 2*time.Second, 2 * time.Second} {
				if w.mu.Lock(); w.asked != n {
					t.Errorf("polled %d times, not %d", w.asked, n)
				}
				w.mu.Unlock()
				time.Sleep(wait)
				synctest.Wait()
			}
		}
	})
}

func TestFleetConfig(t *testing.T) {
	if _, err := fleet.New(nil, fleet.Config{}, nil); err == nil || !strings.Contains(err.Error(), "Static") {
		t.Error(err)
	}
	_, err := fleet.New(fleet.Static(), fleet.Config{RefreshInterval: -1, MaxConns: -2, MaxConnsPerDSN: -1}, nil)
	for _, want := range []string{
		"Config.RefreshInterval is -1ns", "Config.MaxConns is -2", "Config.MaxConnsPerDSN is -1",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
}
