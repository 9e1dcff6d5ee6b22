package nats

import (
	"errors"
	"fmt"
	"slices"
	"time"

	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	natsgo "github.com/nats-io/nats.go"
)

// AckWait is how long one call waits for JetStream's acknowledgement, tries while nobody
// responds included, unless JetStream.PublishOptions says otherwise.
const AckWait = 5 * time.Second

// PublisherConfig configures NewPublisher. Its zero value connects to nats://127.0.0.1:4222.
type PublisherConfig struct {
	// URL is one server or several, separated by commas. Default: nats://127.0.0.1:4222.
	URL string

	// NatsOptions are applied after those of Options: credentials, TLS, handlers. Optional.
	NatsOptions []natsgo.Option

	// Marshaler makes NATS messages of Watermill's. Default: watermill-nats's NATSMarshaler. It is always
	// wrapped in a Marshaler of this package, which sets Nats-Msg-Id unless yours has.
	Marshaler wmnats.Marshaler

	// SubjectCalculator names the subjects of a stream that AutoProvision creates. Default: the topic.
	SubjectCalculator wmnats.SubjectCalculator

	// JetStream are watermill-nats's settings: AutoProvision (default off), domain and prefix in
	// ConnectOptions, PublishOptions. Disabled and TrackMsgId must stay false. Those for subscribers are ignored.
	JetStream wmnats.JetStreamConfig
}

func (c PublisherConfig) watermill() (wmnats.PublisherConfig, error) {
	if c.JetStream.Disabled {
		return wmnats.PublisherConfig{}, errors.New("nats: unsafe behind an outbox: JetStream.Disabled must be false: core NATS acknowledges nothing")
	}
	if c.JetStream.TrackMsgId {
		return wmnats.PublisherConfig{}, errors.New("nats: unsafe behind an outbox: JetStream.TrackMsgId must be false: " +
			"it takes the same UUID on two subjects of a stream for one message; the Marshaler sets Nats-Msg-Id")
	}

	connect := slices.Concat(Options(), c.NatsOptions)
	options := natsgo.GetDefaultOptions()
	for _, o := range connect {
		if o == nil {
			continue
		}
		if err := o(&options); err != nil {
			return wmnats.PublisherConfig{}, fmt.Errorf("nats: PublisherConfig.NatsOptions: %w", err)
		}
	}
	if !options.AllowReconnect || options.MaxReconnect >= 0 {
		return wmnats.PublisherConfig{}, errors.New("nats: unsafe behind an outbox: MaxReconnects must be negative: " +
			"a client that gives up reconnecting never publishes again")
	}

	js := c.JetStream
	js.PublishOptions = slices.Concat(PublishConfig().JetStream.PublishOptions, js.PublishOptions)
	return wmnats.PublisherConfig{
		URL:               c.URL,
		NatsOptions:       connect,
		Marshaler:         Marshaler{Marshaler: c.Marshaler},
		SubjectCalculator: c.SubjectCalculator,
		JetStream:         js,
	}, nil
}

// Options returns the connection settings that the package comment explains, for those who connect themselves.
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

// PublishConfig returns the publish settings that the package comment explains, for those who hand their
// own connection to watermill-nats's NewPublisherWithNatsConn.
func PublishConfig() wmnats.PublisherPublishConfig {
	return wmnats.PublisherPublishConfig{
		Marshaler:         Marshaler{},
		SubjectCalculator: wmnats.DefaultSubjectCalculator,
		JetStream:         wmnats.JetStreamConfig{PublishOptions: []natsgo.PubOpt{natsgo.AckWait(AckWait)}},
	}
}
