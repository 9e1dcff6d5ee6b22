package queue

import (
	"context"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/clean"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// fakePool is a database whose replies, rows of values, come from a function.
type fakePool struct {
	drive.Pool
	answer func(query string) ([][]any, error)
}

func (p *fakePool) Name() string              { return "fake" }
func (p *fakePool) ID() any                   { return p }
func (p *fakePool) PlanCached() drive.Querier { return p }

func (p *fakePool) Exec(context.Context, string, ...any) (int64, error) {
	return 0, errors.New("not in this test")
}

func (p *fakePool) Query(_ context.Context, query string, _ ...any) (drive.Rows, error) {
	rows, err := p.answer(query)
	return &fakeRows{rows: rows}, err
}

type fakeRows struct {
	rows [][]any
	next int
}

func (r *fakeRows) Next() bool   { r.next++; return r.next <= len(r.rows) }
func (r *fakeRows) Err() error   { return nil }
func (r *fakeRows) Close() error { return nil }

func (r *fakeRows) Scan(dest ...any) error {
	for i, to := range dest {
		if v := r.rows[r.next-1][i]; v != nil {
			reflect.ValueOf(to).Elem().Set(reflect.ValueOf(v))
		}
	}
	return nil
}

func fakeStore(t *testing.T, answer func(query string) ([][]any, error)) *Store {
	t.Helper()
	db, err := core.NewDB(&fakePool{answer: answer}, core.Config{}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	return &Store{db: db, logger: watermill.NopLogger{}}
}

// newTestGroup makes a Group of sleeping databases "0", "1" and so on.
func newTestGroup(
	t *testing.T, databases int, cfg DispatcherConfig, answer func(key, query string) ([][]any, error),
) *Group {
	var targets []fleet.Target
	for i := range databases {
		targets = append(targets, fleet.Target{Key: strconv.Itoa(i), DSN: strconv.Itoa(i)})
	}
	f, err := fleet.New(fleet.Static(targets...), fleet.Config{
		Open: func(_ context.Context, of fleet.Target) (*outbox.DB, func(), error) {
			store := fakeStore(t, func(query string) ([][]any, error) { return answer(of.Key, query) })
			return (*outbox.DB)(store.db), nil, nil
		},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }()
	<-f.Running()
	stores, err := NewStores(f, StoreConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	nothing := func(context.Context, *Message) error { return nil }
	cfg.Handlers = map[string]Handler{"t": {Handle: nothing}}
	g, err := NewGroup(stores, GroupConfig{Dispatcher: cfg}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	g.scheduler.Sync()
	t.Cleanup(func() {
		over, end := context.WithCancel(context.Background())
		end()
		if err := errors.Join(g.Run(over), f.Close(), <-ended); err != nil { // Run waits for all work
			t.Error(err)
		}
	})
	return g
}

// TestEnqueueSaysThatItsSecondTryFailed: Busy would mean that nothing needs repeating, and hide a Mismatch.
func TestEnqueueSaysThatItsSecondTryFailed(t *testing.T) {
	broken, tries := errors.New("the connection broke"), 0
	s := fakeStore(t, func(string) ([][]any, error) {
		if tries++; tries == 1 {
			return nil, nil
		}
		return nil, broken
	})
	stored, err := s.Enqueue(t.Context(), Item{ID: ID{Source: "s", MessageID: "1"}, Topic: "t"})
	if !errors.Is(err, broken) || tries != 2 {
		t.Errorf("after %d tries it returns %v and %v", tries, stored, err)
	}
}

// TestOneDatabaseThatCannotBeChecked does not affect its pool: it is woken, and the others are checked.
func TestOneDatabaseThatCannotBeChecked(t *testing.T) {
	g := newTestGroup(t, 2, DispatcherConfig{}, func(key, query string) ([][]any, error) {
		switch {
		case strings.Contains(query, "pg_sequence_last_value"):
			return [][]any{{int64(0), int64(0)}, {int64(0), int64(0)}}, nil
		case key == "1" && strings.Contains(query, "is_called"):
			return [][]any{{int64(0), false, nil}}, nil
		}
		return nil, errors.New("its table is locked")
	})
	broken, fine := g.scheduler.All()[0].Own, g.scheduler.All()[1].Own
	broken.updates, fine.updates = -1, -1
	now := time.Now()
	if err := g.pollSleeping(t.Context(), []*database{broken, fine}); err != nil {
		t.Errorf("its pool was reported as failing: %v", err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if broken.awake == nil || fine.awake != nil {
		t.Error("the database did not check itself")
	}
	if !broken.checkAt.After(now) || !fine.checkAt.After(now) {
		t.Errorf("next checks at %s and %s", broken.checkAt, fine.checkAt)
	}
}

// TestAckBeforeTheLoopServes: a Group's claim may return before the goroutine that writes acks has started.
func TestAckBeforeTheLoopServes(t *testing.T) {
	s := fakeStore(t, func(string) ([][]any, error) { return nil, nil })
	l := newLoop(s, loopConfig{slots: 1, lease: time.Minute}, watermill.NopLogger{}, nil)
	defer l.begin(t.Context())()
	(&claimed{loop: l}).ack()
}

func noTopics() []string { return nil }

// TestCleanAfterFailedReaping: old messages are deleted even if reaping keeps failing.
func TestCleanAfterFailedReaping(t *testing.T) {
	s := fakeStore(t, func(string) ([][]any, error) { return nil, errors.New("broken") })
	m := newMaintainer(s, watermill.NopLogger{}, time.Minute, time.Minute, "", noTopics)
	m.turn(t.Context(), true)
	if m.cleanAt.IsZero() {
		t.Error("nothing was deleted")
	}
}

// TestPanicBelowIngest: user code called by Enqueue, such as a logger or a pgx tracer, panics.
func TestPanicBelowIngest(t *testing.T) {
	s := fakeStore(t, func(string) ([][]any, error) { panic("tracer") })
	s.cfg.setDefaults()
	item := func(*message.Message) (Item, error) {
		return Item{ID: ID{Source: "s", MessageID: "1"}, Topic: "t"}, nil
	}
	ingest, err := Ingest(s, IngestConfig{Item: item})
	if err == nil {
		err = ingest(message.NewMessage("1", nil))
	}
	if err == nil || !strings.Contains(err.Error(), "tracer") {
		t.Errorf("error %v", err)
	}
}

// TestDeadRetentionThatFails: done messages are still deleted on time and no more often.
func TestDeadRetentionThatFails(t *testing.T) {
	s := fakeStore(t, func(string) ([][]any, error) { return nil, errors.New("no rights") })
	s.cfg.Retention = -1
	s.dead = clean.Dead{DB: s.db, Logger: s.logger, Store: sqltext.Queue, Retention: time.Hour, Timeout: time.Minute}
	m := newMaintainer(s, watermill.NopLogger{}, time.Minute, time.Hour, "", noTopics)
	if cleaned := m.turn(t.Context(), true); !cleaned {
		t.Error("reported as a failure to delete done messages")
	}
	if m.cleanAt.Before(time.Now().Add(10 * time.Minute)) {
		t.Error("done messages are deleted more often")
	}
}

// TestRenewalRefusedAfterItWorked: a message that was renewed in the same batch as a refused one is renewed again,
// alone, and this time it is refused.
func TestRenewalRefusedAfterItWorked(t *testing.T) {
	calls := 0
	s := fakeStore(t, func(string) ([][]any, error) {
		switch calls++; calls {
		case 1:
			return [][]any{{"s", "1", true}, {"s", "2", false}}, nil
		case 2:
			return [][]any{{"s", "1", false}}, nil
		}
		return [][]any{{"s", "2", true}}, nil
	})
	l := newLoop(s, loopConfig{slots: 2, lease: time.Minute}, watermill.NopLogger{}, nil)
	for _, id := range []ID{{Source: "s", MessageID: "1"}, {Source: "s", MessageID: "2"}} {
		c := &claimed{loop: l}
		c.ID, l.claimed[id] = id, c
	}
	if err := l.renewOnce(t.Context()); err != nil || calls != 3 {
		t.Errorf("after %d calls: %v", calls, err)
	}
	if one := l.claimed[ID{Source: "s", MessageID: "1"}]; time.Until(one.until) < 50*time.Second {
		t.Error("its renewal was not recorded")
	}
}

// TestLostLeasesCostOneStatement: however many messages a renewal does not renew, one statement finds those that still
// have their owner, because another transaction has locked the row.
func TestLostLeasesCostOneStatement(t *testing.T) {
	const messages = 200
	calls := 0
	s := fakeStore(t, func(string) ([][]any, error) {
		if calls++; calls == 2 {
			return [][]any{{"s", "0"}}, nil
		}
		return nil, nil
	})
	l := newLoop(s, loopConfig{slots: messages, lease: time.Minute}, watermill.NopLogger{}, nil)
	defer l.begin(t.Context())()
	works := map[string]context.Context{}
	for i := range messages {
		c := &claimed{loop: l, until: time.Now().Add(time.Hour)}
		c.ID = ID{Source: "s", MessageID: strconv.Itoa(i)}
		l.claimed[c.ID], works[c.MessageID] = c, c.context()
	}
	if err := l.renewOnce(t.Context()); err != nil || calls != 2 {
		t.Errorf("after %d statements: %v", calls, err)
	}
	for id, ctx := range works {
		if lost := context.Cause(ctx) == ErrLeaseLost; lost == (id == "0") {
			t.Errorf("message %s: lost is %t", id, lost)
		}
	}
}
