package forwarder

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// TestRecallHoldsUpNobody: the context of a call that is to be taken back is busy, and the engine's lock is free all
// the same.
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
	term := board.Term{Lane: 1, Epoch: 1}
	e.step(func(now time.Time, m *machine.Machine) {
		starts(now, m, term)
		read(now, m, []*board.Row{{ID: 1, Term: term, Topic: "orders", Metadata: []byte("{}")}})
	})
	call := <-calls
	call.mu.Lock()
	handing := make(chan struct{})
	go e.step(func(now time.Time, m *machine.Machine) {
		m.Stop(now)
		close(handing)
	})
	<-handing
	free := make(chan struct{})
	go e.step(func(time.Time, *machine.Machine) { close(free) })
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

// starts has a machine publish and read lanes, none of whose keys are blocked.
func starts(now time.Time, m *machine.Machine, lanes ...board.Term) {
	m.Renewed(now)
	m.Took(lanes)
	for _, t := range lanes {
		m.LaneLoaded(now, t, "life", board.NewTaken(now, t, nil))
	}
}

// read has a machine find rows.
func read(now time.Time, m *machine.Machine, rows []*board.Row) {
	req, _ := m.ReadBegins(now, true)
	var ans machine.ReadAnswer
	for n := range ans.Owned {
		ans.Owned[n] = true
	}
	ans.Read.Ready = rows
	m.ReadEnds(now, &req, &ans)
}

// withoutServer is a handle of a database that is not there.
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
