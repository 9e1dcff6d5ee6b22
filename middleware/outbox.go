package middleware

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// correlationKey is the metadata key of Watermill's CorrelationID, whose value all messages of a conversation share.
const correlationKey = "correlation_id"

// OutboxConfig configures Outbox. The zero value is ready for use.
type OutboxConfig struct {
	// Topic is the topic of returned messages; default: the handler's publish topic in its Router.
	Topic string
}

// Outbox writes the messages that the handler returns to the outbox table, together with COMMIT, and returns none. It
// needs a transaction around it, such as Tx.
//
// Returned messages that lack them get the metadata correlation_id (the consumed message's, else its UUID) and
// causation_id (the UUID of the consumed message). Middlewares that decorate returned messages, such as Watermill's
// CorrelationID, go inside.
//
// Outbox returns an error if a handler of forwarder.Subscriber returns the message that was delivered to it, which
// would loop; outbox.ErrNoTx, before the handler runs, and outbox.ErrOtherDB; outbox.ErrInvalidMessage for a message
// that cannot be stored; an error if there is no topic; and the handler's errors. The constructor returns an error if
// pub is nil, or one that names an invalid field. Outbox logs nothing.
func Outbox(
	pub *outbox.Publisher, cfg OutboxConfig, logger watermill.LoggerAdapter,
) (message.HandlerMiddleware, error) {
	switch {
	case pub == nil:
		return nil, errNoPublisher
	case len(cfg.Topic) > core.MaxTopicBytes || !text.Storable(cfg.Topic):
		return nil, fmt.Errorf("OutboxConfig.Topic must be UTF-8 without NUL, of at most %d bytes", core.MaxTopicBytes)
	}
	return around("Outbox", (&capturer{pub: (*core.Publisher)(pub), cfg: cfg}).handle), nil
}

type capturer struct {
	pub *core.Publisher
	cfg OutboxConfig
}

func (c *capturer) handle(next message.HandlerFunc, msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context() // the handler may replace it in the message
	delivered := isDelivered(msg)
	if _, err := c.pub.DB().Tx(ctx); err != nil {
		return nil, checkTx(err, "Outbox")
	}
	uuid, correlation := msg.UUID, msg.Metadata.Get(correlationKey)
	produced, err := next(msg)
	if err != nil || len(produced) == 0 {
		return nil, err
	}
	topic := c.cfg.Topic
	if topic == "" {
		topic = message.PublishTopicFromCtx(ctx)
	}
	if topic == "" {
		return nil, &wiringError{text: fmt.Sprintf("outbox: handler %q returned messages but has no publish topic: "+
			"set OutboxConfig.Topic, or add it with AddHandler", message.HandlerNameFromCtx(ctx))}
	}
	for _, out := range produced {
		if delivered && out != nil && out.UUID == uuid {
			return nil, fmt.Errorf("outbox: handler %q: %w", message.HandlerNameFromCtx(ctx), errReturned)
		}
		relate(out, uuid, correlation)
	}
	if err := c.pub.Capture(ctx, topic, produced...); err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	return nil, nil
}

// relay adds the metadata that names the conversation and the message that caused this one.
func relate(out *message.Message, cause, correlation string) {
	if out == nil {
		return // left to Capture, which names the invalid key
	}
	if out.Metadata == nil {
		out.Metadata = message.Metadata{}
	}
	if correlation == "" {
		correlation = cause
	}
	set := func(key, value string) {
		if value != "" && out.Metadata.Get(key) == "" {
			out.Metadata.Set(key, value)
		}
	}
	set(correlationKey, correlation)
	if out.UUID != cause {
		set(outbox.MetadataCausationID, cause)
	}
}
