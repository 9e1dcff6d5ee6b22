// Package envelope wraps and unwraps messages as Watermill's forwarder does.
package envelope

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	wforwarder "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
)

// DefaultTopic is the default topic of Watermill's forwarder, which does not export it.
const DefaultTopic = "forwarder_topic"

// NoDelay is the time of messages without a delay, for queues that require a time.
const NoDelay = "1970-01-01T00:00:00Z"

// Envelopes wraps and unwraps messages with Watermill's own code: the handler and the publisher of its forwarder, which
// publish to a capturing publisher. So each Marshaler works as it does there, and the format is not duplicated here. It
// is not safe for concurrent use.
type Envelopes struct {
	handle   message.HandlerFunc
	wrap     *wforwarder.Publisher
	captured *capture
}

// New returns Envelopes with a marshaler; nil means JSON.
func New(marshaler wforwarder.Marshaler) (*Envelopes, error) {
	e := &Envelopes{captured: &capture{}}
	e.wrap = wforwarder.NewPublisher(e.captured, wforwarder.PublisherConfig{Marshaler: marshaler})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	_, err = wforwarder.NewForwarder(nil, e.captured, watermill.NopLogger{},
		wforwarder.Config{Router: router, Marshaler: marshaler})
	if err != nil {
		return nil, err
	}
	for _, handle := range router.Handlers() { // its only handler; the router never runs
		e.handle = handle
	}
	return e, nil
}

// Open returns the message in an envelope and its topic.
func (e *Envelopes) Open(envelope *message.Message) (topic string, msg *message.Message, err error) {
	*e.captured = capture{}
	if _, err := e.handle(envelope); err != nil {
		return "", nil, err
	}
	if e.captured.msg == nil {
		return "", nil, errors.New("the envelope is empty")
	}
	if e.captured.msg.Metadata == nil {
		e.captured.msg.Metadata = message.Metadata{}
	}
	return e.captured.topic, e.captured.msg, nil
}

// Seal returns a message in an envelope with its own UUID.
func (e *Envelopes) Seal(topic string, msg *message.Message) (*message.Message, error) {
	*e.captured = capture{}
	if err := e.wrap.Publish(topic, msg); err != nil {
		return nil, err
	}
	return e.captured.msg, nil
}

// KeepDelay gives a message the delay of its envelope or row, unless it has its own.
func KeepDelay(msg *message.Message, outer message.Metadata) {
	if msg.Metadata[delay.DelayedUntilKey] != "" || msg.Metadata[delay.DelayedForKey] != "" {
		return
	}
	for _, k := range []string{delay.DelayedUntilKey, delay.DelayedForKey} {
		if v := outer[k]; v != "" && v != NoDelay {
			msg.Metadata[k] = v
		}
	}
}

// capture is a publisher that keeps its messages.
type capture struct {
	topic string
	msg   *message.Message
}

func (c *capture) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		c.topic, c.msg = topic, msg
	}
	return nil
}

func (c *capture) Close() error { return nil }
