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

// SubscriberConfig configures NewSubscriber. Only Consumer is required.
type SubscriberConfig struct {
	// URL is one server or several, as in PublisherConfig.
	URL string

	// Options are applied after Options(): credentials, TLS; default none. Each subscription has its own connection.
	Options []natsgo.Option

	// Domain is the JetStream domain; default: the server's.
	Domain string

	// Consumer names service and handler; together with the topic it is the name of the durable consumer. Required. All
	// processes of a service need the same Consumer, AckWait and MaxAhead.
	Consumer string

	// Unmarshaler creates Watermill messages; default: watermill-nats's NATSMarshaler, which restores metadata encoded by
	// Publisher.
	Unmarshaler wmnats.Unmarshaler

	// Concurrency limits the delivered messages that are not acked yet; default 16. Messages that failed before use at
	// most half of it. Each handler in middleware.Tx needs a connection.
	Concurrency int

	// Key returns the key by which messages keep their order; default: the header "outbox_key". Messages without a key are
	// not ordered. It must be safe for concurrent use, and must not hang.
	Key func(*natsgo.Msg) []byte

	// MaxAhead limits the unfinished messages that are read, as the consumer's MaxAckPending; default 1,000. At the limit
	// the consumer pauses.
	MaxAhead int

	// MaxBytes limits the size of unfinished messages; default 64 MiB. Above it, the consumer pauses. One pull of up to
	// 256 messages is not counted.
	MaxBytes int

	// Backoff is the wait of a key after a nack; default 100 ms doubling to 10 s. outbox.RetryAfter overrides it.
	Backoff outbox.Backoff

	// AckWait is the consumer's AckWait, after which messages of a dead process are delivered again; default 15 s. A
	// standby takes over after 4/3 of it. Handlers may take longer.
	AckWait time.Duration

	// CloseTimeout is how long a closing subscription waits for its handlers; default 5 s. Keep it below
	// message.RouterConfig.CloseTimeout (30 s).
	CloseTimeout time.Duration

	// Observers watch the consumer, as partition 0, if they come from observe/prom; default none.
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

// validate returns an error that names every invalid field.
func (c SubscriberConfig) validate() error {
	errs := []error{checkURL("SubscriberConfig", c.URL)}
	if c.Consumer == "" || strings.ContainsAny(c.Consumer, " .*>/\\\t\r\n") {
		errs = append(errs, errors.New("nats: SubscriberConfig.Consumer is empty, or has spaces or one of .*>/\\: "+
			"the consumer records which messages are done: name the service and the handler"))
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

// pinnedTTL is the time without a pull after which the server pins another process. It is longer than AckWait, so that
// the owner's messages in flight are redelivered first.
func (c SubscriberConfig) pinnedTTL() time.Duration { return c.AckWait + c.AckWait/3 }

// pullWait is how long a pull waits for messages.
func (c SubscriberConfig) pullWait() time.Duration { return min(time.Second, c.AckWait/6) }
