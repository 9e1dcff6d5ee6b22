package outbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/millrace-go/watermill-outbox/schema"
)

type sqlBackend struct {
	db   *sql.DB
	mode []any // how statements outside transactions are sent: see planEachTime
}

func newSQLBackend(db *sql.DB) sqlBackend {
	b := sqlBackend{db: db}
	if _, ok := db.Driver().(*stdlib.Driver); ok {
		b.mode = planEachTime // other drivers do not keep plans, and do not know pgx's modes
	}
	return b
}

// execQuerier is what *sql.DB, *sql.Conn and *sql.Tx have in common.
type execQuerier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

func sqlExec(ctx context.Context, on execQuerier, query string, args []any) (int64, error) {
	result, err := on.ExecContext(ctx, query, arrayArgs(args)...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func sqlQuery(ctx context.Context, on execQuerier, query string, args []any) (schema.Rows, error) {
	rows, err := on.QueryContext(ctx, query, arrayArgs(args)...)
	if err != nil {
		return nil, err
	}
	return rows, nil
}

func (b sqlBackend) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	n, err := sqlExec(ctx, b.db, query, slices.Concat(b.mode, args))
	return n, b.explain(err)
}

func (b sqlBackend) Query(ctx context.Context, query string, args ...any) (schema.Rows, error) {
	rows, err := sqlQuery(ctx, b.db, query, slices.Concat(b.mode, args))
	return rows, b.explain(err)
}

func (b sqlBackend) explain(err error) error {
	if err == nil {
		return nil
	}
	stats := b.db.Stats()
	return explainPool(err, stats.InUse, stats.MaxOpenConnections)
}

func (b sqlBackend) begin(ctx context.Context, opts TxOptions) (nativeTx, error) {
	tx, err := b.db.BeginTx(ctx, &sql.TxOptions{Isolation: opts.Isolation, ReadOnly: opts.ReadOnly})
	if err != nil {
		return nil, b.explain(err)
	}
	return &sqlTx{tx: tx}, nil
}

func (b sqlBackend) dedicated(context.Context) (schema.Querier, func(), error) {
	c := &sqlConn{db: b.db, mode: b.mode}
	return c, c.close, nil
}

func (b sqlBackend) reset() {}

func (b sqlBackend) listen(context.Context, string, func(string)) error { return ErrNoListen }

// sqlTx is a transaction of database/sql. The handler gets the *sql.Tx itself, so that it was ended too
// early can only be found afterwards.
type sqlTx struct {
	tx      *sql.Tx
	hasMark bool
	failed  bool // a statement of ours: the transaction may be aborted
}

func (t *sqlTx) handOut(ctx context.Context) (any, error) { return t.tx, t.mark(ctx) }

// mark is not made with BEGIN, because it is a round trip, and what is never handed out needs none.
func (t *sqlTx) mark(ctx context.Context) error {
	if t.hasMark {
		return nil
	}
	_, err := t.Exec(ctx, markTx)
	t.hasMark = err == nil
	return err
}

func (t *sqlTx) marked() bool { return t.hasMark }

// later: nothing is gained by waiting, and a savepoint of the user's could not be seen.
func (t *sqlTx) later() bool { return false }

func (t *sqlTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	n, err := sqlExec(ctx, t.tx, query, args)
	t.failed = t.failed || err != nil
	return n, explainBusy(err)
}

func (t *sqlTx) Query(ctx context.Context, query string, args ...any) (schema.Rows, error) {
	rows, err := sqlQuery(ctx, t.tx, query, args)
	t.failed = t.failed || err != nil
	return rows, explainBusy(err)
}

func (t *sqlTx) commit(ctx context.Context, _ []statement) error { // nothing has waited
	if err := t.checkOpen(ctx); err != nil {
		_ = t.rollback(ctx) // a driver may complain that there is none to roll back
		return err
	}
	return sqlCommitError(ctx, t.tx.Commit())
}

// sqlCommitError tells an error of Commit that proves a rollback from one that leaves the outcome open.
func sqlCommitError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone):
		return endedError(ctx, err)
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return err
	case err == context.DeadlineExceeded: // the bare one comes from before anything was sent
		return err
	case schema.SQLState(err) != "" && !endsConnection(err):
		return err
	}
	return fmt.Errorf("%w: %w", ErrCommitUnknown, err)
}

