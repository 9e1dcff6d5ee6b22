package core

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ErrLeaseLost is queue.ErrLeaseLost.
var ErrLeaseLost = errors.New("queue: lease lost: the message is delivered to another")

// ErrNotBegun means that a handler was not called for lack of a transaction. The message is not at fault.
// Cause: the pool is full, the database, or the context ended while the message waited for its batch.
// Cure: raise pool_max_conns or lower Concurrency.
var ErrNotBegun = errors.New("no transaction for the handler")

// ErrNoDeadLetter means that a message is not marked dead because its dead letter could not be written.
// Cause: the database, or no grant to insert into the outbox.
// Cure: the message is retried.
var ErrNoDeadLetter = errors.New("dead letter not written")

// Work is a message that was claimed from the durable queue. The middleware that opens the transaction of its handler
// settles it there.
type Work interface {
	// Ack marks the message done in the transaction of ctx. It returns false if we no longer own the message.
	Ack(ctx context.Context) (bool, error)
	// AckAll marks this message and others of the same owner done, and returns those that it changed.
	AckAll(ctx context.Context, others []Work) ([]Work, error)
	// Unack reverts an Ack that a handler committed when it ended the transaction itself.
	Unack(ctx context.Context) error
	// Dead marks the message dead in the transaction of ctx. It returns false if we no longer own the message.
	Dead(ctx context.Context, reason string) (bool, error)
	// Failed reports whether an attempt failed before.
	Failed() bool
	// Last reports whether this is the last attempt, whose failure makes the message dead.
	Last() bool
	// SetFailure records why the attempt failed, because a nack carries no reason. ErrNotBegun and ErrNoDeadLetter are not
	// charged.
	SetFailure(err error)
}

type workKey struct{}

// work marks the context of a message from a queue.Subscriber. In-process Pub/Subs pass contexts on, so it counts only
// with the message for which it was set, and only for the first TakeWork.
type work struct {
	Work
	msg *message.Message
}

// WithWork marks msg. The caller must set the returned context on msg.
func WithWork(ctx context.Context, msg *message.Message, w Work) context.Context {
	return context.WithValue(ctx, workKey{}, &work{w, msg})
}

// TakeWork returns the work of this message, or nil for a copy, and the context of msg without the work, so that the
// handler does not pass it on.
func TakeWork(msg *message.Message) (context.Context, Work) {
	ctx := msg.Context()
	w, _ := ctx.Value(workKey{}).(*work)
	if w == nil {
		return ctx, nil
	}
	ctx = context.WithValue(ctx, workKey{}, (*work)(nil))
	if w.msg != msg {
		return ctx, nil
	}
	return ctx, w.Work
}
