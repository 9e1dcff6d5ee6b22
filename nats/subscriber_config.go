package nats

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	natsgo "github.com/nats-io/nats.go"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/inbound"
	"github.com/millrace-go/watermill-outbox/observe"
)

// SubscriberConfig configures NewSubscriber. Required is Consumer.
type SubscriberConfig struct {
	// URL is one server or several, separated by commas: nats://user:password@host:4222. It is never logged or quoted.
	// Default: nats://127.0.0.1:4222.
	URL string

	// Options are applied after those of this package: credentials, TLS. A subscription has a connection of its own.
	Options []natsgo.Option

	// Domain is the JetStream domain. Default: that of the server.
	Domain string

	// Consumer names the service and the handler, "booking-orders" for one. It is the beginning of the name of the durable
	// consumer, which keeps what is done; the topic is added to it. All processes of a service have the same Consumer,
	// AckWait and MaxAhead.
	Consumer string

	// Unmarshaler makes the message of the NATS message. Default: watermill-nats's NATSMarshaler, with metadata under the
	// names that they had before nats.Publisher encoded them.
	Unmarshaler wmnats.Unmarshaler

	// Concurrency is how many messages of a subscription are delivered and not acked; default 16. Messages that failed
	// before have at most half of these places. Each handler in middleware.Tx needs a connection of the pool; more
	// handlers than connections only wait for one.
	Concurrency int

	// Key says which messages keep their order: those with the same key are delivered one after another. Default: the
	// header "outbox_key", in which nats.Publisher sends the ordering key. A message without bytes in it waits for no
	// other. It is called once for each message, before Unmarshaler, and must be safe for concurrent use. While it hangs,
	// so does the subscription.
	Key func(*natsgo.Msg) []byte

	// MaxAhead is how many messages are read that are not done; default 1,000. It is the MaxAckPending of the consumer.
	// Then the consumer pauses until one of them is done.
	MaxAhead int

	// MaxBytes is how large those messages may be together; default 64 MiB. Above it the consumer pauses until half of
	// that is done. What one pull fetches, up to 256 messages, comes on top.
	MaxBytes int

	// Backoff is the wait of a key after its message was nacked, by nacks of that message in a row; default 100 ms
	// doubling to 10 s. For an outbox.RetryAfter that middleware.Outcomes has seen it is the wait that the handler asked
	// for.
	Backoff outbox.Backoff

	// AckWait is that of the consumer: after which JetStream delivers again what a process that died had in hand; default
	// 15 s. Another process takes over a third later. Handlers may take longer: JetStream is told of what is in hand.
	AckWait time.Duration

	// CloseTimeout is how long the end of a subscription waits for its handlers; default 5 s. The contexts of the messages
	// end when it begins, as those of all Watermill's subscribers do. It must be less than
	// message.RouterConfig.CloseTimeout (30 s).
	CloseTimeout time.Duration

	// Observers are told of the consumer, as of a partition with number 0, if they are an observe.PartitionObserver.
	Observers []observe.Observer
}

func (c *SubscriberConfig) setDefaults() {
	if c.Unmarshaler == nil {
		c.Unmarshaler = Unmarshaler{}
	}
	if c.Key == nil {
		c.Key = func(msg *natsgo.Msg) []byte { return []byte(keyIn(msg.Header)) }
	}
	inbound.Fill(&c.URL, natsgo.DefaultURL)
	inbound.Fill(&c.Concurrency, 16)
	inbound.Fill(&c.MaxAhead, 1000)
	inbound.Fill(&c.MaxBytes, 64<<20)
	inbound.Fill(&c.AckWait, 15*time.Second)
	inbound.Fill(&c.CloseTimeout, 5*time.Second)
	c.Backoff = outbox.Backoff(core.Backoff(c.Backoff).WithDefaults(100*time.Millisecond, 10*time.Second))
}

// minAckWait leaves time for a few pulls.
const minAckWait = 2 * time.Second

// validate names every field at fault.
func (c SubscriberConfig) validate() error {
	errs := []error{checkURL("SubscriberConfig", c.URL)}
	if c.Consumer == "" || strings.ContainsAny(c.Consumer, " .*>/\\\t\r\n") {
		errs = append(errs, errors.New("nats: SubscriberConfig.Consumer is empty, or has spaces or one of .*>/\\: "+
			"the consumer keeps which messages are done: name the service and the handler"))
	}
	if c.AckWait < minAckWait {
		errs = append(errs, fmt.Errorf("nats: SubscriberConfig.AckWait is %s: it must be at least %s", c.AckWait, minAckWait))
	}
	errs = append(errs,
		inbound.Positive("nats: SubscriberConfig.Concurrency", c.Concurrency),
		inbound.Positive("nats: SubscriberConfig.MaxAhead", c.MaxAhead),
		inbound.Positive("nats: SubscriberConfig.MaxBytes", c.MaxBytes),
		inbound.Positive("nats: SubscriberConfig.CloseTimeout", c.CloseTimeout),
		core.Backoff(c.Backoff).Validate("nats: SubscriberConfig.Backoff"),
	)
	options := natsgo.GetDefaultOptions()
	for _, o := range c.connect() {
		if o == nil {
			continue
		}
		if err := o(&options); err != nil {
			errs = append(errs, fmt.Errorf("nats: SubscriberConfig.Options: %w", err))
		}
	}
	if !options.AllowReconnect || options.MaxReconnect >= 0 {
		errs = append(errs, errors.New("nats: SubscriberConfig.Options: MaxReconnects must be negative: "+
			"a client that gives up reconnecting never reads again"))
	}
	if options.ReconnectBufSize >= 0 {
		errs = append(errs, errors.New("nats: SubscriberConfig.Options: ReconnectBufSize must be negative: "+
			"acks that wait for a connection would arrive when another process owns the consumer"))
	}
	return errors.Join(errs...)
}

func (c SubscriberConfig) connect() []natsgo.Option { return slices.Concat(Options(), c.Options) }

// pinnedTTL is after which the consumer gives another process the messages, if the owner does not pull. It is longer
// than AckWait, so that what the owner had in hand comes first.
func (c SubscriberConfig) pinnedTTL() time.Duration { return c.AckWait + c.AckWait/3 }

// pullWait is how long a pull waits for messages.
func (c SubscriberConfig) pullWait() time.Duration { return min(time.Second, c.AckWait/6) }
