// Package broker is what package admin asks of a broker: what it holds, for Reconcile, and what it may lose, for
// Doctor. The TopicReader of kafka.Publisher and that of nats.Publisher are both. Write one for another broker, and
// neither has to know the other.
package broker

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// TopicReader reads what a broker holds.
type TopicReader interface {
	// Each calls fn with the UUID of each message of a topic that the broker has taken at or after a time by its own
	// clock, and that it holds when Each is called, in any order, and perhaps with others. It ends with fn's error, and
	// returns an error if the topic does not exist, or if what is missing may have been deleted as it was meant to be:
	// by age, by compaction, by limits of the broker, or because it was consumed.
	Each(ctx context.Context, topic string, after time.Time, fn func(uuid string) error) error
}

// MessageReader reads whole messages, for admin.RedriveTopic.
type MessageReader interface {
	// Messages calls fn with each message that a topic holds when Messages is called, and the time at which the broker
	// took it, or its sender sent it. It ends with fn's error, and returns an error if the topic does not exist or a
	// message cannot be read.
	Messages(ctx context.Context, topic string, fn func(m *message.Message, at time.Time) error) error
}

// Checker looks at the topics of a broker.
type Checker interface {
	// Check says of those of the topics that the broker has which may lose what it has acknowledged, and which of them
	// it has not: they may be another broker's.
	Check(ctx context.Context, topics []string) (risks []Risk, missing []string, err error)
}

// Keeper is a Checker that also knows for how long a broker keeps the messages of a topic.
type Keeper interface {
	Checker
	// Keeps returns for how long, -1 for ever or until there are too many. It is not known of a topic that the broker has
	// not: it may be another broker's.
	Keeps(ctx context.Context, topic string) (retention time.Duration, known bool, err error)
}

// Risk is how a topic may lose what its broker has acknowledged.
type Risk struct {
	Severity Severity
	Evidence string // what is the case, with the name of the topic
	Cure     string // what to do; commands are in parentheses or after a colon
}

// Severity says how bad something is. As text it is its name in lower case.
type Severity int

// The severities.
const (
	Info    Severity = iota // worth knowing; nothing has to be done now
	Warning                 // works, but not well, or not for long
	// messages are not published or not handled, may be lost, or the server soon refuses something
	Critical
)

var severityNames = []string{"info", "warning", "critical"}

// String returns the name of the severity.
func (s Severity) String() string {
	if s < 0 || int(s) >= len(severityNames) {
		return fmt.Sprintf("Severity(%d)", int(s))
	}
	return severityNames[s]
}

// MarshalText returns the name of the severity.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes the name of a severity.
func (s *Severity) UnmarshalText(name []byte) error {
	i := slices.Index(severityNames, string(name))
	if i < 0 {
		return fmt.Errorf("there is no severity %q: use info, warning or critical", name)
	}
	*s = Severity(i)
	return nil
}
