package move

import (
	"context"
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
	lockTimedOut       = "55P03"
)

// lock is what a batch may have to wait for.
type lock struct {
	of, in    string // "row with offset", and its table
	by        string // the cure
	statement string // returns which row it is, and whose
	args      []any
}

// boundWaits keeps the batch from waiting for ever.
func (o *options) boundWaits(ctx context.Context, q drive.Querier) error {
	if o.lockTimeout < 0 {
		return nil
	}
	ms := strconv.FormatInt(o.lockTimeout.Milliseconds(), 10)
	return drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&ms) }, sqltext.BoundLockWaits, ms)
}

// explain says of a batch that has waited for too long what for, and who has it. It asks after the batch, whose wait the database
// has forgotten, so the other one may have ended meanwhile.
func explain(ctx context.Context, db *core.DB, o options, from side, err error) error {
	if text.SQLState(err) != lockTimedOut {
		return err
	}
	l := from.lock()
	var row, role, application string
	var pid int64
	var open float64
	_ = drive.Collect(ctx, db, func(rows drive.Rows) error {
		return rows.Scan(&row, &pid, &role, &application, &open)
	}, l.statement, l.args...) // who asks has an error already
	if pid == 0 {
		return fmt.Errorf("%w: somebody had locked rows of %s for longer than %s.LockTimeout (%s): %s, and call again",
			err, l.in, o.config, o.lockTimeout, l.by)
	}
	return fmt.Errorf("%w: %s %q in %s is locked for longer than %s.LockTimeout (%s), by process %d of role %q, application %q, "+
		"in a transaction that began %s ago: %s, or end that session with SELECT pg_terminate_backend(%d), and call again",
		err, l.of, row, l.in, o.config, o.lockTimeout, pid, role, application,
		time.Duration(open*float64(time.Second)).Round(time.Millisecond), l.by, pid)
}
