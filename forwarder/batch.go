package forwarder

import (
	"context"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

const (
	lockedPause = 100 * time.Millisecond // before locked rows are tried again
	alonePause  = 10 * time.Second       // before a row is tried again that cannot be settled even alone
)

// batch is a queue of results of one kind to be written to the database. After an error that a single row may have
// caused, parts are halved until that row is alone.
type batch[T any] struct {
	write        func(ctx context.Context, part []T, careful bool) (locked []T, err error)
	alone        func(error) // called with the error of a row that cannot be settled even alone
	rows         []T
	most         int  // in a part
	careful      bool // skip locked rows
	delayed      []T  // locked, or impossible to settle even alone
	delayedUntil time.Time
}

func newBatch[T any](write func(context.Context, []T, bool) ([]T, error), alone func(error)) batch[T] {
	return batch[T]{write: write, alone: alone, most: maxSettle}
}

// add adds new results, and those whose pause is over.
func (b *batch[T]) add(rows []T, now time.Time) {
	b.rows = append(b.rows, rows...)
	if len(b.delayed) > 0 && !now.Before(b.delayedUntil) {
		b.rows, b.delayed, b.careful = append(b.rows, b.delayed...), nil, true
	}
}

// pause returns how long to wait for the rows to be tried later.
func (b *batch[T]) pause(now time.Time) time.Duration {
	if len(b.delayed) == 0 {
		return time.Hour
	}
	return max(0, b.delayedUntil.Sub(now))
}

// retryLater tries rows again after a pause.
func (b *batch[T]) retryLater(rows []T, at time.Time) {
	if len(rows) > 0 {
		if len(b.delayed) == 0 || at.Before(b.delayedUntil) {
			b.delayedUntil = at
		}
		b.delayed = append(b.delayed, rows...)
	}
}

// part writes a part. It returns an error only if no single row is to blame.
func (b *batch[T]) part(ctx context.Context) error {
	if len(b.rows) == 0 {
		return nil
	}
	n := min(b.most, len(b.rows))
	locked, err := b.write(ctx, b.rows[:n:n], b.careful)
	switch {
	case err == nil:
		b.rows, b.most = b.rows[n:], min(2*b.most, maxSettle)
		b.retryLater(locked, time.Now().Add(lockedPause))
		if b.careful = b.careful && len(b.rows)+len(b.delayed) > 0; len(b.rows) == 0 {
			b.rows = nil // free the array
		}
		return nil
	case !rowsFault(err):
		return err
	}
	b.careful = true
	if b.most = n / 2; n == 1 {
		b.most = 1
		b.retryLater(b.rows[:1:1], time.Now().Add(alonePause))
		b.rows = b.rows[1:]
		b.alone(err)
	}
	return nil
}

// final tries everything once more, in small parts, and returns what is left.
func (b *batch[T]) final(ctx context.Context) (left []T) {
	rows := append(b.rows, b.delayed...)
	for len(rows) > 0 {
		n := min(finalSettle, len(rows))
		locked, err := b.write(ctx, rows[:n:n], true)
		if err != nil && (timedOut(err) || !rowsFault(err)) {
			return append(left, rows...)
		}
		if err != nil {
			locked = rows[:n:n]
		}
		left, rows = append(left, locked...), rows[n:]
	}
	return left
}

// rowsFault reports whether an error may be caused by one of many rows: by its data, or because another transaction has
// locked it.
func rowsFault(err error) bool {
	return timedOut(err) || text.SQLState(err) == text.LockNotAvailable || text.RefusesRow(err)
}
