package amqp

import (
	"context"
	"errors"
	"io"
	"net"

	"github.com/rabbitmq/amqp091-go"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
)

// Errors of Publish. Classify calls all of them Unavailable, except errRefused.
var (
	// errNotConnected is returned while no connection can be made.
	//
	// Cause: the broker is down, or the URI, user or password is wrong.
	// Cure: start it, or correct Config.Connection.
	errNotConnected = errors.New("not connected to RabbitMQ")
	// errExchange is returned while the exchange cannot be declared.
	//
	// Cause: RabbitMQ has an exchange of that name with other properties, does not know its type, or denies permission.
	// Cure: correct Config.Exchange, or the server.
	errExchange = errors.New("cannot declare the exchange")
	// errNoConfirm is returned for messages in flight on a connection that was lost or closed. They may have arrived.
	//
	// Cause: the broker stopped, is frozen, or has an alarm.
	// Cure: check the broker; the messages are published again.
	errNoConfirm = errors.New("no confirm from the broker")
	// errNack is returned if the broker could not accept the message: its queue is full, or failed.
	errNack = errors.New("refused by the broker: check the limits and the state of its queue")
	// errRefused is returned for a message that the broker refused although no other was in flight on its channel.
	//
	// Cause: it is larger than the server's max_message_size; for other causes see the broker's error.
	// Cure: raise the limit or send less; then requeue.
	errRefused = errors.New("message refused by RabbitMQ")
	// errUnroutable is returned if no queue is bound for the message.
	errUnroutable = errors.New("no queue takes the message: bind one, or set AllowUnroutable")
)

// Classify returns the verdict on an error of Publish; the package comment lists them.
func Classify(err error) forwarder.Verdict {
	var netErr net.Error
	var reply *amqp091.Error
	switch {
	case errors.Is(err, outbox.ErrInvalidMessage), errors.Is(err, errRefused):
		return forwarder.Permanent
	case errors.Is(err, errNotConnected), errors.Is(err, errExchange), errors.Is(err, errNoConfirm),
		errors.Is(err, errNack), errors.Is(err, errUnroutable), errors.Is(err, outbox.ErrClosed),
		errors.Is(err, forwarder.ErrPublishTimeout), errors.Is(err, context.Canceled),
		errors.Is(err, context.DeadlineExceeded), errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed),
		errors.As(err, &netErr), errors.As(err, &reply):
		return forwarder.Unavailable
	}
	return forwarder.Unknown
}
