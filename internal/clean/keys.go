package clean

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Keys deletes HTTP requests, with their responses, that have expired by a time (RFC 3339, "" = now). It returns the
// number of deleted rows, even with an error. timeout applies to each statement.
func Keys(ctx context.Context, db *core.DB, by string, timeout time.Duration) (rows int64, err error) {
	for more := true; more; {
		begun := time.Now()
		queryCtx, cancel := context.WithTimeout(ctx, timeout)
		n, err := db.Exec(queryCtx, db.Render(sqltext.CleanKeys), Batch, by)
		cancel()
		if err != nil {
			return rows, fmt.Errorf("delete expired idempotency keys: %w", text.Explain(err))
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
	return rows, nil
}
