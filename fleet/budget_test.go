package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/watermill-outbox/fleet"
)

const patience = 50 * time.Second

// run runs a fleet until the test ends.
func run(t testing.TB, d fleet.Discovery, cfg fleet.Config, log *capture) *fleet.Fleet {
	t.Helper()
	f, err := fleet.New(d, cfg, log)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }()
	t.Cleanup(func() {
		f.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-f.Running():
	case <-time.After(patience):
		t.Fatal("the fleet does not run")
	}
	return f
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("did not happen: " + what)
		}
	}
}

func targets(s *server, n int) (list []fleet.Target) {
	for i := range n {
		list = append(list, fleet.Target{Key: fmt.Sprintf("tenant-%02d", i), DSN: s.dsn(fmt.Sprintf("db%02d", i), "")})
	}
	return list
}

func acquire(t testing.TB, f *fleet.Fleet, dsn string) *pgxpool.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := f.Pool(dsn).Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Many busy pools share the slots, and the server never sees more connections.
func TestFleetBudget(t *testing.T) {
	s := newServer(t)
	list := targets(s, 20)
	f := run(t, fleet.Static(list...), fleet.Config{MaxConns: 5, MaxConnsPerDSN: 2}, nil)
	var users sync.WaitGroup
	for _, target := range list {
		for range 3 {
			users.Go(func() {
				for range 10 {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					err := f.Pool(target.DSN).Ping(ctx)
					cancel()
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	users.Wait()
	if _, peak, _ := s.counts(); peak > 5 {
		t.Errorf("the server saw %d concurrent connections", peak)
	}
	if taken, waiting := f.Slots(); taken > 5 || waiting != 0 {
		t.Errorf("%d slots taken, %d wait", taken, waiting)
	}
}

// A connection that is idle or returned to its pool is closed if another pool needs its slot.
func TestFleetIdleConnectionsMakeRoom(t *testing.T) {
	s := newServer(t)
	list := targets(s, 3)
	f := run(t, fleet.Static(list...), fleet.Config{MaxConns: 1}, nil)
	acquire(t, f, list[0].DSN).Release()
	held := acquire(t, f, list[1].DSN)
	got := make(chan *pgxpool.Conn)
	go func() { got <- acquire(t, f, list[2].DSN) }()
	eventually(t, "the second waits", func() bool { _, waiting := f.Slots(); return waiting == 1 })
	held.Release()
	(<-got).Release()
	if _, peak, attempts := s.counts(); peak != 1 || attempts != 3 {
		t.Errorf("%d concurrent connections, %d in total", peak, attempts)
	}
}

// A caller that waits too long gets an error that lists the holders of the slots, and so does the log. Neither contains
// a password.
func TestFleetBudgetListsTheHolders(t *testing.T) {
	s := newServer(t)
	log := &capture{}
	list := []fleet.Target{{Key: "greedy", DSN: s.dsn("a", "")}, {Key: "poor", DSN: s.dsn("b", "&connect_timeout=3")}}
	f := run(t, fleet.Static(list...), fleet.Config{MaxConns: 1}, log)
	held := acquire(t, f, list[0].DSN)
	defer held.Release()
	err := f.Pool(list[1].DSN).Ping(context.Background())
	if err == nil || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	for _, want := range []string{
		`no connection available for "poor"`, "the only connection of Config.MaxConns is in use",
		`("greedy" has 1), callers waiting: 0`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %q", want, err)
		}
	}
	if said := log.text(); !strings.Contains(said, "waiting for a connection") ||
		strings.Contains(said+err.Error(), "hush") {
		t.Error(said)
	}
}

// A server that cannot be reached uses at most its share of the slots, and can use all of them once it works again.
func TestFleetSuspects(t *testing.T) {
	bad, good := newServer(t), newServer(t)
	bad.refuse = true
	list := targets(bad, 6)
	well := fleet.Target{Key: "well", DSN: good.dsn("well", "")}
	f := run(t, fleet.Static(append(list, well)...), fleet.Config{MaxConns: 4}, nil)
	for _, target := range list {
		if err := f.Pool(target.DSN).Ping(context.Background()); err == nil {
			t.Fatal("connected")
		}
	}
	_, _, refused := bad.counts()
	bad.mu.Lock()
	bad.refuse, bad.silent = false, make(chan struct{})
	bad.mu.Unlock()
	var stuck sync.WaitGroup
	for _, target := range list {
		stuck.Go(func() {
			if err := f.Pool(target.DSN).Ping(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "one attempt hangs", func() bool { _, _, attempts := bad.counts(); return attempts > refused })
	acquire(t, f, well.DSN).Release()
	if taken, _ := f.Slots(); taken != 2 {
		t.Errorf("%d slots are taken: one by an attempt that hangs, and one by a healthy database", taken)
	}
	close(bad.silent)
	stuck.Wait()
}

// A cancel request needs no slot, so a budget full of abandoned statements drains on its own.
func TestFleetCancelledStatementsFreeTheirSlots(t *testing.T) {
	s := newServer(t)
	list := targets(s, 2)
	f := run(t, fleet.Static(list...), fleet.Config{MaxConns: 1}, nil)
	c := acquire(t, f, list[0].DSN)
	hung := make(chan struct{})
	s.mu.Lock()
	s.hang = hung
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := c.Ping(ctx); err == nil {
		t.Fatal("it did not hang")
	}
	c.Release()
	s.mu.Lock()
	s.hang = nil
	s.mu.Unlock()
	close(hung)
	acquire(t, f, list[1].DSN).Release()
}
