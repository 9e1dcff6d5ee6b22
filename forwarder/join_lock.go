package forwarder

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

const (
	// joinIdle bounds how long a forwarder may pause between two statements while others wait to join. A busy machine may
	// take a second or two.
	joinIdle = 5 * time.Second
	// findHolder bounds the search for the session that has the lock.
	findHolder = 2 * time.Second
)

// withJoinLock runs fn in a transaction during which no forwarder joins or is forgotten. If its process vanishes, the
// lock is released after half of the query timeout at most; the others wait longer than that.
func (e *engine) withJoinLock(ctx context.Context, fn func(ctx context.Context, q drive.Querier) error) error {
	limited, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	locked := false
	err := e.db.Transact(limited, func(q drive.Querier) error {
		idle, wait := min(joinIdle, e.cfg.QueryTimeout/2), e.cfg.QueryTimeout*3/4
		if _, err := q.Exec(limited, e.sql.lock, milliseconds(idle), milliseconds(wait)); err != nil {
			return err
		}
		locked = true
		return fn(limited, q)
	})
	if !locked && (text.SQLState(err) == text.LockNotAvailable || errors.Is(err, context.DeadlineExceeded)) {
		return e.blamed(ctx, err)
	}
	return err
}

// blamed adds to an error of waiting for the lock the session that has it.
func (e *engine) blamed(ctx context.Context, waiting error) error {
	ctx, cancel := context.WithTimeout(ctx, findHolder)
	defer cancel()
	err := waiting
	_ = drive.Collect(ctx, e.db, func(rows drive.Rows) error { // if this fails, the session is left out
		var pid int64
		var what string
		var idle float64
		if err := rows.Scan(&pid, &what, &idle); err != nil {
			return err
		}
		err = fmt.Errorf("%w: the session with pid %d (%s for %.0f s) holds the lock under which forwarders join: "+
			"end it with SELECT pg_terminate_backend(%d)", waiting, pid, what, idle, pid)
		return nil
	}, e.sql.lockHolder)
	return err
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(max(d.Milliseconds(), 1), 10) }
