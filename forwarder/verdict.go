package forwarder

import (
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
)

// Verdict decides what happens to a message whose publish failed.
type Verdict int

const (
	// Unknown is the verdict on an unrecognised error. A circuit breaker decides: the attempt is counted, as with
	// Retry, until five different messages have failed without a success; then the topic pauses, as with Unavailable.
	// docs/guides/failures.md has the rule.
	Unknown Verdict = iota
	// Retry counts an attempt and retries the message after a backoff; its key is blocked meanwhile.
	Retry
	// Unavailable blames the broker: the message's topic pauses with a backoff, no attempt is counted, and one probe at
	// a time tests it.
	Unavailable
	// Permanent makes the message dead immediately. It is also the verdict on outbox.Poison.
	Permanent
)

// String returns the verdict in lower case, for logs and metrics.
func (v Verdict) String() string {
	switch v {
	case Retry:
		return "retry"
	case Unavailable:
		return "unavailable"
	case Permanent:
		return "permanent"
	}
	return "unknown"
}

// PublishError is an error of Publish with a verdict. The publishers of packages kafka, nats and amqp return it, and
// yours may too.
//
// The forwarder finds it as errors.As does, through decorators and wrapped errors. A verdict of Unknown does not hide a
// wrapped one. Of joined errors Unavailable counts before Retry, and Retry before Permanent.
type PublishError struct {
	Verdict Verdict
	Err     error // what went wrong
}

// Error returns the text of Err, or the name of the verdict if Err is nil.
func (e *PublishError) Error() string {
	switch {
	case e == nil:
		return Unknown.String()
	case e.Err == nil:
		return e.Verdict.String()
	}
	return e.Err.Error()
}

// Unwrap returns Err.
func (e *PublishError) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Err
}

// verdictIn returns the verdict that an error carries: the outermost, and of joined errors the mildest. said is false
// if it carries none.
func verdictIn(err error) (v Verdict, said bool) {
	if e, ok := err.(*PublishError); ok && e != nil {
		if e.Verdict != Unknown {
			return e.Verdict, true
		}
		v, _ = verdictIn(e.Err)
		return v, true
	}
	if err == outbox.ErrPoison {
		return Permanent, true
	}
	if e, ok := err.(interface{ As(target any) bool }); ok {
		var judged *PublishError
		if e.As(&judged) && judged != nil {
			return judged.Verdict, true
		}
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return verdictIn(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			its, facts := verdictIn(one)
			said = said || facts
			if milder(its, v) {
				v = its
			}
		}
	}
	return v, said
}

// milder reports whether a verdict's effect is easier to undo than another's. For example, a message must not be dead
// because a broker was away.
func milder(a, b Verdict) bool {
	rank := map[Verdict]int{Unavailable: 3, Retry: 2, Permanent: 1}
	return rank[a] > rank[b]
}

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
