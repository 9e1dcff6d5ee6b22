package forwarder

import "errors"

var (
	// ErrNoPublisher is returned by New for a nil publisher.
	ErrNoPublisher = errors.New("forwarder: no publisher")

	// ErrTopicsOverlap is returned by Run, or Subscribe, if a live forwarder of another scope reads some of
	// the same topics, or one of the same scope reads other topics. Both would publish the same messages.
	ErrTopicsOverlap = errors.New("forwarder: topics overlap with those of another forwarder")

	// ErrRunning is returned by Run if it was called before.
	ErrRunning = errors.New("forwarder: Run was called before")

	// ErrClosed is returned by Run, Drain and Subscribe after Close.
	ErrClosed = errors.New("forwarder: closed")

	// ErrPublishTimeout is the error of a publish that took longer than Config.PublishTimeout. It goes to
	// Config.Classify and into the message's last_error.
	ErrPublishTimeout = errors.New("forwarder: publish timed out")

	// ErrPublishPanic is the error of a publisher that panicked, as above.
	ErrPublishPanic = errors.New("forwarder: publisher panicked")

	// ErrNacked is the error of a message that was nacked by who received it from a Subscriber, as above.
	ErrNacked = errors.New("forwarder: message was nacked")

	// errStandby: snapshots on a standby do not list transactions in progress.
	errStandby = errors.New("forwarder: connected to a standby, which cannot be read in order: connect to the primary")
)
