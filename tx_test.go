package outbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/observe"
)

// fakeServer is a server behind database/sql that accepts every statement, unless answer returns something else.
type fakeServer struct {
	opened int
	answer func(conn int, query string) error
}

func (s *fakeServer) Connect(context.Context) (driver.Conn, error) {
	s.opened++
	return &fakeConn{s, s.opened}, nil
}
func (s *fakeServer) Driver() driver.Driver { return nil }

func (s *fakeServer) db(t *testing.T) *DB {
	t.Helper()
	db := sql.OpenDB(s)
	t.Cleanup(func() { _ = db.Close() })
	return handleOf(t, db, DBConfig{DisableNotify: true})
}

func handleOf(t *testing.T, pool *sql.DB, cfg DBConfig) *DB {
	t.Helper()
	db, err := FromSQL(pool, cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

type fakeConn struct {
	server *fakeServer
	number int
}

func (c *fakeConn) Prepare(string) (driver.Stmt, error) { return nil, errors.New("not prepared") }
func (c *fakeConn) Close() error                        { return nil }
func (c *fakeConn) Begin() (driver.Tx, error)           { return c, nil }
func (c *fakeConn) Commit() error                       { return nil }
func (c *fakeConn) Rollback() error                     { return nil }
func (c *fakeConn) ExecContext(_ context.Context, query string, _ []driver.NamedValue) (driver.Result, error) {
	if c.server.answer != nil {
		if err := c.server.answer(c.number, query); err != nil {
			return nil, err
		}
	}
	return driver.RowsAffected(1), nil
}

// QueryContext replies like a server without any of the requested settings.
func (c *fakeConn) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return noRows{}, nil
}

type noRows struct{}

func (noRows) Columns() []string         { return []string{"name", "value"} }
func (noRows) Close() error              { return nil }
func (noRows) Next([]driver.Value) error { return io.EOF }

func TestJoiningRefusesWhatIsNoTransaction(t *testing.T) {
	db := (&fakeServer{}).db(t)
	for _, bad := range []pgx.Tx{nil, (*pgxpool.Tx)(nil), &pgxpool.Tx{}} {
		if _, err := WithPgxTx(t.Context(), db, bad); !errors.Is(err, ErrNoTx) {
			t.Errorf("%T: %v", bad, err)
		}
	}
	for _, bad := range []*sql.Tx{nil, {}} {
		if _, err := WithSQLTx(t.Context(), db, bad); !errors.Is(err, ErrNoTx) {
			t.Errorf("%T: %v", bad, err)
		}
	}
	tx, err := sql.OpenDB(&fakeServer{}).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := WithSQLTx(t.Context(), nil, tx); !errors.Is(err, ErrNoDB) {
		t.Errorf("no handle: %v", err)
	}
	ctx, err := WithSQLTx(t.Context(), db, tx)
	if err != nil {
		t.Fatal(err)
	}
	if err := InTx(ctx, (&fakeServer{}).db(t), func(context.Context) error { return nil }); !errors.Is(err, ErrOtherDB) {
		t.Errorf("another handle: %v", err)
	}
	if _, err := PgxTx(ctx); !errors.Is(err, ErrTxKind) || !strings.Contains(err.Error(), "use SQLTx") {
		t.Errorf("PgxTx: %v", err)
	}
}

func TestContextOfAnEndedSavepoint(t *testing.T) {
	db := (&fakeServer{}).db(t)
	pub, err := NewPublisher(db, PublisherConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, end := range []error{nil, errors.New("undo")} {
		err := InTx(t.Context(), db, func(ctx context.Context) error {
			var kept context.Context
			if err := InTx(ctx, db, func(ctx context.Context) error { kept = ctx; return end }); !errors.Is(err, end) {
				t.Errorf("got %v", err)
			}
			msg := message.NewMessage("id", nil)
			msg.SetContext(kept)
			_, querierErr := (*core.DB)(db).Tx(kept)
			for name, err := range map[string]error{
				"AfterCommit":     AfterCommit(kept, func(context.Context) { t.Error("called") }),
				"SetRollbackOnly": SetRollbackOnly(kept),
				"Publish":         pub.Publish("topic", msg),
				"Capture":         (*core.Publisher)(pub).Capture(kept, "topic", msg),
				"TxQuerier":       querierErr,
			} {
				if !errors.Is(err, ErrNoTx) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if _, err := SQLTx(kept); !errors.Is(err, ErrNoTx) {
				t.Error("SQLTx returns the transaction")
			}
			if err := InTx(kept, db, func(context.Context) error { return nil }); !errors.Is(err, ErrTxEnded) {
				t.Errorf("InTx: %v", err)
			}
			if _, err := SQLTx(ctx); err != nil {
				t.Error("the transaction around it has ended as well")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// told counts observers' calls.
type told struct {
	starts int
	txs    []meter.TxEnd
	writes []observe.WriteEnd
}

func (o *told) TxStart(ctx context.Context, _ meter.TxStart) context.Context {
	o.starts++
	return ctx
}
func (o *told) TxEnd(_ context.Context, end meter.TxEnd) { o.txs = append(o.txs, end) }
func (o *told) WriteStart(ctx context.Context, start observe.WriteStart) context.Context {
	for _, msg := range start.Messages {
		msg.Metadata.Set("seen", "yes")
	}
	return ctx
}
func (o *told) WriteEnd(_ context.Context, end observe.WriteEnd) { o.writes = append(o.writes, end) }

// rude is an observer that panics.
type rude struct{}

func (rude) TxStart(context.Context, meter.TxStart) context.Context         { panic("TxStart") }
func (rude) TxEnd(context.Context, meter.TxEnd)                             { panic("TxEnd") }
func (rude) WriteStart(context.Context, observe.WriteStart) context.Context { panic("WriteStart") }
func (rude) WriteEnd(context.Context, observe.WriteEnd)                     { panic("WriteEnd") }

func TestObserversAreToldOfPanics(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("boom") }, "Goexit": runtime.Goexit} {
		o, logged := &told{}, watermill.NewCaptureLogger()
		db, err := FromSQL(sql.OpenDB(&fakeServer{}), DBConfig{Observers: []observe.Observer{rude{}, o}}, logged)
		if err != nil {
			t.Fatal(err)
		}
		pub, err := NewPublisher(db, PublisherConfig{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		msg := message.NewMessage("id", nil)
		var recovered any
		var wg sync.WaitGroup
		wg.Go(func() {
			defer func() { recovered = recover() }()
			_ = InTx(t.Context(), db, func(ctx context.Context) error {
				if err := pub.PublishContext(ctx, "topic", msg); err != nil {
					t.Error(err)
				}
				end()
				return nil
			})
		})
		wg.Wait()
		if (name == "panic") != (recovered == "boom") {
			t.Errorf("%s: recovered %v", name, recovered)
		}
		if o.starts != 1 || len(o.txs) != 1 || o.txs[0].Err == nil || len(o.writes) != 1 ||
			msg.Metadata.Get("seen") != "yes" {
			t.Errorf("%s: observed %v and %v", name, o.txs, o.writes)
		}
		if n := len(logged.Captured()[watermill.ErrorLogLevel]); n != 4 {
			t.Errorf("%s: %d panics of the observer were logged", name, n)
		}
	}
}

func TestObserversMustBeSome(t *testing.T) {
	for _, bad := range []observe.Observer{nil, "observer", (*told)(nil)} {
		_, err := FromSQL(sql.OpenDB(&fakeServer{}), DBConfig{Observers: []observe.Observer{&told{}, bad}}, nil)
		if err == nil || !strings.Contains(err.Error(), "DBConfig.Observers[1]") {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestHooks(t *testing.T) {
	logged := watermill.NewCaptureLogger()
	db, err := FromSQL(sql.OpenDB(&fakeServer{}), DBConfig{}, logged)
	if err != nil {
		t.Fatal(err)
	}
	if err := InTx(t.Context(), db, func(ctx context.Context) error { return AfterCommit(ctx, nil) }); err == nil ||
		!strings.Contains(err.Error(), "nil") {
		t.Errorf("a nil hook: %v", err)
	}
	var called []int
	err = InTx(t.Context(), db, func(ctx context.Context) (err error) {
		for i := range 4 {
			err = errors.Join(err, AfterCommit(ctx, func(ctx context.Context) {
				called = append(called, i)
				if _, err := SQLTx(ctx); !errors.Is(err, ErrNoTx) || ctx.Err() != nil {
					t.Errorf("the context of a hook: %v, %v", err, ctx.Err())
				}
				if i == 1 {
					panic("hook")
				}
			}))
		}
		return err
	})
	if err != nil || len(called) != 4 || len(logged.Captured()[watermill.ErrorLogLevel]) != 1 {
		t.Errorf("%v, called %v, logged %v", err, called, logged.Captured())
	}
}

func TestInTxWithoutAFunction(t *testing.T) {
	db := (&fakeServer{}).db(t)
	if err := InTx(t.Context(), db, nil); err == nil || !strings.Contains(err.Error(), "nil") {
		t.Errorf("got %v", err)
	}
	if err := InTxWith(t.Context(), db, TxOptions{OnBegin: func(context.Context) error { return nil }}, nil); err == nil {
		t.Error("no error")
	}
	if name := (*DB)(nil).Name(); name != "" {
		t.Errorf("a nil handle is called %q", name)
	}
}

func TestPublishChecksEveryScope(t *testing.T) {
	db := (&fakeServer{}).db(t)
	pub, err := NewPublisher(db, PublisherConfig{WithoutTx: OwnTx}, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = InTx(t.Context(), db, func(ctx context.Context) error {
		alive, over := message.NewMessage("alive", nil), message.NewMessage("over", nil)
		alive.SetContext(ctx)
		if err := InTx(ctx, db, func(ctx context.Context) error { over.SetContext(ctx); return nil }); err != nil {
			return err
		}
		for _, msgs := range [][]*message.Message{{alive, over}, {over, alive}, {over}} {
			err := pub.Publish("topic", msgs...)
			if !errors.Is(err, ErrNoTx) || !strings.Contains(err.Error(), "has ended") ||
				!strings.Contains(err.Error(), "WithoutTx is for") {
				t.Errorf("got %v", err)
			}
		}
		return pub.Publish("topic", alive, alive)
	})
	if err != nil {
		t.Error(err)
	}
}

func TestNotifying(t *testing.T) {
	for _, disabled := range []bool{false, true} {
		notified := make(chan struct{}, 10)
		db := handleOf(t, sql.OpenDB(&fakeServer{answer: func(_ int, query string) error {
			if query == sqltext.Notify {
				notified <- struct{}{}
			}
			return nil
		}}), DBConfig{DisableNotify: disabled})
		pub, err := NewPublisher(db, PublisherConfig{WithoutTx: OwnTx}, nil)
		if err != nil {
			t.Fatal(err)
		}
		woken := 0
		defer (*core.DB)(db).OnCommit(func(core.Notification) { woken++ })()
		if err := pub.Publish("topic", message.NewMessage("id", nil)); err != nil {
			t.Fatal(err)
		}
		db.Wake()
		if woken != 2 {
			t.Errorf("woken %d times", woken)
		}
		if !disabled {
			select {
			case <-notified:
			case <-time.After(time.Minute):
				t.Error("nobody was notified")
			}
		} else if len(notified) > 0 {
			t.Error("notified although that is disabled")
		}
	}
}

// TestGoroutinesThatOutliveTheFunction and use its context while the transaction ends.
func TestGoroutinesThatOutliveTheFunction(t *testing.T) {
	server := &fakeServer{}
	db := server.db(t)
	pub, err := NewPublisher(db, PublisherConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 20 {
		err := InTx(t.Context(), db, func(ctx context.Context) error {
			for name, use := range map[string]func() error{
				"AfterCommit": func() error { return AfterCommit(ctx, func(context.Context) {}) },
				"Publish":     func() error { return pub.PublishContext(ctx, "topic", message.NewMessage("id", nil)) },
				"Capture":     func() error { return (*core.Publisher)(pub).Capture(ctx, "topic", message.NewMessage("id", nil)) },
				"TxQuerier":   func() error { _, err := (*core.DB)(db).Tx(ctx); return err },
				"SQLTx": func() error {
					_, err := SQLTx(ctx)
					return err
				},
			} {
				wg.Go(func() {
					for use() == nil {
					}
					if err := use(); !errors.Is(err, ErrNoTx) {
						t.Errorf("%s: %v", name, err)
					}
				})
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}
