package queue

import (
	"cmp"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/progress"
)

// row is a message with what only the store knows of it.
type row struct {
	Message
	id         int64
	part, kind int // of ClaimTopics
}

// position is where it comes in the order of claims.
func (r row) position() progress.Position {
	if r.DueAt.IsZero() {
		return progress.Position{ID: r.id}
	}
	return progress.Position{At: r.DueAt.UnixMicro(), ID: r.id}
}

func (r row) compare(other row) int {
	a, b := r.position(), other.position()
	return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.ID, b.ID))
}

// scan reads the columns that all statements name which return messages, and those that come behind.
func (s *Store) scan(rows drive.Rows, more ...any) (row, error) {
	r := row{Message: Message{DB: s.db.Name()}}
	var state string
	var metadata []byte
	var dueAt, expiresAt *time.Time
	dest := [17]any{&r.id, &r.Source, &r.MessageID, &r.Topic, &r.Key, &state, &r.Payload, &metadata, &r.Hash,
		&r.FirstSeenAt, &r.LastSeenAt, &dueAt, &expiresAt, &r.Attempt, &r.LastError}
	err := rows.Scan(append(dest[:15], more...)...)
	if err != nil {
		return r, err
	}
	if r.State = State(state); dueAt != nil {
		r.DueAt = *dueAt
	}
	if expiresAt != nil {
		r.ExpiresAt = *expiresAt
	}
	r.Metadata = core.ReadMetadata(metadata)
	return r, nil
}
