package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// AlreadyProcessed reports whether a message is done, and records the ID. A hash is stored, and compared with the
// stored one; a difference is logged and is not an error. While the message is being handled, the hash is only
// compared. It returns ErrInvalid for an invalid ID.
func (s *Store) AlreadyProcessed(ctx context.Context, id ID, hash []byte) (bool, error) {
	if err := id.check(); err != nil {
		return false, fmt.Errorf("%w: AlreadyProcessed: %w", ErrInvalid, err)
	}
	if len(hash) == 0 {
		hash = nil
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
	s.logger.Debug("looked up message", watermill.LogFields{"source": id.Source, "message_id": id.MessageID, "done": done})
	return done, nil
}

func (s *Store) mismatch(id ID) {
	// Cause: two messages with one ID have different hashes.
	// Cure: correct the sender.
	s.logger.Error("message ID reused with different content: the sender reuses IDs, or the hash is not that of "+
		"the payload",
		errors.New("hash differs from the stored one"),
		watermill.LogFields{"source": id.Source, "message_id": id.MessageID})
}

// MarkProcessing records that the caller handles a message itself, after AlreadyProcessed returned false. Then no owner
// can claim it, unless Enqueue stores it. A dead message that was stored can be claimed again, with all attempts and
// without expiry. A message that is done or in processing is not changed. It returns ErrNotFound, and ErrInvalid for an
// invalid ID.
func (s *Store) MarkProcessing(ctx context.Context, id ID) error {
	return s.mark(ctx, "MarkProcessing", sqltext.MarkProcessing, id)
}

// MarkProcessed marks a message done, whichever owner has it. Otherwise it is like MarkProcessing.
func (s *Store) MarkProcessed(ctx context.Context, id ID) error {
	return s.mark(ctx, "MarkProcessed", sqltext.MarkProcessed, id, s.cfg.KeepPayload)
}

// MarkDead marks a message dead, whichever owner has it, and stores the reason, at most 1 KiB. A done message stays
// done. Otherwise it is like MarkProcessing.
func (s *Store) MarkDead(ctx context.Context, id ID, why string) error {
	return s.mark(ctx, "MarkDead", sqltext.MarkDead, id, reason(why))
}

func (s *Store) mark(ctx context.Context, what, statement string, id ID, args ...any) error {
	if err := id.check(); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrInvalid, what, err)
	}
	state := ""
	err := s.collect(ctx, what, func(rows drive.Rows) error { return rows.Scan(&state) }, statement,
		append([]any{id.Source, id.MessageID}, args...)...)
	if err == nil && state == "" {
		err = fmt.Errorf("%s: %w: %q from %q", what, ErrNotFound, id.MessageID, id.Source)
	}
	return err
}

// Get returns a message. A done message has no payload, unless StoreConfig.KeepPayload is set. It returns ErrNotFound,
// and ErrInvalid for an invalid ID.
func (s *Store) Get(ctx context.Context, id ID) (Message, error) {
	if err := id.check(); err != nil {
		return Message{}, fmt.Errorf("%w: Get: %w", ErrInvalid, err)
	}
	var found *row
	err := s.collect(ctx, "get a message", func(rows drive.Rows) (err error) {
		found, err = s.scanner().scan(rows)
		return err
	}, sqltext.GetMessage, id.Source, id.MessageID)
	if err != nil {
		return Message{}, err
	}
	if found == nil {
		return Message{}, fmt.Errorf("%w: %q from %q", ErrNotFound, id.MessageID, id.Source)
	}
	return found.Message, nil
}
