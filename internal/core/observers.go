package core

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/observe"
)

// Observers returns the observers of the handle.
func (db *DB) Observers() []observe.Observer { return db.observers }

// Tell calls fn with each observer of the handle that is a T. A panic is logged and does not stop the others.
func Tell[T any](db *DB, fn func(T)) {
	for _, o := range db.observers {
		if t, ok := o.(T); ok {
			db.guard(fmt.Sprintf("observer %T", o), func() { fn(t) })
		}
	}
}

// TellStart calls fn like Tell, for methods that return the context to continue with. A nil context is ignored.
func TellStart[T any](ctx context.Context, db *DB, fn func(context.Context, T) context.Context) context.Context {
	Tell(db, func(o T) {
		if with := fn(ctx, o); with != nil {
			ctx = with
		}
	})
	return ctx
}

// guard calls a user function and contains its panic.
func (db *DB) guard(what string, fn func()) {
	defer func() {
		if p := recover(); p != nil {
			// Cause: a bug of the function; see the field stack.
			// Cure: the transaction is not affected.
			db.logger.Error("observer or AfterCommit function panicked", Panicked(p), watermill.LogFields{
				"what": what, "db": db.name, "stack": string(debug.Stack())})
		}
	}()
	fn()
}

// Panicked returns the error for a panic.
func Panicked(value any) error {
	if err, ok := value.(error); ok {
		return fmt.Errorf("panic: %w", err)
	}
	return fmt.Errorf("panic: %v", value)
}

func (db *DB) txStart(ctx context.Context) context.Context {
	return TellStart(ctx, db, func(ctx context.Context, o meter.TxObserver) context.Context {
		return o.TxStart(ctx, meter.TxStart{DB: db.name})
	})
}

func (db *DB) txEnd(ctx context.Context, took time.Duration, err error) {
	Tell(db, func(o meter.TxObserver) { o.TxEnd(ctx, meter.TxEnd{DB: db.name, Duration: took, Err: err}) })
}

func (db *DB) writeStart(ctx context.Context, topic string, msgs []*message.Message) context.Context {
	return TellStart(ctx, db, func(ctx context.Context, o observe.WriteObserver) context.Context {
		return o.WriteStart(ctx, observe.WriteStart{DB: db.name, Topic: topic, Messages: msgs})
	})
}

func (db *DB) writeEnd(ctx context.Context, topic string, records []record, took time.Duration, err error) {
	Tell(db, func(o observe.WriteObserver) {
		end := observe.WriteEnd{DB: db.name, Topic: topic, Messages: len(records), Duration: took, Err: err}
		for _, r := range records {
			end.Bytes += len(r.payload)
		}
		o.WriteEnd(ctx, end)
	})
}
