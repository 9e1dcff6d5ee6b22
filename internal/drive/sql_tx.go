package drive

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// sqlTx is a transaction of database/sql. The handler gets the *sql.Tx itself, so a premature end can only be detected
// afterwards.
type sqlTx struct {
	tx      *sql.Tx
	hasMark bool
	failed  bool // one of our statements failed: the transaction may be aborted
}

func (t *sqlTx) HandOut(ctx context.Context) (any, error) { return t.tx, t.Mark(ctx) }

// Mark is not part of BEGIN, because it costs a round trip, which a transaction that is never handed out does not need.
func (t *sqlTx) Mark(ctx context.Context) error {
	if t.hasMark {
		return nil
	}
	_, err := t.Exec(ctx, sqltext.MarkTx)
	t.hasMark = err == nil
	return err
}

func (t *sqlTx) Marked() bool { return t.hasMark }

// Later returns false: waiting gains nothing, and a savepoint of the user would be invisible.
func (t *sqlTx) Later() bool { return false }

func (t *sqlTx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	n, err := sqlExec(ctx, t.tx, query, args)
	t.failed = t.failed || err != nil
	return n, explainBusy(err)
}

func (t *sqlTx) Query(ctx context.Context, query string, args ...any) (Rows, error) {
	rows, err := sqlQuery(ctx, t.tx, query, args)
	t.failed = t.failed || err != nil
	return rows, explainBusy(err)
}

// Hints returns false: database/sql returns the connection to the pool at COMMIT.
func (t *sqlTx) Hints() bool { return false }

func (t *sqlTx) Commit(ctx context.Context, _, _ []Statement) error { // no statement is pending
	if err := t.checkOpen(ctx); err != nil {
		_ = t.Rollback(ctx) // a driver may complain about a missing transaction
		return err
	}
	return sqlCommitError(ctx, t.tx.Commit())
}

// sqlCommitError distinguishes an error of Commit that proves a rollback from an unknown outcome.
func sqlCommitError(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return committed(ctx)
	case errors.Is(err, sql.ErrTxDone):
		return Checked(ctx, err)
	case errors.Is(err, pgx.ErrTxCommitRollback):
		return err
	case err == context.DeadlineExceeded: // the bare error means that nothing was sent
		return err
	case text.SQLState(err) != "" && !endsConnection(err):
		return err
	}
	return fmt.Errorf("%w: %w", ErrCommitUnknown, err)
}

// checkOpen detects a handler that ended the transaction, or that continued after an error. Drivers differ in how they
// report either at COMMIT.
func (t *sqlTx) checkOpen(ctx context.Context) error {
	check := sqltext.CheckTx
	switch {
	case t.hasMark:
	case t.failed:
		check = "select 1"
	default:
		return nil
	}
	_, err := t.tx.ExecContext(ctx, check)
	return explainBusy(Checked(ctx, err))
}

func (t *sqlTx) Ended(ctx context.Context) bool { return errors.Is(t.checkOpen(ctx), ErrTxEnded) }

func (t *sqlTx) Rollback(context.Context) error {
	if err := t.tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("rollback: %w", err)
	}
	return nil
}
