package core

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
)

// ErrLeaseLost is queue.ErrLeaseLost.
var ErrLeaseLost = errors.New("queue: lease lost: the message is delivered to another")

// ErrNotBegun says that there was no transaction for a handler, which was not called. That is no fault of the message.
// Cause: the pool is full, or the database.
// Cure: raise pool_max_conns or lower Concurrency.
var ErrNotBegun = errors.New("no transaction for the handler")

// ErrNoLetter says that a message was to die, and that its dead letter could not be written. It must not die without
// it.
// Cause: the letter of a dying message was not written.
// Cure: check the database, and the grant to insert into the outbox.
var ErrNoLetter = errors.New("dead letter not written")

// Work is a message that was claimed from the durable queue. The middleware that opens the transaction of its handler
// settles it there.
type Work interface {
	// Ack marks the message done in the transaction of ctx. False: it is not ours any more.
	Ack(ctx context.Context) (bool, error)
	// AckAll is Ack for this message and others of the same owner. It returns the messages that it marked done.
	AckAll(ctx context.Context, others []Work) ([]Work, error)
	// Unack takes back an Ack that a handler committed when it ended the transaction by itself.
	Unack(ctx context.Context) error
	// Dead marks the message dead in the transaction of ctx. False: it is not ours any more.
	Dead(ctx context.Context, reason string) (bool, error)
	// Failed reports whether an attempt failed before.
	Failed() bool
	// Last says whether a failure of this attempt uses up the last one.
	Last() bool
	// Note keeps why the attempt failed, for a nack carries no reason. ErrNotBegun and ErrNoLetter cost no attempt.
	Note(err error)
}

type workKey struct{}

// work is the sign that a queue.Subscriber puts into the context of a message. In-process Pub/Subs pass contexts on, so
// it counts only with the message that it was made for, and for the first that takes it.
type work struct {
	Work
	msg *message.Message
}

// WithWork signs msg, whose context is to be the one returned.
func WithWork(ctx context.Context, msg *message.Message, w Work) context.Context {
	return context.WithValue(ctx, workKey{}, &work{w, msg})
}

// TakeWork returns the work of this very message, and not of a copy, or nil; and the context of msg without it, so that
// nothing which the handler passes on carries it along.
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
