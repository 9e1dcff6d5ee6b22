package middleware

import (
	"context"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// noting is a statement on the inbox as the database can run it: without what writes histories where it keeps none.
func (o *outcomes) noting(ctx context.Context, q drive.Querier, statement string) (string, error) {
	without, ok := sqltext.WithoutInboxNote[statement]
	if !ok {
		return o.db.Render(statement), nil
	}
	keeps, err := o.histories.Keeps(func(keeps *bool) error {
		return drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(keeps) },
			o.db.Render(sqltext.MayNoteInbox))
	})
	if err != nil {
		return "", err
	}
	if !keeps {
		statement = without
	}
	return o.db.Render(statement), nil
}