// checkOpen finds a handler that ended the transaction, and one that went on after an error. Drivers differ in what they
// make of either at COMMIT.
func (t *sqlTx) checkOpen(ctx context.Context) error {
	check := checkTx
	switch {
	case t.hasMark:
	case t.failed:
		check = "select 1"
	default:
		return nil
	}
	_, err := t.tx.ExecContext(ctx, check)
	return endedError(ctx, explainBusy(checked(err)))
}

// endedError turns ErrTxDone into what caused it: the context's end, or a handler that ended the transaction.
func endedError(ctx context.Context, err error) error {
	if !errors.Is(err, sql.ErrTxDone) {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return ErrTxEnded
}

func (t *sqlTx) rollback(context.Context) error {
	if err := t.tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("rollback: %w", err)
	}
	return nil
}

// sqlConn is one connection out of a pool, replaced when it breaks.
type sqlConn struct {
	db   *sql.DB
	mode []any
	mu   sync.Mutex
	conn *sql.Conn
}

func (c *sqlConn) get(ctx context.Context) (*sql.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		return c.conn, nil
	}
	conn, err := c.db.Conn(ctx)
	c.conn = conn
	return conn, err
}

// dropped closes a connection after an error that no SQLSTATE explains, or that says that it leads to a standby, so that
// the next call opens another.
func (c *sqlConn) dropped(err error) error {
	state := schema.SQLState(err)
	if err != nil && (state == "" || state == readOnlyServer || endsConnection(err) || errors.Is(err, driver.ErrBadConn)) {
		c.close()
	}
	return err
}

func (c *sqlConn) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.conn != nil {
		// Its Close would only give it back, and the pool would hand it out again.
		_ = c.conn.Raw(func(any) error { return driver.ErrBadConn })
		c.conn = nil
	}
}

func (c *sqlConn) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	conn, err := c.get(ctx)
	if err != nil {
		return 0, err
	}
	n, err := sqlExec(ctx, conn, query, slices.Concat(c.mode, args))
	return n, c.dropped(err)
}

func (c *sqlConn) Query(ctx context.Context, query string, args ...any) (schema.Rows, error) {
	conn, err := c.get(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := sqlQuery(ctx, conn, query, slices.Concat(c.mode, args))
	return rows, c.dropped(err)
}

// arrayArgs writes slices as Postgres array literals, which every driver can send as text.
func arrayArgs(args []any) []any {
	out := make([]any, len(args))
	for i, a := range args {
		switch v := a.(type) {
		case []int64:
			out[i] = arrayLiteral(v, func(b *strings.Builder, e int64) { b.WriteString(strconv.FormatInt(e, 10)) })
		case []float64:
			out[i] = arrayLiteral(v, func(b *strings.Builder, e float64) { b.WriteString(strconv.FormatFloat(e, 'g', -1, 64)) })
		case []bool:
			out[i] = arrayLiteral(v, func(b *strings.Builder, e bool) { b.WriteString(strconv.FormatBool(e)) })
		case []string:
			out[i] = arrayLiteral(v, writeQuoted)
		case [][]byte:
			out[i] = arrayLiteral(v, func(b *strings.Builder, e []byte) { fmt.Fprintf(b, `"\\x%x"`, e) })
		default:
			out[i] = a
		}
	}
	return out
}

func arrayLiteral[T any](elements []T, write func(*strings.Builder, T)) any {
	if elements == nil {
		return nil
	}
	var b strings.Builder
	b.WriteByte('{')
	for i, e := range elements {
		if i > 0 {
			b.WriteByte(',')
		}
		write(&b, e)
	}
	b.WriteByte('}')
	return b.String()
}

func writeQuoted(b *strings.Builder, s string) {
	b.WriteByte('"')
	for i := range len(s) {
		if s[i] == '"' || s[i] == '\\' {
			b.WriteByte('\\')
		}
		b.WriteByte(s[i])
	}
	b.WriteByte('"')
}
