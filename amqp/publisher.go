package amqp

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// Publisher publishes to RabbitMQ. It is safe for concurrent use, including Close.
type Publisher struct {
	cfg       PublisherConfig
	marshaler Marshaler
	logger    watermill.LoggerAdapter

	calls  sync.RWMutex // held for reading by Publish
	closed bool         // guarded by calls

	mu       sync.Mutex
	conn     *amqp091.Connection // nil before the first Publish
	channels map[string]*channel // open channels of conn, by topic
	err      error               // of the last failed attempt to connect, which ended at failed
	failed   time.Time
}

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher returns a publisher that connects on first use. A nil logger logs nothing.
func NewPublisher(cfg PublisherConfig, logger watermill.LoggerAdapter) (*Publisher, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Publisher{cfg: cfg, marshaler: ourMarshaler(cfg.Marshaler), logger: core.RedactingLogger(logger)}, nil
}

// Publish sends the messages one after another and returns when queues have them. It stops at the first error, a
// forwarder.PublishError with the verdict of Classify; the messages before it were published. A message may have
// arrived despite an error.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	p.calls.RLock()
	defer p.calls.RUnlock()
	for _, msg := range msgs {
		if err := p.publish(topic, msg); err != nil {
			return &forwarder.PublishError{Verdict: Classify(err), Err: fmt.Errorf("amqp: publish to %q: %w", topic, err)}
		}
	}
	return nil
}

func (p *Publisher) publish(topic string, msg *message.Message) error {
	if p.closed {
		return outbox.ErrClosed
	}
	if msg == nil {
		return fmt.Errorf("%w: message is nil", outbox.ErrInvalidMessage)
	}
	made, err := p.marshaler.Marshal(msg)
	if err != nil {
		return err
	}
	exchange, routingKey := p.cfg.Exchange.GenerateName(topic), p.cfg.RoutingKey(topic, msg)
	if err := errors.Join(checkLength("exchange", exchange), checkLength("routing key", routingKey)); err != nil {
		return err
	}
	send := func(ch *channel, alone bool) error {
		defer ch.calls.Add(-1)
		// The timer also bounds the write, because a broker with a resource alarm stops reading.
		giveUp := time.AfterFunc(p.cfg.AckTimeout, func() { p.giveUp(topic, ch) })
		defer giveUp.Stop()
		if alone {
			defer ch.Close()
		}
		return ch.publish(exchange, routingKey, !p.cfg.AllowUnroutable, made)
	}
	ch, err := p.channel(topic, exchange, false)
	if err != nil {
		return err
	}
	// RabbitMQ closes the channel when it refuses a message. All messages in flight on it get the same error; messages
	// that were not sent get ErrClosed.
	if err = send(ch, false); !errors.Is(err, errRefused) && !errors.Is(err, amqp091.ErrClosed) {
		return err
	}
	if ch, err = p.channel(topic, exchange, true); err != nil {
		return err
	}
	return send(ch, true)
}

// channel returns the open channel of a topic, or a new one for one message alone, and counts a call. It declares the
// exchange on new channels.
func (p *Publisher) channel(topic, exchange string, alone bool) (*channel, error) {
	begun := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil || p.conn.IsClosed() {
		if err := p.connect(begun); err != nil {
			return nil, err
		}
	}
	limit := maxInFlight
	if alone {
		limit = 1
	} else if ch := p.channels[topic]; ch != nil && !ch.IsClosed() {
		ch.calls.Add(1)
		return ch, nil
	}
	conn := p.conn
	giveUp := time.AfterFunc(p.cfg.AckTimeout, func() { closeNow(conn) })
	defer giveUp.Stop()
	ch, err := openChannel(conn, limit)
	for errors.Is(err, amqp091.ErrChannelMax) && p.closeIdle() {
		ch, err = openChannel(conn, limit)
	}
	if err != nil {
		return nil, err
	}
	if exchange != "" {
		if err := p.cfg.TopologyBuilder.ExchangeDeclare(ch.Channel, exchange, p.cfg.Config); err != nil {
			_ = ch.Close()
			return nil, fmt.Errorf("%w %q: %w", errExchange, exchange, err)
		}
	}
	if !alone {
		p.channels[topic] = ch
	}
	ch.calls.Add(1)
	return ch, nil
}

// connect connects for a call of channel that began at begun. If an attempt has failed while the call waited for mu,
// the call gets its error: otherwise many calls would wait seconds for a silent broker one after another. mu must be
// held.
func (p *Publisher) connect(begun time.Time) error {
	if p.failed.After(begun) {
		return p.err
	}
	conn, err := p.cfg.dial()
	if err != nil {
		p.err, p.failed = fmt.Errorf("%w: %w", errNotConnected, err), time.Now()
		return p.err
	}
	p.conn, p.channels = conn, map[string]*channel{}
	p.logger.Info("connected to RabbitMQ", nil)
	return nil
}

// closeIdle makes room for a channel by closing an idle one, if any. mu must be held.
func (p *Publisher) closeIdle() bool {
	for topic, ch := range p.channels {
		if ch.calls.Load() == 0 {
			delete(p.channels, topic)
			_ = ch.Close()
			return true
		}
	}
	return false
}

// giveUp closes the channel of a topic whose queue does not confirm, which fails all messages in flight on it. If the
// broker does not respond to that either, giveUp closes the connection.
func (p *Publisher) giveUp(topic string, ch *channel) {
	// Cause: the broker is overloaded, frozen or has an alarm, or a quorum queue has no leader.
	// Cure: check the broker and the queues of the topic.
	p.logger.Error("no confirm in time: messages in flight are published again", errNoConfirm,
		watermill.LogFields{"topic": topic})
	p.mu.Lock()
	if p.channels[topic] == ch {
		delete(p.channels, topic)
	}
	p.mu.Unlock()
	dead := time.AfterFunc(p.cfg.AckTimeout, func() { closeNow(ch.conn) })
	defer dead.Stop()
	ch.gaveUp.Store(true)
	_ = ch.Close()
}

func closeNow(conn *amqp091.Connection) {
	_ = conn.CloseDeadline(time.Now().Add(100 * time.Millisecond))
}

// Close waits for calls of Publish in flight and closes the connection. Later calls return nil.
func (p *Publisher) Close() error {
	p.calls.Lock()
	defer p.calls.Unlock()
	p.closed = true
	if p.conn == nil || p.conn.IsClosed() {
		return nil
	}
	if err := p.conn.CloseDeadline(time.Now().Add(p.cfg.AckTimeout)); err != nil && !errors.Is(err, amqp091.ErrClosed) {
		return fmt.Errorf("amqp: close: %w", err)
	}
	return nil
}
