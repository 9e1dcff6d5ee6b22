package drive

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

func beginSQL(opts TxOptions) (string, error) {
	b := "begin"
	switch opts.Isolation {
	case sql.LevelDefault:
	case sql.LevelReadUncommitted:
		b += " isolation level read uncommitted"
	case sql.LevelReadCommitted:
		b += " isolation level read committed"
	case sql.LevelRepeatableRead, sql.LevelSnapshot:
		b += " isolation level repeatable read"
	case sql.LevelSerializable:
		b += " isolation level serializable"
	default:
		return "", fmt.Errorf("postgres has no isolation level %s", opts.Isolation)
	}
	return b, nil
}

// pgxTx is a transaction that begins with its first statement: BEGIN shares its round trip, and COMMIT shares the round
// trip of the last pending statement.
type pgxTx struct {
	conn     *pgxpool.Conn
	beginSQL string
	mode     []any        // how statements outside transactions are sent
	overdue  func() error // of closeOverdue
	begun    bool
	ended    bool
	handed   bool  // for user code
	startErr error // the error of BEGIN

	userSavepoints userSavepoints
	large          pgx.Tx // for LargeObjects
}

func (t *pgxTx) start(ctx context.Context) error {
	if t.begun || t.ended {
		return t.startErr
	}
	t.begun = true
	_, t.startErr = t.conn.Exec(ctx, t.beginSQL+"; "+sqltext.MarkTx) // pgx sends it as one simple query
	return t.startErr
}

func (t *pgxTx) usable() error {
	if t.ended {
		return pgx.ErrTxClosed
	}
	return t.startErr
}

func (t *pgxTx) HandOut(ctx context.Context) (any, error) {
	if err := t.start(ctx); err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	t.handed = true
	return managedTx{tx: t}, nil
}

func (t *pgxTx) Mark(context.Context) error { return nil } // sent together with BEGIN
func (t *pgxTx) Marked() bool               { return t.begun }

func (t *pgxTx) Later() bool { return !t.userSavepoints.maybe() }

