package middleware

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Outcome says what became of a message. Values may be added.
type Outcome int

const (
	// Failed is an attempt that was rolled back and nacked. It is the verdict on an error that nobody recognises.
	Failed Outcome = iota
	// Processed is committed and acked.
	Processed
	// Duplicate was handled before, or is dead: nothing was done, acked.
	Duplicate
	// RolledBack was rolled back on request (outbox.SetRollbackOnly) and acked.
	RolledBack
	// Poisoned was rolled back, put aside as a dead letter, and acked.
	Poisoned
	// Retried is an attempt that Tx repeats after a serialization failure or a deadlock. The message's
	// final outcome is told as well.
	Retried
	// Mismatch is a duplicate whose content differs from that of the message that was processed. It is told
	// besides Duplicate.
	Mismatch
)

// String returns the outcome in lower case, for logs and metrics.
func (o Outcome) String() string {
	switch o {
	case Failed:
		return "failed"
	case Processed:
		return "processed"
	case Duplicate:
		return "duplicate"
	case RolledBack:
		return "rolled back"
	case Poisoned:
		return "poisoned"
	case Retried:
		return "retried"
	case Mismatch:
		return "mismatch"
	}
	return "unknown"
}

// Observer is told what became of messages. It must be safe for concurrent use and must not block.
type Observer interface {
	// Handled is called once for each delivery with its final outcome, by Outcomes or, where there is
	// none, by Tx; by Tx for each repeated attempt; and by Inbox for each mismatch.
	Handled(ctx context.Context, h Handled)
}

// Handled is one call of an Observer. Fields may be added.
type Handled struct {
	DB       string        // name of the database
	Handler  string        // name of the handler in its Router
	Topic    string        // topic that the message was consumed from
	UUID     string        // of the message
	Outcome  Outcome       // what became of it
	Duration time.Duration // since the outermost of these middlewares got the message
	Err      error         // what the handler or a middleware returned, also when the message was acked
}

func observe(obs Observer, db string, msg *message.Message, h *handling, outcome Outcome, err error) {
	if obs == nil {
		return
	}
	ctx := msg.Context()
	obs.Handled(ctx, Handled{
		DB:       db,
		Handler:  message.HandlerNameFromCtx(ctx),
		Topic:    message.SubscribeTopicFromCtx(ctx),
		UUID:     msg.UUID,
		Outcome:  outcome,
		Duration: time.Since(h.begun),
		Err:      err,
	})
}
