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

// Inbox deletes the rows of messages that, longer ago than the retention, were processed or first failed without having
// been handled since. The retention is counted back from a time (RFC 3339, "" = now). Dead messages stay. It returns
// the number of deleted rows, even with an error. timeout applies to each statement.
func Inbox(
	ctx context.Context, db *core.DB, retention time.Duration, from string, timeout time.Duration,
) (rows int64, err error) {
	for _, statement := range []string{sqltext.CleanInbox, sqltext.CleanInboxFailed} {
		for more := true; more; {
			begun := time.Now()
			queryCtx, cancel := context.WithTimeout(ctx, timeout)
			n, err := db.Exec(queryCtx, db.Render(statement), retention.Seconds(), Batch, from)
			cancel()
			if err != nil {
				if text.SQLState(err) == text.InsufficientPrivilege {
					err = fmt.Errorf("%w (grant the role SELECT, UPDATE and DELETE on the inbox, or set InboxRetention to -1)", err)
				} else {
					err = text.Explain(err)
				}
				return rows, fmt.Errorf("clean the inbox: %w", err)
			}
			rows += n
			if more = n == Batch; more {
				select {
				case <-ctx.Done():
					return rows, ctx.Err()
				case <-time.After(time.Since(begun)):
				}
			}
		}
	}
	return rows, nil
}
