package forwarder

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// TestRecallHoldsUpNobody: while the context of a call to be recalled is busy, the engine's lock stays free.
func TestRecallHoldsUpNobody(t *testing.T) {
	db := withoutServer(t)
	calls, goOn := make(chan *callContext, 1), make(chan struct{})
	e, err := newEngine(t.Context(), db, Config{}, func(call *callContext, _ core.Delivery, _ *message.Message) error {
		calls <- call
		<-goOn
		return nil
	}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	term := dispatch.Assignment{Lane: 1, Epoch: 1}
	e.step(func(now time.Time, m *coordinator.Coordinator) {
		starts(now, m, term)
		read(now, m, []*dispatch.Row{{ID: 1, Assignment: term, Topic: "orders", Metadata: []byte("{}")}})
	})
	call := <-calls
	call.mu.Lock()
	handing := make(chan struct{})
	go e.step(func(now time.Time, m *coordinator.Coordinator) {
		m.Stop(now)
		close(handing)
	})
	<-handing
	free := make(chan struct{})
	go e.step(func(time.Time, *coordinator.Coordinator) { close(free) })
	select {
	case <-free:
	case <-time.After(10 * time.Second):
		t.Error("the lock is held")
	}
	call.mu.Unlock()
	<-call.recalled()
	close(goOn)
	e.publishing.Wait()
}

// starts makes a coordinator own and read lanes without blocked keys.
func starts(now time.Time, m *coordinator.Coordinator, lanes ...dispatch.Assignment) {
	m.Renewed(now)
	m.Took(lanes)
	for _, t := range lanes {
		m.LaneLoaded(now, t, "life", dispatch.NewTakenLane(now, t, nil))
	}
}

// read makes a coordinator read these rows.
func read(now time.Time, m *coordinator.Coordinator, rows []*dispatch.Row) {
	req, _ := m.ReadBegins(now, true)
	var ans coordinator.ReadAnswer
	for n := range ans.Owned {
		ans.Owned[n] = true
	}
	ans.Read.Ready = rows
	m.ReadEnds(now, &req, &ans)
}

// withoutServer returns a handle of a database that does not exist.
func withoutServer(t testing.TB) *outbox.DB {
	pool, err := pgxpool.New(t.Context(), "postgres://127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// TestGoroutinesAreLabelled: a profile shows each goroutine's task and outbox, including workers, which other
// goroutines start.
func TestGoroutinesAreLabelled(t *testing.T) {
	called, goOn := make(chan struct{}), make(chan struct{})
	send := func(*callContext, core.Delivery, *message.Message) error {
		close(called)
		<-goOn
		return nil
	}
	e, err := newEngine(t.Context(), withoutServer(t), Config{Scope: "labels", Name: "me"}, send, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	e.pooled = true // so it starts without a connection
	end := e.reports.start(time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.run(ctx) }()
	term := dispatch.Assignment{Lane: 1, Epoch: 1}
	e.step(func(now time.Time, m *coordinator.Coordinator) {
		starts(now, m, term)
		read(now, m, []*dispatch.Row{{ID: 1, Assignment: term, Topic: "orders", Metadata: []byte("{}")}})
	})
	<-called
	missing := func() (names []string) {
		var profile bytes.Buffer
		if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{
			"reader", "settler", "rebalancer", "timer", "maintainer", "cleaner", "operator", "listener", "reporter",
			"worker",
		} {
			label := fmt.Sprintf(`{"outbox":%q, "outbox_db":%q, "outbox_forwarder":"me", "outbox_scope":"labels"}`, name,
				e.obs.db)
			if !strings.Contains(profile.String(), label) {
				names = append(names, name)
			}
		}
		return names
	}
	for deadline := time.Now().Add(time.Minute); len(missing()) > 0; runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Errorf("no goroutine has the labels %v", missing())
			break
		}
	}
	close(goOn)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	end()
}
