// Package clean deletes old rows, in short statements with pauses that leave half of the time to others.
package clean

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Batch is the number of rows that one statement deletes.
const Batch = 1000

// Batches deletes batch after batch until one has fewer than [Batch] rows, with pauses as long as each batch took. It
// passes the number of rows of each to deleted, unless that is nil, and returns their sum, even with an error.
func Batches(
	ctx context.Context, batch func() (rows int64, err error), deleted func(rows int64) error,
) (rows int64, err error) {
	for {
		begun := time.Now()
		n, err := batch()
		if rows += n; err == nil && deleted != nil {
			err = deleted(n)
		}
		if err != nil || n < Batch {
			return rows, err
		}
		select {
		case <-ctx.Done():
			return rows, ctx.Err()
		case <-time.After(time.Since(begun)):
		}
	}
}

// Inbox deletes the rows of messages that, longer ago than the retention, were processed or last failed without having
// been handled since. The retention is counted back from a time (RFC 3339, "" = now). Dead messages stay. It returns
// the number of deleted rows, even with an error. timeout applies to each statement; deleted is as for [Batches].
func Inbox(
	ctx context.Context, db *core.DB, retention time.Duration, from string, timeout time.Duration,
	deleted func(rows int64) error,
) (rows int64, err error) {
	for _, statement := range []string{sqltext.CleanInbox, sqltext.CleanInboxFailed} {
		n, err := Batches(ctx, func() (int64, error) {
			queryCtx, cancel := context.WithTimeout(ctx, timeout)
			defer cancel()
			n, err := db.Exec(queryCtx, db.Render(statement), retention.Seconds(), Batch, from)
			if err != nil {
				return n, fmt.Errorf("clean the inbox: %w", explainInbox(err))
			}
			return n, nil
		}, deleted)
		if rows += n; err != nil {
			return rows, err
		}
	}
	return rows, nil
}

func explainInbox(err error) error {
	if text.SQLState(err) == text.InsufficientPrivilege {
		return fmt.Errorf("%w (grant the role SELECT, UPDATE and DELETE on the inbox, or set InboxRetention to -1)", err)
	}
	return text.Explain(err)
}
