package amqp

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/rabbitmq/amqp091-go"

	outbox "github.com/millrace-go/watermill-outbox"
)

// maxInFlight limits the messages of a topic that wait for confirms.
const maxInFlight = 1024

// channel is an AMQP channel in confirm mode. It is safe for concurrent use.
type channel struct {
	*amqp091.Channel
	conn     *amqp091.Connection
	inFlight chan struct{}
	calls    atomic.Int32 // calls of Publisher.Publish; begun with Publisher.mu held
	gaveUp   atomic.Bool  // closed by Publisher.giveUp

	returns chan amqp091.Return // has room for all messages in flight: amqp091-go drops returns without room
	closes  chan *amqp091.Error // has the error, if any, and is then closed

	mu       sync.Mutex
	waiting  map[string]chan struct{}  // messages in flight, closed with the result; guarded by mu
	returned map[string]amqp091.Return // by message id; guarded by mu
	cause    *amqp091.Error            // why the channel closed; guarded by mu
}

// openChannel opens a channel for up to limit messages in flight.
func openChannel(conn *amqp091.Connection, limit int) (*channel, error) {
	ch, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	if err := ch.Confirm(false); err != nil {
		return nil, err
	}
	return &channel{
		Channel: ch, conn: conn, inFlight: make(chan struct{}, limit),
		waiting: map[string]chan struct{}{}, returned: map[string]amqp091.Return{},
		returns: ch.NotifyReturn(make(chan amqp091.Return, limit)),
		closes:  ch.NotifyClose(make(chan *amqp091.Error, 1)),
	}, nil
}

// publish sends a message and waits for its confirm. It returns an error if the broker refused or returned the message.
func (c *channel) publish(exchange, routingKey string, mandatory bool, msg amqp091.Publishing) error {
	if size, frame := headerSize(msg), c.conn.Config.FrameSize; frame > 0 && size > frame {
		return fmt.Errorf("%w: headers of %d bytes: they must fit into a frame of %d", outbox.ErrInvalidMessage, size, frame)
	}
	c.inFlight <- struct{}{}
	defer func() { <-c.inFlight }()
	defer c.alone(msg.MessageId)()
	confirm, err := c.PublishWithDeferredConfirm(exchange, routingKey, mandatory, false, msg)
	if err != nil {
		return err
	}
	if !confirm.Wait() {
		return c.closedBy()
	}
	return c.unroutable(msg.MessageId)
}

// alone waits until no other message with this id is in flight, because a return identifies its message only by the id.
// The caller must call done when it has the outcome.
func (c *channel) alone(id string) (done func()) {
	own := make(chan struct{})
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.waiting[id] != nil {
		other := c.waiting[id]
		c.mu.Unlock()
		<-other
		c.mu.Lock()
	}
	c.waiting[id] = own
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiting, id)
		close(own)
	}
}

// closedBy returns the reason for a negative confirm.
func (c *channel) closedBy() error {
	if !c.IsClosed() {
		return errNack
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if cause := <-c.closes; cause != nil {
		c.cause = cause
	}
	switch {
	case c.gaveUp.Load():
		return fmt.Errorf("%w within AckTimeout: check the broker and the queues of the topic", errNoConfirm)
	case c.cause == nil || !c.cause.Server:
		return fmt.Errorf("%w: connection lost", errNoConfirm)
	case c.cause.Code == amqp091.PreconditionFailed:
		return fmt.Errorf("%w: %w", errRefused, c.cause)
	}
	return c.cause
}

// unroutable returns an error if the message was returned. The broker sends a return before the confirm.
func (c *channel) unroutable(id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		select {
		case r, open := <-c.returns:
			if open {
				c.returned[r.MessageId] = r
				continue
			}
		default:
		}
		break
	}
	r, found := c.returned[id]
	if !found {
		return nil
	}
	delete(c.returned, id)
	return fmt.Errorf("%w: exchange %q, routing key %q: %d %s", errUnroutable, r.Exchange, r.RoutingKey, r.ReplyCode,
		r.ReplyText)
}

// headerSize is an upper bound for the frame of properties and headers, which cannot be split.
func headerSize(msg amqp091.Publishing) int {
	size := 2500 // nine properties of up to 255 bytes, and what has a fixed size
	for key, value := range msg.Headers {
		text, _ := value.(string)
		raw, _ := value.([]byte)
		size += len(key) + 16 + len(text) + len(raw)
	}
	return size
}
