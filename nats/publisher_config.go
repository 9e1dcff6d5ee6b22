package nats

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	natsgo "github.com/nats-io/nats.go"

	"github.com/millrace-go/watermill-outbox/internal/cloudevents"
)

const defaultAckTimeout = 5 * time.Second

// PublisherConfig configures NewPublisher. Its zero value connects to nats://127.0.0.1:4222.
type PublisherConfig struct {
	// URL is one server or several, separated by commas: nats://user:password@host:4222, with special characters of the
	// password as %XX. It is never logged. Default nats://127.0.0.1:4222.
	URL string

	// Options are applied after Options(): credentials, TLS, handlers; default none.
	Options []natsgo.Option

	// Marshaler creates NATS messages; default: watermill-nats's NATSMarshaler. Headers that it sets itself are kept, such
	// as Nats-TTL or Nats-Msg-Id; headers that it copies from metadata are data.
	Marshaler wmnats.Marshaler

	// JetStream has watermill-nats's settings: AutoProvision (default off), domain and prefix in ConnectOptions,
	// PublishOptions. Disabled and TrackMsgId must stay false.
	JetStream wmnats.JetStreamConfig

	// AckTimeout is how long a message waits for its acknowledgement; default 5 s. Keep it below
	// forwarder.Config.PublishTimeout.
	AckTimeout time.Duration
}

func (c *PublisherConfig) setDefaults() {
	if c.URL == "" {
		c.URL = natsgo.DefaultURL
	}
	if c.AckTimeout == 0 {
		c.AckTimeout = defaultAckTimeout
	}
}

func (c PublisherConfig) validate() error {
	unsafe := func(field, why string) error {
		return fmt.Errorf("nats: unsafe behind an outbox: PublisherConfig.%s: %s", field, why)
	}
	if err := checkURL("PublisherConfig", c.URL); err != nil {
		return err
	}
	if events, ok := c.Marshaler.(CloudEvents); ok {
		if err := cloudevents.CheckSource(events.Source); err != nil {
			return fmt.Errorf("nats: PublisherConfig.Marshaler: %w", err)
		}
	}
	switch {
	case c.AckTimeout < 0:
		return fmt.Errorf("nats: PublisherConfig.AckTimeout is %s: use a positive time, since Publish takes no context",
			c.AckTimeout)
	case c.JetStream.Disabled:
		return unsafe("JetStream.Disabled must be false", "core NATS acknowledges nothing")
	case c.JetStream.TrackMsgId:
		return unsafe("JetStream.TrackMsgId must be false",
			"it takes the same UUID on two subjects of a stream for one message; the publisher sets Nats-Msg-Id")
	}

	options := natsgo.GetDefaultOptions()
	for _, o := range c.connect() {
		if o == nil {
			continue
		}
		if err := o(&options); err != nil {
			return fmt.Errorf("nats: PublisherConfig.Options: %w", err)
		}
	}
	if !options.AllowReconnect || options.MaxReconnect >= 0 {
		return unsafe("Options: MaxReconnects must be negative", "a client that gives up reconnecting never publishes again")
	}
	return nil
}

// checkURL rejects URLs that nats.go cannot parse, or in which it finds another host because the password is not
// escaped. Unlike nats.go's errors, its error does not quote the URL.
func checkURL(config, urls string) error {
	for i, s := range strings.Split(urls, ",") {
		if s = strings.TrimSpace(s); !strings.Contains(s, "://") {
			s = "nats://" + s
		}
		u, err := url.Parse(s)
		if err != nil || strings.Contains(u.Path+u.RawQuery+u.Fragment, "@") {
			return fmt.Errorf("nats: %s.URL: server %d cannot be parsed; it is not shown because it may contain a "+
				"password: "+
				"write special characters of the "+
				"password as %%XX, a slash as %%2F", config, i+1)
		}
	}
	return nil
}

// address returns the address of the connected server, or "" without a connection. The URL may contain a password, or a
// token as the user.
func address(c *natsgo.Conn) string {
	u, err := url.Parse(c.ConnectedUrl())
	if err != nil || u.Host == "" {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

func (c PublisherConfig) connect() []natsgo.Option { return slices.Concat(Options(), c.Options) }

func (c PublisherConfig) publish(quoted func(key string)) wmnats.PublisherPublishConfig {
	js := c.JetStream
	js.PublishOptions = slices.Concat([]natsgo.PubOpt{natsgo.AckWait(c.AckTimeout)}, js.PublishOptions)
	return wmnats.PublisherPublishConfig{
		Marshaler: marshaler{c.Marshaler, quoted}, SubjectCalculator: wmnats.DefaultSubjectCalculator,
		JetStream: js,
	}
}

// Options returns the connection settings that docs/start/nats.md lists, for programs that connect themselves.
func Options() []natsgo.Option {
	return []natsgo.Option{
		natsgo.Name("watermill-outbox"),
		natsgo.RetryOnFailedConnect(true),
		natsgo.MaxReconnects(-1),
		natsgo.IgnoreAuthErrorAbort(),
		natsgo.ReconnectWait(500 * time.Millisecond),
		natsgo.ReconnectBufSize(-1),
		natsgo.PingInterval(20 * time.Second),
	}
}
