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
// number of deleted rows, even with an error. timeout applies to each statement; deleted is as for [Batches].
func Keys(
	ctx context.Context, db *core.DB, by string, timeout time.Duration, deleted func(rows int64) error,
) (rows int64, err error) {
	return Batches(ctx, func() (int64, error) {
		queryCtx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		n, err := db.Exec(queryCtx, db.Render(sqltext.CleanKeys), Batch, by)
		if err != nil {
			return n, fmt.Errorf("delete expired idempotency keys: %w", text.Explain(err))
		}
		return n, nil
	}, deleted)
}
