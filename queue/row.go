package queue

import (
	"cmp"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/progress"
)

// row is a message with data that only the store uses.
type row struct {
	Message
	id   int64
	read int // number of the read in ClaimTopics or ClaimPages, from 1
	kind int // of the message in that read
}

// position is the message's place in the order of claims.
func (r *row) position() progress.Position {
	if r.DueAt.IsZero() {
		return progress.Position{ID: r.id}
	}
	return progress.Position{At: r.DueAt.UnixMicro(), ID: r.id}
}

func (r *row) compare(other *row) int {
	a, b := r.position(), other.position()
	return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.ID, b.ID))
}

// scanner reads the columns common to all statements that return messages, and any extra ones. All rows of a statement
// share its scan targets.
type scanner struct {
	row              row
	state            string
	metadata         []byte
	dueAt, expiresAt *time.Time
	dest             []any
}

func (s *Store) scanner(more ...any) *scanner {
	c := &scanner{row: row{Message: Message{DB: s.db.Name()}}}
	r := &c.row
	c.dest = append([]any{&r.id, &r.Source, &r.MessageID, &r.Topic, &r.Key, &c.state, &r.Payload, &c.metadata, &r.Hash,
		&r.FirstSeenAt, &r.LastSeenAt, &c.dueAt, &c.expiresAt, &r.Attempts, &r.LastError}, more...)
	return c
}

func (c *scanner) scan(rows drive.Rows) (*row, error) {
	if err := rows.Scan(c.dest...); err != nil {
		return nil, err
	}
	r := new(row)
	*r = c.row
	if r.State = State(c.state); c.dueAt != nil {
		r.DueAt = *c.dueAt
	}
	if c.expiresAt != nil {
		r.ExpiresAt = *c.expiresAt
	}
	r.Metadata = core.ReadMetadata(c.metadata)
	return r, nil
}
