package forwarder

import (
	"github.com/ThreeDotsLabs/watermill/message"
)

// Verdict says whose fault a failed publish is, and so what becomes of the message.
type Verdict int

const (
	// Retry charges the message an attempt and tries again after a backoff; its key is held meanwhile.
	// It is the verdict on an error that nobody recognises.
	Retry Verdict = iota
	// Unavailable blames the broker: the message's topic pauses with a backoff, no attempt is charged,
	// and one trial message reopens the topic.
	Unavailable
	// Permanent marks the message dead at once: trying again cannot help.
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

// Classifier is a publisher that knows its errors, as those of publisher/kafka and publisher/nats do. The
// forwarder asks it for the verdict on each of them, unless Config.Classify is set. Classify must be safe for
// concurrent use. A decorator around such a publisher hides the method: set Config.Classify then.
type Classifier interface {
	Classify(err error) Verdict
}

// judge gives the verdict on an error of the publisher of a topic.
type judge func(topic string, err error) Verdict

const blindWarning = "WARNING: nobody knows this publisher's errors, so an outage of the broker is charged to the messages " +
	"until they are dead; set Config.Classify, or give the publisher a Classify method"

// newJudge asks Config.Classify, else the publisher that the topic goes to. It also says whether there is a
// publisher of which nobody knows the errors.
func newJudge(pub message.Publisher, cfg Config) (_ judge, blind bool) {
	if cfg.Classify != nil {
		return func(_ string, err error) Verdict { return cfg.Classify(err) }, false
	}
	fallback, known := pub.(Classifier)
	blind = !known
	routed := make(map[string]Classifier, len(cfg.Routes))
	for topic, to := range cfg.Routes {
		routed[topic], known = to.(Classifier)
		blind = blind || !known
	}
	return func(topic string, err error) Verdict {
		c, ok := routed[topic]
		if !ok {
			c = fallback
		}
		if c == nil {
			return Retry
		}
		return c.Classify(err)
	}, blind
}
