package queue

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"
)

func newBackOff(first, most time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = first, most
	return b
}

// retry calls fn until it succeeds, its error is backoff.Permanent, or ctx ends. If failed is not nil, it is called
// with each error after which fn is called again, unless ctx has ended.
func retry(ctx context.Context, wait backoff.BackOff, failed func(error), fn func(ctx context.Context) error) error {
	_, err := backoff.Retry(ctx, func() (struct{}, error) { return struct{}{}, fn(ctx) },
		backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0), backoff.WithNotify(func(err error, _ time.Duration) {
			if failed != nil && ctx.Err() == nil {
				failed(err)
			}
		}))
	return err
}

// retryStatement runs a statement until it succeeds, the database refuses one of its rows, or ctx ends. Each try takes
// at most queryTimeout.
func retryStatement(ctx context.Context, statement func(ctx context.Context) error) error {
	return retry(ctx, newBackOff(50*time.Millisecond, 2*time.Second), nil, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, queryTimeout)
		defer cancel()
		err := statement(ctx)
		if errors.As(err, new(*refusedError)) {
			err = backoff.Permanent(err)
		}
		return err
	})
}
