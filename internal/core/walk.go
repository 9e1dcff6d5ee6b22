package core

import (
	"context"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// Walk runs a query for counts and lists that reads some rows in the order of an index and then stops, and calls scan
// for each row. It uses its own transaction, in which the planner must choose the index whatever its estimates.
func (db *DB) Walk(ctx context.Context, scan func(drive.Rows) error, query string, args ...any) error {
	return db.Transact(ctx, func(q drive.Querier) error {
		if _, err := q.Exec(ctx, sqltext.WalkIndexes); err != nil {
			return err
		}
		return drive.Collect(ctx, q, scan, query, args...)
	})
}
