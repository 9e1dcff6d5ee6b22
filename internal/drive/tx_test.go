package drive

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// stateError is an error of a server.
type stateError string

func (e stateError) Error() string    { return "SQLSTATE " + string(e) }
func (e stateError) SQLState() string { return string(e) }

// pqError looks like an error of lib/pq.
type pqError struct{ Code, Severity string }

func (e *pqError) Error() string    { return e.Code }
func (e *pqError) SQLState() string { return e.Code }

// fakeServer is a server behind database/sql that accepts every statement, unless reply returns something else.
type fakeServer struct {
	opened int
	reply  func(conn int, query string) error
}

func (s *fakeServer) Connect(context.Context) (driver.Conn, error) {
	s.opened++
	return &fakeConn{s, s.opened}, nil
}
func (s *fakeServer) Driver() driver.Driver { return nil }

func (s *fakeServer) pool(t *testing.T) Pool {
	t.Helper()
	db := sql.OpenDB(s)
	t.Cleanup(func() { _ = db.Close() })
	return NewSQL(db)
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
	if c.server.reply != nil {
		if err := c.server.reply(c.number, query); err != nil {
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

func TestCommitErrors(t *testing.T) {
	timeout := fmt.Errorf("timeout: %w", context.DeadlineExceeded)
	for _, test := range []struct {
		err      error
		pgx, sql bool // the outcome is unknown
	}{
		{&pgconn.PgError{Code: "23505"}, false, false},
		{&pgconn.PgError{Code: "40001"}, false, false},
		{&pgconn.PgError{Code: "57014"}, false, false},
		{&pgconn.PgError{Code: "08P01", Severity: "FATAL"}, true, true},
		{&pgconn.PgError{Code: "57P01", Severity: "FATAL"}, true, true},
		{&pgconn.PgError{Code: "40003"}, true, true},
		// the transaction may exist after recovery
		{&pgconn.PgError{Code: "58030", SeverityUnlocalized: "PANIC", Severity: "PANIK"}, true, true},
		{&pgconn.PgError{Code: "53100", Severity: "FATAL"}, true, true},
		{&pgconn.PgError{Code: "58030", Severity: "ERROR"}, false, false},
		{&pqError{"58030", "PANIC"}, true, true},
		{&pqError{"23505", "ERROR"}, false, false},
		{io.ErrUnexpectedEOF, true, true},
		{pgconn.ErrConnClosed, true, true},
		{driver.ErrBadConn, true, true},
		{timeout, true, true},
		{context.Canceled, true, true},
		{context.DeadlineExceeded, true, false}, // database/sql itself returns it before anything is sent
	} {
		if got := errors.Is(commitError(test.err), ErrCommitUnknown); got != test.pgx {
			t.Errorf("pgx: %v: unknown is %v", test.err, got)
		}
		if got := errors.Is(sqlCommitError(t.Context(), test.err), ErrCommitUnknown); got != test.sql {
			t.Errorf("database/sql: %v: unknown is %v", test.err, got)
		}
		if !errors.Is(commitError(test.err), test.err) || !errors.Is(sqlCommitError(t.Context(), test.err), test.err) {
			t.Errorf("%v is not wrapped", test.err)
		}
	}
}

func TestLeaseConnectionLeavesAStandby(t *testing.T) {
	server := &fakeServer{reply: func(conn int, _ string) error {
		if conn == 1 {
			return stateError(ReadOnlyServer)
		}
		return nil
	}}
	q, closeIt, err := server.pool(t).Dedicated(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer closeIt()
	if _, err := q.Exec(t.Context(), "update"); text.SQLState(err) != ReadOnlyServer {
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
		t.Fatal("pgx.CollectRows closes rows without checking the error")
	}
	if rows.Close(); rows.Next() || !errors.Is(rows.Err(), failed) {
		t.Errorf("failed rows: %v", rows.Err())
	}
	if err := tx.QueryRow(t.Context(), "select 1").Scan(); !errors.Is(err, failed) {
		t.Errorf("got %v", err)
	}
	if conn := tx.Conn(); conn != nil {
		t.Error("a connection without a transaction")
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
		if mode := newPgxPool(pool).mode; len(mode) != 1 || mode[0] != want {
			t.Errorf("capacity %d: %v", capacity, mode)
		}
		pool.Close()
	}
}
