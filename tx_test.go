package outbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/watermill-outbox/schema"
)

// stateError is an error of a server.
type stateError string

func (e stateError) Error() string    { return "SQLSTATE " + string(e) }
func (e stateError) SQLState() string { return string(e) }

// pqError is an error as lib/pq makes it.
type pqError struct{ Code, Severity string }

func (e *pqError) Error() string    { return e.Code }
func (e *pqError) SQLState() string { return e.Code }

// fakeServer stands behind database/sql and takes every statement, unless answer says otherwise.
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
	return FromSQL(db)
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

func TestCommitErrors(t *testing.T) {
	timeout := fmt.Errorf("timeout: %w", context.DeadlineExceeded)
	for _, test := range []struct {
		err      error
		pgx, sql bool // whether the outcome is unknown
	}{
		{&pgconn.PgError{Code: "23505"}, false, false},
		{&pgconn.PgError{Code: "40001"}, false, false},
		{&pgconn.PgError{Code: "57014"}, false, false},
		{&pgconn.PgError{Code: "08P01", Severity: "FATAL"}, true, true},
		{&pgconn.PgError{Code: "57P01", Severity: "FATAL"}, true, true},
		{&pgconn.PgError{Code: "40003"}, true, true},
		{&pgconn.PgError{Code: "58030", SeverityUnlocalized: "PANIC", Severity: "PANIK"}, true, true}, // it may be there after recovery
		{&pgconn.PgError{Code: "53100", Severity: "FATAL"}, true, true},
		{&pgconn.PgError{Code: "58030", Severity: "ERROR"}, false, false},
		{&pqError{"58030", "PANIC"}, true, true},
		{&pqError{"23505", "ERROR"}, false, false},
		{io.ErrUnexpectedEOF, true, true},
		{pgconn.ErrConnClosed, true, true},
		{driver.ErrBadConn, true, true},
		{timeout, true, true},
		{context.Canceled, true, true},
		{context.DeadlineExceeded, true, false}, // database/sql says that itself, before anything is sent
	} {
		if got := errors.Is(commitError(test.err), ErrCommitUnknown); got != test.pgx {
			t.Errorf("pgx: %v: unknown is %v", test.err, got)
		}
		if got := errors.Is(sqlCommitError(t.Context(), test.err), ErrCommitUnknown); got != test.sql {
			t.Errorf("database/sql: %v: unknown is %v", test.err, got)
		}
		if !errors.Is(commitError(test.err), test.err) || !errors.Is(sqlCommitError(t.Context(), test.err), test.err) {
			t.Errorf("%v is lost", test.err)
		}
	}
}

