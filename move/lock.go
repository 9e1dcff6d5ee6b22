package move

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

const (
	defaultLockTimeout = 10 * time.Second
	maxLockTimeout     = 24 * time.Hour
	askTimeout         = time.Second // which session has a lock: the whole table may be locked
)

// lock is what a batch may have to wait for.
type lock struct {
	of, in    string // "row with offset", and its table
	by        string // the cure
	statement string // returns which row it is, and whose
	args      []any
}

// rowLocked is the error of a statement that locks rows of the side that is left, and has waited for too long. It may
// be a lock of the whole table all the same.
type rowLocked struct{ error }

func (e rowLocked) Unwrap() error { return e.error }

// lockingRows marks the error of such a statement.
func lockingRows(err error) error {
	if text.SQLState(err) == text.LockNotAvailable {
		return rowLocked{err}
	}
	return err
}

// boundWaits keeps what follows in a transaction from waiting for longer; below a millisecond it is for ever.
func boundWaits(ctx context.Context, q drive.Querier, bound time.Duration) error {
	ms := strconv.FormatInt(bound.Milliseconds(), 10)
	return drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&ms) }, sqltext.BoundLockWaits, ms)
}

// explain says of a batch that has waited for too long what for, and which session may have it. It asks after the
// batch, whose wait the database has forgotten, so the other one may have ended meanwhile.
func explain(ctx context.Context, db *core.DB, o options, from side, err error) error {
	if text.SQLState(err) != text.LockNotAvailable {
		return err
	}
	if !errors.As(err, new(rowLocked)) {
		return fmt.Errorf("%w: something else that the batch needs was locked for longer than %s.LockTimeout (%s), "+
			"such as a whole table by ALTER TABLE, "+
			"or the list of forwarders by one that starts: wait until that has ended, and call again", err, o.config,
			o.lockTimeout)
	}
	l := from.lock()
	var row, role, application string
	var pid int64
	var open *float64
	_ = core.InTx(ctx, db, core.TxOptions{}, func(ctx context.Context) error { // the caller has an error already
		q, err := db.Tx(ctx)
		if err != nil {
			return err
		}
		if err := boundWaits(ctx, q, askTimeout); err != nil {
			return err
		}
		return drive.Collect(ctx, q, func(rows drive.Rows) error {
			return rows.Scan(&row, &pid, &role, &application, &open)
		}, l.statement, l.args...)
	})
	if pid == 0 {
		return fmt.Errorf("%w: rows of %s, or all of it, were locked for longer than %s.LockTimeout (%s): %s, and call again",
			err, l.in, o.config, o.lockTimeout, l.by)
	}
	began := ""
	if open != nil {
		began = fmt.Sprintf(", in a transaction that began %s ago",
			time.Duration(*open*float64(time.Second)).Round(time.Millisecond))
	}
	return fmt.Errorf("%w: %s %q in %s was locked for longer than %s.LockTimeout (%s), perhaps by process %d of "+
		"role %q, application %q%s: "+
		"%s, or end that session, if it is the one, with SELECT pg_terminate_backend(%d), and call again",
		err, l.of, row, l.in, o.config, o.lockTimeout, pid, role, application, began, l.by, pid)
}
