package queue

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// retry runs a statement until it succeeds, the database refuses a row of it, or ctx is over. Each try takes at most
// queryTimeout.
func retry(ctx context.Context, statement func(ctx context.Context) error) error {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 50*time.Millisecond, 2*time.Second
	_, err := backoff.Retry(ctx, func() (struct{}, error) {
		ctx, cancel := context.WithTimeout(ctx, queryTimeout)
		defer cancel()
		err := statement(ctx)
		if errors.As(err, new(*refusedError)) {
			err = backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(0))
	return err
}
