package move

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	wforwarder "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
)

// envelopes wraps and unwraps messages with Watermill's own code: the handler and the publisher of its forwarder, which
// publish to a capturing publisher. So each Marshaler works as it does there, and the format is not duplicated here.
type envelopes struct {
	handle   message.HandlerFunc
	wrap     *wforwarder.Publisher
	captured *capture
}

func newEnvelopes(marshaler wforwarder.Marshaler) (*envelopes, error) {
	e := &envelopes{captured: &capture{}}
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

// open returns the message in an envelope and its topic.
func (e *envelopes) open(envelope *message.Message) (topic string, msg *message.Message, err error) {
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

// seal returns a message in an envelope with its own UUID.
func (e *envelopes) seal(topic string, msg *message.Message) (*message.Message, error) {
	*e.captured = capture{}
	if err := e.wrap.Publish(topic, msg); err != nil {
		return nil, err
	}
	return e.captured.msg, nil
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
