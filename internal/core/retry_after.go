package core

import (
	"errors"
	"fmt"
	"time"
)

// ErrRetryAfter is outbox.ErrRetryAfter.
var ErrRetryAfter = errors.New("retry after")

// RetryAfterError is the error that outbox.RetryAfter returns.
type RetryAfterError struct {
	Err  error
	Wait time.Duration
}

func (e *RetryAfterError) Error() string { return fmt.Sprintf("retry after %s: %v", e.Wait, e.Err) }

func (e *RetryAfterError) Unwrap() error { return e.Err }

// Is makes it an ErrRetryAfter.
func (e *RetryAfterError) Is(target error) bool { return target == ErrRetryAfter }
