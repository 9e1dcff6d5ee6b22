package outbox

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

// Decision is the result of a handler's error. More values may be added.
type Decision int

const (
	Nack       Decision = iota // retry it; the default
	DeadLetter                 // the message is dead; ErrorHandler writes a dead letter
	Ack                        // it is done: the error means that the work was done before
)

var (
	// ErrPoison marks a message that can never succeed. A handler returns Poison(err), or any error that wraps ErrPoison;
	// middleware.Inbox returns it for a message without a usable key. The message is dead.
	//
	// Cure: fix the handler or the sender; then requeue the message, or discard it.
	ErrPoison = errors.New("poison message")

	// ErrAlreadyProcessed is returned by a handler for a message that was handled before. The transaction is rolled back
	// and the message acked.
	//
	// Cure: none is needed.
	ErrAlreadyProcessed = errors.New("already processed")

	// ErrRetryAfter marks the errors of RetryAfter, for errors.Is and Watermill's PoisonQueueWithFilter.
	//
	// Cure: none is needed.
	ErrRetryAfter = core.ErrRetryAfter // retry after…
)

// Poison marks err so that the message is dead immediately instead of being retried. It returns nil if err is nil.
func Poison(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrPoison, err)
}

// RetryAfter marks err so that the message is delivered again after the wait and no attempt is counted. Use it for a
// provider's 429 with Retry-After. If wait <= 0, the initial backoff is used, or 100 ms if there is no backoff.
//
// The handler's transaction is rolled back. Such a message never dies: give it an expiry, or return err itself
// eventually. If err wraps ErrPoison too, the message is dead. RetryAfter returns nil if err is nil.
//
// With queue.Subscriber and forwarder.Subscriber the message waits in its table and uses no slot; in the outbox its key
// waits too, and its first wait counts as an attempt. With kafka.Subscriber and nats.Subscriber only its key waits, for
// the whole time. With other subscribers middleware.ErrorHandler holds the message while it waits, which stops its
// partition: it nacks after at most ErrorHandlerConfig.Backoff.Max, and does not call the handler before the time is
// up. Without ErrorHandler the message is nacked immediately; with our own subscribers, Tx suffices.
func RetryAfter(err error, wait time.Duration) error {
	if err == nil {
		return nil
	}
	return &core.RetryAfterError{Err: err, Wait: max(wait, 0)}
}
