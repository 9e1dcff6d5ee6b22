package nats

import (
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	natsgo "github.com/nats-io/nats.go"
)

// NewPublisher returns a watermill-nats publisher with the settings that the package comment explains. It is
// safe for concurrent use. It returns an error if the configuration is unsafe or invalid, but not if no server can be
// reached: it goes on trying, and Publish fails until there is one. Connection state and what the
// server reports asynchronously is logged; a nil logger logs nothing.
func NewPublisher(config PublisherConfig, logger watermill.LoggerAdapter) (*wmnats.Publisher, error) {
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	wc, err := config.watermill()
	if err != nil {
		return nil, err
	}
	wc.NatsOptions = slices.Concat(logging(logger), wc.NatsOptions)

	pub, err := wmnats.NewPublisher(wc, logger)
	if err != nil {
		return nil, fmt.Errorf("nats: new publisher: %w", err)
	}
	return pub, nil
}

func logging(logger watermill.LoggerAdapter) []natsgo.Option {
	return []natsgo.Option{
		natsgo.DisconnectErrHandler(func(_ *natsgo.Conn, err error) {
			if err != nil {
				logger.Error("NATS connection lost, reconnecting", err, nil)
			}
		}),
		natsgo.ReconnectHandler(func(c *natsgo.Conn) {
			logger.Info("NATS connection is back", watermill.LogFields{"url": c.ConnectedUrlRedacted()})
		}),
		natsgo.ErrorHandler(func(_ *natsgo.Conn, _ *natsgo.Subscription, err error) {
			logger.Error("NATS reports an error", err, nil)
		}),
	}
}
