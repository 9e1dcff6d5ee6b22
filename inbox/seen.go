package inbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// AlreadyProcessed says whether a message was done before, and notes that it came by. A hash that is not nil is kept, and
// compared with that of the first time: a difference is logged, and no error. It returns ErrInvalid for an ID that cannot be one.
func (s *Store) AlreadyProcessed(ctx context.Context, id ID, hash []byte) (bool, error) {
	if err := id.check(); err != nil {
		return false, fmt.Errorf("%w: AlreadyProcessed: %w", ErrInvalid, err)
	}
	var done, mismatch bool
	err := s.collect(ctx, "look up a message", func(rows drive.Rows) error { return rows.Scan(&done, &mismatch) },
		sqltext.SeeMessage, id.Source, id.MessageID, hash)
	if err != nil {
		return false, err
	}
	if mismatch {
		s.mismatch(id)
	}
	s.logger.Debug("Looked up a message", watermill.LogFields{"source": id.Source, "message_id": id.MessageID, "done": done})
	return done, nil
}

func (s *Store) mismatch(id ID) {
	s.logger.Error("A message is known with other content", errors.New("its hash differs"),
		watermill.LogFields{"source": id.Source, "message_id": id.MessageID})
}

// Get returns a message. Of one that is done there is no payload, unless StoreConfig.KeepPayload says so. It returns ErrUnknown, and
// ErrInvalid for an ID that cannot be one.
func (s *Store) Get(ctx context.Context, id ID) (Message, error) {
	if err := id.check(); err != nil {
		return Message{}, fmt.Errorf("%w: Get: %w", ErrInvalid, err)
	}
	var found *row
	err := s.collect(ctx, "get a message", func(rows drive.Rows) error {
		r, err := s.scan(rows)
		found = &r
		return err
	}, sqltext.GetMessage, id.Source, id.MessageID)
	if err != nil {
		return Message{}, err
	}
	if found == nil {
		return Message{}, fmt.Errorf("%w: %s %q", ErrUnknown, id.Source, id.MessageID)
	}
	return found.Message, nil
}
