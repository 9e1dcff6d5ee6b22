package queue

import (
	"context"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// noteAgain is after how long a database is asked again that kept no histories, so that a process outlives the
// migration.
const noteAgain = time.Minute

// noting is a statement as the database can run it: without what writes histories where that, or the role, is of an
// older migration. What fails for the first time asks it, once for all.
func (s *Store) noting(ctx context.Context, what, statement string) (string, error) {
	without, ok := sqltext.WithoutNote[statement]
	if !ok {
		return statement, nil
	}
	s.mu.Lock()
	notes, asked := s.notes, time.Since(s.notesAt) < noteAgain
	s.mu.Unlock()
	if !notes && !asked {
		err := s.collect(ctx, what, func(rows drive.Rows) error { return rows.Scan(&notes) }, sqltext.MayNoteQueue)
		if err != nil {
			return "", err
		}
		s.mu.Lock()
		s.notes, s.notesAt = notes, time.Now()
		s.mu.Unlock()
	}
	if notes {
		return statement, nil
	}
	return without, nil
}
