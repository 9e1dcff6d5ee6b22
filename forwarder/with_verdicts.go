package forwarder

import "github.com/ThreeDotsLabs/watermill/message"

// WithVerdicts returns a publisher whose errors carry the verdict of classify, for a publisher whose own errors carry
// none. Unlike Config.Classify it affects only this publisher, and not others of Config.Routes. For Unknown the
// publisher's error is returned unchanged.
//
//	pub := forwarder.WithVerdicts(redisPublisher, redis.Classify)
func WithVerdicts(pub message.Publisher, classify func(error) Verdict) message.Publisher {
	return &classified{pub, classify}
}

type classified struct {
	message.Publisher
	classify func(error) Verdict
}

func (c *classified) Publish(topic string, msgs ...*message.Message) error {
	err := c.Publisher.Publish(topic, msgs...)
	if err == nil {
		return nil
	}
	if v := c.classify(err); v != Unknown {
		return &PublishError{Verdict: v, Err: err}
	}
	return err
}
