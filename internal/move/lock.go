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
	holderTimeout      = time.Second // for finding the session that holds a lock: the whole table may be locked
)

// lock describes the row locks that a batch may have to wait for.
type lock struct {
	of, in    string // "row with offset", and the table of the row
	by        string // how to end the wait
	statement string // returns the locked row and the session that holds the lock
	args      []any
}

// rowLocked is the error of a statement that waited too long to lock rows of the source. The lock that it waited for
// may nevertheless be one on the whole table.
type rowLocked struct{ error }

func (e rowLocked) Unwrap() error { return e.error }

// lockingRows returns a rowLocked if err is a lock timeout.
func lockingRows(err error) error {
	if text.SQLState(err) == text.LockNotAvailable {
		return rowLocked{err}
	}
	return err
}

// boundWaits sets the lock_timeout of the transaction. A bound below a millisecond means no limit.
func boundWaits(ctx context.Context, q drive.Querier, bound time.Duration) error {
	ms := strconv.FormatInt(bound.Milliseconds(), 10)
	return drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&ms) }, sqltext.BoundLockWaits, ms)
}

// explain adds to the error of a batch that waited too long which row it waited for and which session may hold the
// lock. It looks only after the batch has failed, so that session may have ended meanwhile.
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
	_ = core.InTx(ctx, db, core.TxOptions{}, func(ctx context.Context) error { // the caller already has an error
		q, err := db.Tx(ctx)
		if err != nil {
			return err
		}
		if err := boundWaits(ctx, q, holderTimeout); err != nil {
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
