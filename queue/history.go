package queue

import (
	"context"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// noting is a statement as the database can run it: without what writes histories where it keeps none.
func (s *Store) noting(ctx context.Context, what, statement string) (string, error) {
	without, ok := sqltext.WithoutNote[statement]
	if !ok {
		return statement, nil
	}
	keeps, err := s.histories.Keeps(func(keeps *bool) error {
		return s.collect(ctx, what, func(rows drive.Rows) error { return rows.Scan(keeps) }, sqltext.MayNoteQueue)
	})
	if err != nil {
		return "", err
	}
	if !keeps {
		return without, nil
	}
	return statement, nil
}
