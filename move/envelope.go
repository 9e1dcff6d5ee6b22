package move

import (
	"errors"

	"github.com/ThreeDotsLabs/watermill"
	wforwarder "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
)

// envelopes wraps and unwraps what Watermill's forwarder sends, by Watermill's own code: its handler and its publisher,
// which publish into our hands. So any Marshaler works that works there, and no format is repeated here.
type envelopes struct {
	handle message.HandlerFunc
	wrap   *wforwarder.Publisher
	caught *caught
}

func newEnvelopes(marshaler wforwarder.Marshaler) (*envelopes, error) {
	e := &envelopes{caught: &caught{}}
	e.wrap = wforwarder.NewPublisher(e.caught, wforwarder.PublisherConfig{Marshaler: marshaler})
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	_, err = wforwarder.NewForwarder(nil, e.caught, watermill.NopLogger{},
		wforwarder.Config{Router: router, Marshaler: marshaler})
	if err != nil {
		return nil, err
	}
	for _, handle := range router.Handlers() { // the only one; the router never runs
		e.handle = handle
	}
	return e, nil
}

// open returns the message in an envelope and its topic.
func (e *envelopes) open(envelope *message.Message) (topic string, msg *message.Message, err error) {
	*e.caught = caught{}
	if _, err := e.handle(envelope); err != nil {
		return "", nil, err
	}
	if e.caught.msg == nil {
		return "", nil, errors.New("the envelope is empty")
	}
	if e.caught.msg.Metadata == nil {
		e.caught.msg.Metadata = message.Metadata{}
	}
	return e.caught.topic, e.caught.msg, nil
}

// seal returns a message in an envelope, which has a UUID of its own.
func (e *envelopes) seal(topic string, msg *message.Message) (*message.Message, error) {
	*e.caught = caught{}
	if err := e.wrap.Publish(topic, msg); err != nil {
		return nil, err
	}
	return e.caught.msg, nil
}

// caught is a publisher that keeps its messages.
type caught struct {
	topic string
	msg   *message.Message
}

func (c *caught) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		c.topic, c.msg = topic, msg
	}
	return nil
}

func (c *caught) Close() error { return nil }
