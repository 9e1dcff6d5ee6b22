package amqp

import (
	"errors"
	"fmt"
	"strings"
	"time"

	wmamqp "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/cloudevents"
)

// PublisherConfig configures NewPublisher.
type PublisherConfig struct {
	// Config is the configuration of watermill-amqp's NewPublisher. Of Config.Publish only GenerateRoutingKey is used;
	// Transactional and Immediate are errors. Exchange.NoWait is ignored.
	wmamqp.Config

	// RoutingKey returns the routing key of a message; default: Publish.GenerateRoutingKey of the topic, or for
	// x-consistent-hash exchanges the ordering key, else the UUID.
	RoutingKey func(topic string, msg *message.Message) string

	// AllowUnroutable publishes messages for which no queue is bound; default off. Set it for an x-delayed-message
	// exchange, which returns each message that it delays.
	AllowUnroutable bool

	// AckTimeout is how long a message waits for its confirm; default 5 s.
	AckTimeout time.Duration
}

func (c *PublisherConfig) setDefaults() {
	if c.AckTimeout == 0 {
		c.AckTimeout = 5 * time.Second
	}
	if c.TopologyBuilder == nil {
		c.TopologyBuilder = &wmamqp.DefaultTopologyBuilder{}
	}
	c.Exchange.NoWait = false // the error of a declaration must not look like that of a message
	if c.RoutingKey != nil {
		return
	}
	c.RoutingKey = func(topic string, msg *message.Message) string {
		if c.Exchange.Type != "x-consistent-hash" {
			return c.Publish.GenerateRoutingKey(topic)
		}
		if key := msg.Metadata.Get(outbox.MetadataKey); key != "" {
			return key
		}
		return msg.UUID
	}
}

func (c PublisherConfig) validate() error {
	if err := c.ValidatePublisher(); err != nil {
		return fmt.Errorf("amqp: %w", err)
	}
	// With a raw "/", "?" or "#" in the password, net/url returns an error that quotes it, or finds another host.
	_, rest, _ := strings.Cut(c.Connection.AmqpURI, "://")
	user := rest[:strings.LastIndex(rest, "@")+1]
	switch _, err := amqp091.ParseURI(c.Connection.AmqpURI); {
	case err != nil, strings.ContainsAny(user, "/?#"):
		return errors.New("amqp: Config.Connection.AmqpURI cannot be parsed; it is not shown because it may contain a " +
			"password: write amqp://user:password@host:5672/vhost, and special characters of each part as %XX, also an @ " +
			"in the vhost")
	case c.AckTimeout < 0:
		return fmt.Errorf("amqp: PublisherConfig.AckTimeout is %s: it must be above 0", c.AckTimeout)
	case c.Publish.Transactional || c.Publish.Immediate:
		return errors.New("amqp: Publish.Transactional and Immediate must be false: messages are confirmed")
	}
	if events, ok := c.Marshaler.(CloudEvents); ok {
		if err := cloudevents.CheckSource(events.Source); err != nil {
			return fmt.Errorf("amqp: Config.Marshaler: %w", err)
		}
	}
	return nil
}

// dial connects.
func (c PublisherConfig) dial() (*amqp091.Connection, error) {
	settings := amqp091.Config{Heartbeat: 10 * time.Second, Locale: "en_US"}
	if own := c.Connection.AmqpConfig; own != nil {
		settings = *own
	}
	if settings.Dial == nil {
		settings.Dial = amqp091.DefaultDial(3 * time.Second)
	}
	if c.Connection.TLSConfig != nil {
		settings.TLSClientConfig = c.Connection.TLSConfig
	}
	settings.Recovery = nil // the next Publish connects
	return amqp091.DialConfig(c.Connection.AmqpURI, settings)
}