func TestLeaseConnectionLeavesAStandby(t *testing.T) {
	server := &fakeServer{answer: func(conn int, _ string) error {
		if conn == 1 {
			return stateError(readOnlyServer)
		}
		return nil
	}}
	q, closeIt, err := server.db(t).Dedicated(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer closeIt()
	if _, err := q.Exec(t.Context(), "update"); schema.SQLState(err) != readOnlyServer {
		t.Fatalf("got %v", err)
	}
	if _, err := q.Exec(t.Context(), "update"); err != nil || server.opened != 2 {
		t.Errorf("connection %d: %v", server.opened, err)
	}
}

func TestManagedTxAfterAFailedBegin(t *testing.T) {
	failed := errors.New("begin failed")
	tx := managedTx{tx: &pgxTx{begun: true, startErr: failed}}
	rows, err := tx.Query(t.Context(), "select 1")
	if !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	if rows == nil {
		t.Fatal("pgx.CollectRows closes rows without looking at the error")
	}
	if rows.Close(); rows.Next() || !errors.Is(rows.Err(), failed) {
		t.Errorf("rows that failed: %v", rows.Err())
	}
	if err := tx.QueryRow(t.Context(), "select 1").Scan(); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	if conn := tx.Conn(); conn != nil {
		t.Error("a connection without a transaction")
	}
}

func TestWithTxRefusesWhatIsNoTransaction(t *testing.T) {
	for _, bad := range []any{nil, (*sql.Tx)(nil), (*pgxpool.Tx)(nil), pgx.Tx(nil), "tx", &sql.Tx{}, &pgxpool.Tx{}} {
		if _, err := WithTx(t.Context(), bad); !errors.Is(err, ErrBadTx) {
			t.Errorf("%T: %v", bad, err)
		}
	}
}

func TestContextOfAnEndedSavepoint(t *testing.T) {
	db := (&fakeServer{}).db(t)
	pub, err := NewPublisher(db, PublisherConfig{DisableNotify: true}, nil)
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
			_, querierErr := db.TxQuerier(kept)
			for name, err := range map[string]error{
				"AfterCommit":     AfterCommit(kept, func() { t.Error("called") }),
				"SetRollbackOnly": SetRollbackOnly(kept),
				"Publish":         pub.Publish("topic", msg),
				"Capture":         pub.Capture(kept, "topic", msg),
				"TxQuerier":       querierErr,
			} {
				if !errors.Is(err, ErrNoTx) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if _, err := TxFromContext[*sql.Tx](kept); !errors.Is(err, ErrNoTx) {
				t.Error("TxFromContext yields the transaction")
			}
			if err := InTx(kept, db, func(context.Context) error { return nil }); !errors.Is(err, ErrTxEnded) {
				t.Errorf("InTx: %v", err)
			}
			if _, err := TxFromContext[*sql.Tx](ctx); err != nil {
				t.Error("the transaction around it has ended as well")
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// told counts what observers are told.
type told struct {
	txs    []TxEnd
	writes []Write
}

func (o *told) TxEnded(_ context.Context, end TxEnd) { o.txs = append(o.txs, end) }
func (o *told) Written(_ context.Context, w Write)   { o.writes = append(o.writes, w) }

func TestObserversAreToldOfPanics(t *testing.T) {
	db := (&fakeServer{}).db(t)
	for name, end := range map[string]func(){"panic": func() { panic("boom") }, "Goexit": runtime.Goexit} {
		o := &told{}
		pub, err := NewPublisher(db, PublisherConfig{Observer: o}, nil)
		if err != nil {
			t.Fatal(err)
		}
		var recovered any
		var wg sync.WaitGroup
		wg.Go(func() {
			defer func() { recovered = recover() }()
			_ = InTxWith(t.Context(), db, TxOptions{Observer: o}, func(ctx context.Context) error {
				if err := pub.Capture(ctx, "topic", message.NewMessage("id", nil)); err != nil {
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
		if len(o.txs) != 1 || o.txs[0].Err == nil || len(o.writes) != 1 {
			t.Errorf("%s: told of %v and %v", name, o.txs, o.writes)
		}
	}
}

func TestStatementsAreSentWithoutADisabledCache(t *testing.T) {
	for capacity, want := range map[int]pgx.QueryExecMode{512: pgx.QueryExecModeCacheDescribe, 0: pgx.QueryExecModeExec} {
		cfg, err := pgxpool.ParseConfig("postgres://nobody@127.0.0.1:1/none")
		if err != nil {
			t.Fatal(err)
		}
		cfg.ConnConfig.DescriptionCacheCapacity = capacity
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if mode := newPgxBackend(pool).mode; len(mode) != 1 || mode[0] != want {
			t.Errorf("capacity %d: %v", capacity, mode)
		}
		pool.Close()
	}
}

func TestHooks(t *testing.T) {
	db := (&fakeServer{}).db(t)
	if err := InTx(t.Context(), db, func(ctx context.Context) error { return AfterCommit(ctx, nil) }); err == nil || !strings.Contains(err.Error(), "nil") {
		t.Errorf("a nil hook: %v", err)
	}
	var called []int
	var recovered any
	func() {
		defer func() { recovered = recover() }()
		err := InTx(t.Context(), db, func(ctx context.Context) (err error) {
			for i := range 4 {
				err = errors.Join(err, AfterCommit(ctx, func() {
					called = append(called, i)
					if i == 1 {
						panic("hook")
					}
				}))
			}
			return err
		})
		t.Errorf("InTx returned %v", err)
	}()
	if recovered != "hook" || len(called) != 4 {
		t.Errorf("recovered %v, called %v", recovered, called)
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

func TestPublishLooksAtEveryScope(t *testing.T) {
	db := (&fakeServer{}).db(t)
	pub, err := NewPublisher(db, PublisherConfig{DisableNotify: true, WithoutTx: OwnTx}, nil)
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
			if !errors.Is(err, ErrNoTx) || !strings.Contains(err.Error(), "has ended") || !strings.Contains(err.Error(), "WithoutTx is for") {
				t.Errorf("got %v", err)
			}
		}
		return pub.Publish("topic", alive, alive)
	})
	if err != nil {
		t.Error(err)
	}
}

// TestOnePublisherThatNotifiesIsEnough has two of one table, in either order.
func TestOnePublisherThatNotifiesIsEnough(t *testing.T) {
	for _, order := range [][]bool{{true, false}, {false, true}} {
		notified := make(chan struct{}, 1)
		db := (&fakeServer{answer: func(_ int, query string) error {
			if query == notify {
				notified <- struct{}{}
			}
			return nil
		}}).db(t)
		err := InTx(t.Context(), db, func(ctx context.Context) error {
			for _, disabled := range order {
				pub, err := NewPublisher(db, PublisherConfig{DisableNotify: disabled}, nil)
				if err != nil {
					return err
				}
				if err := pub.PublishContext(ctx, "topic", message.NewMessage("id", nil)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-notified:
		case <-time.After(time.Minute):
			t.Errorf("%v: nobody was notified", order)
		}
	}
}

// TestGoroutinesThatOutliveTheFunction use its context while the transaction ends.
func TestGoroutinesThatOutliveTheFunction(t *testing.T) {
	server := &fakeServer{}
	db := server.db(t)
	pub, err := NewPublisher(db, PublisherConfig{DisableNotify: true}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 20 {
		err := InTx(t.Context(), db, func(ctx context.Context) error {
			for name, use := range map[string]func() error{
				"AfterCommit": func() error { return AfterCommit(ctx, func() {}) },
				"Publish":     func() error { return pub.PublishContext(ctx, "topic", message.NewMessage("id", nil)) },
				"Capture":     func() error { return pub.Capture(ctx, "topic", message.NewMessage("id", nil)) },
				"TxQuerier":   func() error { _, err := db.TxQuerier(ctx); return err },
				"TxFromContext": func() error {
					_, err := TxFromContext[*sql.Tx](ctx)
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
