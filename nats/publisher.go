package nats

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/header"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// Publisher publishes to JetStream through a watermill-nats publisher. It is safe for concurrent use, including Close.
type Publisher struct {
	inner message.Publisher
	stall *stallDetector

	open   sync.RWMutex
	closed bool
}

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher returns a publisher with the settings that docs/start/nats.md lists. It connects in the background if
// the first attempt fails, so that a service starts while NATS is down; until then Publish returns errors that Classify
// calls Unavailable. It returns an error that names the field if the configuration is unsafe or invalid. The state of
// the connection and asynchronous errors of the server are logged; a nil logger logs nothing.
func NewPublisher(cfg PublisherConfig, logger watermill.LoggerAdapter) (*Publisher, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	logger = core.RedactingLogger(logger)
	conn, err := natsgo.Connect(cfg.URL, slices.Concat(logging(logger), cfg.connect())...)
	if err != nil {
		return nil, fmt.Errorf("nats: connect: %w", err)
	}
	pub, err := wmnats.NewPublisherWithNatsConn(conn, cfg.publish(quoting(logger)), logger)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("nats: new publisher: %w", err)
	}
	stall := &stallDetector{conn: conn, logger: logger, lasts: trouble.StallDetector{Limit: 2 * cfg.AckTimeout}}
	return &Publisher{inner: pub, stall: stall}, nil
}

// Publish sends the messages one after another and returns when JetStream has stored them. It stops at the first error,
// a forwarder.PublishError that names the topic, with the verdict of Classify; the messages before it have been sent. A
// message may have arrived despite an error, except for outbox.ErrClosed after Close, and outbox.ErrInvalidMessage for
// a nil message or one that cannot be converted to a NATS message.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	p.open.RLock()
	defer p.open.RUnlock()
	if p.closed {
		return judged(outbox.ErrClosed, nil)
	}
	if i := slices.Index(msgs, nil); i >= 0 {
		return judged(fmt.Errorf("%w: message %d of %d is nil", outbox.ErrInvalidMessage, i+1, len(msgs)), nil)
	}
	begun := time.Now()
	err := p.inner.Publish(topic, msgs...)
	p.stall.result(begun, err)
	if err != nil {
		return judged(explain(topic, err), msgs)
	}
	return nil
}

// judged adds the verdict to an error.
func judged(err error, msgs []*message.Message) error {
	verdict := Classify(err)
	if wantsOtherStream(err, msgs) {
		verdict = forwarder.Retry
	}
	return &forwarder.PublishError{Verdict: verdict, Err: err}
}

// explain adds the topic, and the cause or the cure if nats.go names none. It also removes the stack of
// watermill-nats's errors, which logs that print errors with %+v would include, such as slog's text handler.
func explain(topic string, err error) error {
	switch {
	case isAny(err, noStream):
		return fmt.Errorf("nats: no JetStream stream responded for topic %q: create a stream with this subject, "+
			"or check that JetStream is running: %w", topic, err)
	case errors.Is(err, natsgo.ErrHeadersNotSupported): // the client assumes this before its first connection
		return fmt.Errorf(
			"nats: publish to %q: not connected to NATS yet (connecting), or the server has no_header_support: "+
				"%w", topic, err)
	case errors.Is(err, natsgo.ErrConnectionClosed): // for example after -ERR 'Maximum Payload Violation'
		return fmt.Errorf("nats: publish to %q: the client has closed its connection for good, as it does after some "+
			"errors that NATS reported: restart this process: %w", topic, err)
	case isAny(err, noConnection):
		return fmt.Errorf("nats: publish to %q: not connected to NATS (reconnecting): %w", topic, err)
	default:
		return fmt.Errorf("nats: publish to %q: %w", topic, err)
	}
}

// Close waits for calls of Publish in flight and closes the connection. Later calls return nil.
func (p *Publisher) Close() error {
	p.open.Lock()
	defer p.open.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	return p.inner.Close()
}

// quoting logs once that metadata are not sent as commands, in case the sender meant them as such.
func quoting(logger watermill.LoggerAdapter) func(key string) {
	var once sync.Once
	return func(key string) {
		once.Do(func() {
			logger.Info("metadata named like a JetStream control header is sent as data: set such a header with nats.SetHeader",
				watermill.LogFields{"key": key, "sent_as": header.Encode(key)})
		})
	}
}

func logging(logger watermill.LoggerAdapter) []natsgo.Option {
	failed := &attempts{logger: logger}
	return []natsgo.Option{
		natsgo.ConnectHandler(func(c *natsgo.Conn) {
			failed.over()
			logger.Info("connected to NATS", watermill.LogFields{"url": address(c)})
		}),
		natsgo.DisconnectErrHandler(func(_ *natsgo.Conn, err error) {
			if err != nil {
				// Cause: the server stopped, or the network broke.
				// Cure: wait for "NATS connection is back".
				logger.Error("NATS connection lost: reconnecting", err, nil)
			}
		}),
		natsgo.ReconnectHandler(func(c *natsgo.Conn) {
			failed.over()
			logger.Info("NATS connection is back", watermill.LogFields{"url": address(c)})
		}),
		natsgo.ReconnectErrHandler(failed.failed),
		natsgo.ErrorHandler(func(_ *natsgo.Conn, _ *natsgo.Subscription, err error) {
			// Cause: an error outside a publish, such as a missing permission.
			// Cure: fix the cause that the error names.
			logger.Error("error reported by NATS", err, nil)
		}),
	}
}

// remindAfter is the interval at which failures to connect are logged. They are not compared, because each of several
// servers may fail with a different error.
const remindAfter = 30 * time.Second

// attempts logs why connecting fails. The client calls its handlers one at a time, and this one for the first failed
// attempt and for attempts that reach no server.
type attempts struct {
	logger watermill.LoggerAdapter
	said   time.Time
}

func (a *attempts) failed(_ *natsgo.Conn, err error) {
	if time.Since(a.said) < remindAfter {
		return
	}
	a.said = time.Now()
	// Cause: no server is reachable, or it refuses TLS or the login.
	// Cure: check URL, network and credentials.
	a.logger.Error("connecting to NATS failed: retrying", err, nil)
}

// over records a successful connection: the next failure is logged.
func (a *attempts) over() { a.said = time.Time{} }
