package forwarder

import (
	"context"
	"errors"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

var (
	// errNoPublisher is returned by New for a nil publisher.
	errNoPublisher = errors.New("forwarder: no publisher: pass the broker's publisher")

	// errOwnPublisher is returned by New for a publisher into the outbox that the forwarder reads, also behind decorators.
	errOwnPublisher = errors.New("forwarder: publisher writes to the outbox that the forwarder reads: " +
		"messages would loop forever: pass the broker's publisher")

	// ErrPublishTimeout is the error of a publish that took longer than Config.PublishTimeout. It goes to
	// Config.Classify and, if it is counted, into the message's last_error.
	//
	// Cure: check the broker; if it is slow, raise Config.PublishTimeout.
	ErrPublishTimeout = errors.New("forwarder: publish timed out")

	// errPublishPanic is the error of a publisher that panicked. It is classified and recorded like ErrPublishTimeout.
	//
	// Cause: a bug of the publisher.
	// Cure: fix the publisher: the log has the stack.
	errPublishPanic = errors.New("forwarder: publisher panicked")

	// errBadMetadata is for rows written by hand: the write side stores only metadata that can be read back.
	// Cause: the row was written by hand.
	// Cure: correct it; then requeue.
	errBadMetadata = errors.New("forwarder: metadata is not a JSON object of strings")

	// errStopped ends the contexts of calls that are still in flight after Config.CloseTimeout.
	// Cause: publishes took longer than CloseTimeout.
	// Cure: raise CloseTimeout above PublishTimeout.
	errStopped = errors.New("forwarder: stopped")

	// errGoexit is the error of user code that called runtime.Goexit.
	// Cause: the publisher ended its goroutine.
	// Cure: return an error instead.
	errGoexit = errors.New("the publisher called runtime.Goexit")

	// errNoIncarnation means that no forwarder has read the outbox since the server crashed, or ever.
	// Cause: no forwarder has read the outbox since a crash.
	// Cure: none is needed.
	errNoIncarnation = errors.New("identity of the server not recorded yet")

	// errNewIncarnation means that everything read before is void.
	// Cause: the server was restarted, restored or replaced.
	// Cure: none is needed.
	errNewIncarnation = errors.New("server or id sequence restarted, restored or replaced: reading starts over")

	// Cause: they are slower than publishing.
	// Cure: make them faster.
	errTooSlow = errors.New("forwarder: too many reports are queued")

	// errStandby is logged and reported to observers if a running forwarder is connected to a standby. Snapshots there do
	// not list the transactions in progress, so it cannot be read in order: nothing is published until they reach a
	// primary again. On a standby Run does not start; schema.Check says so.
	errStandby = errors.New("forwarder: connected to a standby: connect to the primary")
)

// timedOut reports whether a statement was given up because it took too long.
func timedOut(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || text.SQLState(err) == "57014"
}
