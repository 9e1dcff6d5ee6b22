package outbox

import (
	"errors"
	"fmt"
	"time"
)

// Decision says what becomes of a message whose handler returned an error. Values may be added.
type Decision int

const (
	Nack       Decision = iota // retry it; the default
	DeadLetter                 // the message is dead; Outcomes writes a dead letter
	Ack                        // it is done: the error says that the work was done before
)

var (
	// ErrPoison marks a message that no redelivery can help. A handler returns Poison(err), or anything that wraps
	// ErrPoison; middleware.Inbox returns it for a message without a usable key. The message is dead.
	//
	// Cure: fix the handler or the sender; then requeue the message, or discard it.
	ErrPoison = errors.New("poison message")

	// ErrAlreadyProcessed is for handlers that find out by themselves that a message was handled before. The
	// transaction is rolled back and the message acked.
	//
	// Cure: none is needed.
	ErrAlreadyProcessed = errors.New("already processed")
)

// Poison marks err so that the message is dead at once instead of being retried. It returns nil if err is nil.
func Poison(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrPoison, err)
}

// RetryAfterError is what RetryAfter makes, for errors.As: Watermill's PoisonQueueWithFilter, for one, is to leave it
// alone.
type RetryAfterError struct {
	Err  error
	Wait time.Duration
}

func (e *RetryAfterError) Error() string { return fmt.Sprintf("retry after %s: %v", e.Wait, e.Err) }
func (e *RetryAfterError) Unwrap() error { return e.Err }

// RetryAfter marks err so that the message is delivered again after the wait and no attempt is charged: for a provider
// that answers 429 with Retry-After, and for what is not ready yet. The handler's transaction is rolled back. Such a
// message never dies of it, however often its handler says so: give it an expiry, or return err itself in the end. If
// err wraps ErrPoison too, that counts. It returns nil if err is nil. A wait of zero or less means that of the first
// failure, or 100 ms where there is none.
//
// In the queue the message waits in its table and keeps no place of a handler, for as long as it takes. On a broker
// middleware.Outcomes waits with the message in hand, so those behind it in its partition wait too: it nacks at the
// latest after OutcomesConfig.Backoff.Max, and keeps what the broker redelivers before the time is up without a call of
// the handler, as far as it reaches this process. Without Outcomes the message is nacked at once. With Outcomes behind
// kafka.Subscriber it blocks its key for the whole time, and nothing else. Of a forwarder.Subscriber the message waits
// in hand for the whole time, and blocks its key.
func RetryAfter(err error, wait time.Duration) error {
	if err == nil {
		return nil
	}
	return &RetryAfterError{Err: err, Wait: max(wait, 0)}
}
