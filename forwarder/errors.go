package forwarder

import (
	"context"
	"errors"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

var (
	// ErrNoPublisher is returned by New for a nil publisher.
	ErrNoPublisher = errors.New("forwarder: no publisher")

	// ErrOwnPublisher is returned by New for a publisher, also behind decorators that hold it in a field, that writes to the
	// outbox that the forwarder reads.
	ErrOwnPublisher = errors.New("forwarder: publisher writes to the outbox that it would empty: messages would loop for ever")

	// ErrPublishTimeout is the error of a publish that took longer than Config.PublishTimeout. It goes to
	// Config.Classify and, if it is charged, into the message's last_error.
	ErrPublishTimeout = errors.New("forwarder: publish timed out")

	// ErrPublishPanic is the error of a publisher that panicked, as above.
	ErrPublishPanic = errors.New("forwarder: publisher panicked")

	// errBadMetadata: written by hand, since the write side stores what it can read back.
	errBadMetadata = errors.New("forwarder: metadata is not a JSON object of strings")

	// errStopped is why the contexts of calls end that are under way when Config.CloseTimeout is over.
	errStopped = errors.New("forwarder: stopped")

	// errGoexit is the error of code of the user's that called runtime.Goexit.
	errGoexit = errors.New("it called runtime.Goexit")

	// errNoLife: nobody has read the outbox since the server crashed, or ever.
	errNoLife = errors.New("identity of the server not recorded yet")

	// errNewLife: what was read has become meaningless.
	errNewLife = errors.New("server or id sequence restarted, restored or replaced: reading starts over")

	errTooSlow = errors.New("forwarder: too many reports are waiting")

	// ErrStandby is logged, and told to an observe.EngineObserver, if the connections of a running forwarder reach a standby.
	// Snapshots there do not list the transactions in progress, so it cannot be read in order: nothing is published
	// until they reach a primary again. On a standby Run does not start; schema.Check says so.
	ErrStandby = errors.New("forwarder: connected to a standby: connect to the primary")
)

// timedOut says whether a statement was given up because it took too long.
func timedOut(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || text.SQLState(err) == "57014"
}
