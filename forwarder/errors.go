package forwarder

import (
	"context"
	"errors"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

var (
	// ErrNoPublisher is returned by New for a nil publisher.
	ErrNoPublisher = errors.New("forwarder: no publisher: pass the broker's publisher")

	// ErrOwnPublisher is returned by New for a publisher, also behind decorators that hold it in a field, that writes to
	// the outbox that the forwarder reads.
	ErrOwnPublisher = errors.New("forwarder: publisher writes to the outbox that the forwarder reads: " +
		"messages would loop for ever: pass the broker's publisher")

	// ErrPublishTimeout is the error of a publish that took longer than Config.PublishTimeout. It goes to
	// Config.Classify and, if it is charged, into the message's last_error.
	//
	// Cure: check the broker; raise Config.PublishTimeout if it is only slow.
	ErrPublishTimeout = errors.New("forwarder: publish timed out")

	// ErrPublishPanic is the error of a publisher that panicked, as above.
	//
	// Cure: fix the publisher; the log line of the panic has the stack.
	ErrPublishPanic = errors.New("forwarder: publisher panicked")

	// errBadMetadata: written by hand, since the write side stores what it can read back.
	// Cause: the row was written or changed by hand.
	// Cure: correct the row's metadata, then requeue the message.
	errBadMetadata = errors.New("forwarder: metadata is not a JSON object of strings")

	// errStopped is why the contexts of calls end that are under way when Config.CloseTimeout is over.
	// Cause: publishes were in flight when Config.CloseTimeout was over.
	// Cure: raise Config.CloseTimeout above Config.PublishTimeout if this repeats.
	errStopped = errors.New("forwarder: stopped")

	// errGoexit is the error of code of the user's that called runtime.Goexit.
	// Cause: the publisher ended its goroutine, as testing.T.FailNow does.
	// Cure: have the publisher return an error.
	errGoexit = errors.New("the publisher called runtime.Goexit")

	// errNoLife: no forwarder has read the outbox since the server crashed, or ever.
	// Cause: no forwarder has read the outbox since the server crashed, or ever.
	// Cure: none is needed: the next read records it.
	errNoLife = errors.New("identity of the server not recorded yet")

	// errNewLife: what was read has become meaningless.
	// Cause: the server was restarted, restored or replaced.
	// Cure: none is needed.
	errNewLife = errors.New("server or id sequence restarted, restored or replaced: reading starts over")

	// Cause: the logger or an observer takes longer than messages take to publish.
	// Cure: make the logger and the observers faster.
	errTooSlow = errors.New("forwarder: too many reports are queued")

	// ErrStandby is logged, and told to an observe.EngineObserver, if the connections of a running forwarder reach a
	// standby. Snapshots there do not list the transactions in progress, so it cannot be read in order: nothing is
	// published until they reach a primary again. On a standby Run does not start; schema.Check says so.
	ErrStandby = errors.New("forwarder: connected to a standby: connect to the primary")
)

// timedOut says whether a statement was given up because it took too long.
func timedOut(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || text.SQLState(err) == "57014"
}