func (t *pgxTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	if t.begun && t.usable() == nil {
		tag, err := t.conn.Exec(ctx, query, args...)
		return tag.RowsAffected(), explainBusy(err)
	}
	rows, err := t.Query(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	err = rows.Close()
	return rows.(interface{ CommandTag() pgconn.CommandTag }).CommandTag().RowsAffected(), err
}

func (t *pgxTx) Query(ctx context.Context, query string, args ...any) (Rows, error) {
	if err := t.usable(); err != nil {
		return nil, err
	}
	if t.begun {
		rows, err := t.conn.Query(ctx, query, args...)
		if err != nil {
			return nil, explainBusy(err)
		}
		return pgxRows{rows}, nil
	}
	t.begun = true
	batch := &pgx.Batch{}
	batch.Queue(t.beginSQL)
	batch.Queue(sqltext.MarkTx)
	before := batch.Len()
	batch.Queue(query, args...)
	results := t.conn.SendBatch(ctx, batch)
	for range before {
		if _, err := results.Exec(); err != nil {
			return nil, t.notBegun(err, results)
		}
	}
	rows, err := results.Query()
	if err != nil {
		return nil, t.notBegun(err, results)
	}
	return batchRows{pgxRows{rows}, results}, nil
}

func (t *pgxTx) QueryBeforeBegin(ctx context.Context, query string, args ...any) (rows Rows, ok bool, err error) {
	if t.begun || t.ended {
		return nil, false, nil
	}
	found, err := t.conn.Query(ctx, query, slices.Concat(t.mode, args)...)
	if err != nil {
		return nil, false, err
	}
	return pgxRows{found}, true, nil
}

// notBegun makes the transaction unusable if the first statement was rejected before BEGIN ran: later statements would
// commit on their own.
func (t *pgxTx) notBegun(err error, results pgx.BatchResults) error {
	results.Close() // Err returns the same error
	if t.conn.Conn().PgConn().TxStatus() == 'I' {
		t.startErr = err
	}
	return err
}

func (t *pgxTx) Hints() bool { return true }

func (t *pgxTx) Commit(ctx context.Context, pending, hints []Statement) error {
	if t.ended {
		return ErrTxEnded
	}
	if !t.begun && len(pending) == 0 {
		t.release()
		return nil
	}
	if t.startErr != nil {
		return errors.Join(t.startErr, t.Rollback(ctx))
	}
	if t.begun {
		if err := t.checkOpen(); err != nil {
			return errors.Join(err, t.Rollback(ctx))
		}
	}
	if t.begun && len(pending) == 0 {
		pending = []Statement{{SQL: sqltext.CheckTx}}
	}
	for len(pending) > 1 {
		if _, err := t.Exec(ctx, pending[0].SQL, pending[0].Args...); err != nil {
			return errors.Join(commitError(Checked(ctx, err)), t.Rollback(ctx))
		}
		pending = pending[1:]
	}
	return t.pipelineCommit(ctx, pending, hints)
}

// checkOpen detects a handler that sent COMMIT or ROLLBACK as plain SQL, or that continued after an error, so that
// COMMIT would roll back.
func (t *pgxTx) checkOpen() error {
	conn := t.conn.Conn()
	switch {
	case conn.IsClosed():
		return pgconn.ErrConnClosed
	case conn.PgConn().IsBusy():
		return errRowsOpen
	}
	switch conn.PgConn().TxStatus() {
	case 'I':
		return ErrTxEnded
	case 'E':
		return errAborted
	}
	return nil
}

func (t *pgxTx) pipelineCommit(ctx context.Context, pending, hints []Statement) error {
	batch := &pgx.Batch{}
	if !t.begun {
		t.begun = true
		batch.Queue(t.beginSQL)
	}
	for _, s := range pending {
		batch.Queue(s.SQL, s.Args...)
	}
	before := batch.Len()
	batch.Queue("commit")
	for _, s := range hints { // after COMMIT, so that no hint holds a lock while the transaction is made durable
		batch.Queue(s.SQL, s.Args...)
	}

	results := t.conn.SendBatch(ctx, batch)
	for range before {
		if _, err := results.Exec(); err != nil {
			results.Close() // Err returns the same error
			return errors.Join(commitError(Checked(ctx, err)), t.Rollback(ctx))
		}
	}
	tag, err := results.Exec()
	results.Close() // nothing can change the outcome after the reply to COMMIT
	if err != nil {
		return errors.Join(commitError(err), t.Rollback(ctx))
	}
	t.release()
	if tag.String() != "COMMIT" {
		return pgx.ErrTxCommitRollback
	}
	return committed(ctx)
}

// commitError distinguishes an error that proves a rollback from an unknown outcome.
func commitError(err error) error {
	switch {
	case errors.Is(err, ErrTxEnded), errors.Is(err, errAborted):
		return err
	case text.SQLState(err) != "":
		// An ERROR rolled the transaction back. An error that ends the connection may follow the commit, even as the reply to
		// a statement before COMMIT: a pooler replies in place of a server that it lost.
		if !endsConnection(err) {
			return err
		}
	case pgconn.SafeToRetry(err) && !errors.Is(err, pgconn.ErrConnClosed):
		return err // nothing was sent; but pgx also returns true for a connection that broke while reading the reply
	}
	return fmt.Errorf("%w: %w", ErrCommitUnknown, err)
}

func (t *pgxTx) Ended(ctx context.Context) bool {
	if !t.handed || t.usable() != nil || t.overdue() != nil {
		return false
	}
	err := t.checkOpen()
	if err == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), RollbackTimeout)
		defer cancel()
		_, err = t.conn.Exec(ctx, sqltext.CheckTx)
		err = Checked(ctx, err)
	}
	return errors.Is(err, ErrTxEnded)
}

func (t *pgxTx) Rollback(ctx context.Context) error {
	if t.ended {
		return nil
	}
	defer t.release()
	if err := t.overdue(); err != nil {
		return err
	}
	if !t.begun || t.conn.Conn().IsClosed() || t.conn.Conn().PgConn().TxStatus() == 'I' {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), RollbackTimeout)
	defer cancel()
	if _, err := t.conn.Exec(ctx, "rollback"); err != nil {
		return fmt.Errorf("rollback: %w", err) // release drops a connection that is still in a transaction
	}
	return nil
}

func (t *pgxTx) release() {
	t.ended = true
	if t.large != nil { // closes it without sending anything
		over, cancel := context.WithCancel(context.Background())
		cancel()
		_ = t.large.Commit(over)
	}
	if t.overdue() != nil {
		_ = t.conn.Conn().Close(context.Background()) // so that the pool drops it
	}
	t.conn.Release()
}

// pgxRows turns pgx's rows into Rows.
type pgxRows struct{ pgx.Rows }

func (r pgxRows) Close() error {
	r.Rows.Close()
	return r.Rows.Err()
}

// batchRows also ends its batch when it is closed.
type batchRows struct {
	pgxRows
	results pgx.BatchResults
}

func (r batchRows) Close() error {
	err := r.pgxRows.Close()
	return errors.Join(err, r.results.Close())
}
