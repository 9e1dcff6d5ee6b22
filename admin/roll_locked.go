package admin

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

const (
	lockTries = 200
	lockPause = 10 * time.Millisecond

	// What has no name for NOWAIT is waited for with the locks of its leaf: seldom.
	crowdedTries = 3
	crowdedPause = 500 * time.Millisecond

	exclusive = "ACCESS EXCLUSIVE" // against all others
	changes   = "SHARE UPDATE EXCLUSIVE"
	reads     = "ACCESS SHARE" // against those who have all for themselves
	writers   = "SHARE"        // against those who write

	lockNotAvailable = "55P03"
)

// lock is one to be had.
type lock struct{ table, mode string }

// errAgain ends a transaction that begins anew.
// Cause: the rows changed before they were locked.
// Cure: none is needed.
var errAgain = errors.New("changed meanwhile")

// rawTx is a transaction in the simple protocol, with locks.
type rawTx struct {
	ctx context.Context
	pg  *pgconn.PgConn
}

// do runs statements and returns the columns of the last row, if there is one.
func (t rawTx) do(statement string) (columns []string, err error) {
	results, err := t.pg.Exec(t.ctx, statement).ReadAll()
	for _, result := range results {
		for _, row := range result.Rows {
			columns = columns[:0]
			for _, c := range row {
				columns = append(columns, string(c))
			}
		}
	}
	return columns, err
}

// patient runs fn, which reads all of a leaf, without Config.QueryTimeout and without the role's statement_timeout. It
// fails with lockNotAvailable if another session has the leaf for itself.
func (r *roll) patient(ctx context.Context, fn func(drive.Querier) error) error {
	return r.db.Transact(ctx, func(q drive.Querier) error {
		for _, s := range []string{sqltext.NoTimeout, sqltext.RollPatience} {
			if _, err := q.Exec(ctx, s); err != nil {
				return err
			}
		}
		return fn(q)
	})
}

// locked runs fn in a transaction that has some locks, and commits it. It waits for none of them: it tries again for
// about 2 seconds, and returns false if they could not be had together in that time. If they were had and fn found
// something else locked, it tries again only twice.
func (r *roll) locked(ctx context.Context, locks []lock, fn func(rawTx) error) (had bool, err error) {
	begin := sqltext.RollBegin
	for _, l := range locks {
		begin += strings.NewReplacer("{leaf}", l.table, "{mode}", l.mode).Replace(sqltext.RollLock)
	}
	err = r.db.WithRawConn(ctx, func(pg *pgconn.PgConn) error {
		t := rawTx{ctx, pg}
		for tries, crowded := 0, 0; tries < lockTries && crowded < crowdedTries; tries++ {
			pause := lockPause
			_, err := t.do(begin)
			if err == nil {
				crowded++
				pause = crowdedPause
				err = fn(t)
			}
			if err == nil {
				_, err = t.do("COMMIT")
				had = err == nil
				return err
			}
			if text.SQLState(err) != lockNotAvailable {
				return err
			}
			if _, err = t.do("ROLLBACK"); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(pause):
			}
		}
		return nil
	})
	return had, explain(err)
}
