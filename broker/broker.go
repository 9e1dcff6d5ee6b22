// Package broker has the interfaces by which package admin reads a broker: the messages that it holds, for Reconcile,
// and what it may lose, for Doctor. kafka.TopicReader and nats.TopicReader implement them.
package broker

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// TopicReader reads the messages that a broker holds.
type TopicReader interface {
	// Each calls fn with the UUID of each message that a topic holds when Each is called and that the broker received
	// at or after a time by its own clock, in any order, and perhaps with other UUIDs. It ends with fn's error. It
	// returns an error if the topic does not exist, or if missing messages may have been deleted on purpose: by age,
	// compaction, limits, or because they were consumed.
	Each(ctx context.Context, topic string, after time.Time, fn func(uuid string) error) error
}

// Checker checks the topics of a broker for Doctor.
type Checker interface {
	// Check returns the topics that may lose acknowledged messages, and the topics that the broker does not have, which
	// may be another broker's.
	Check(ctx context.Context, topics []string) (risks []Risk, missing []string, err error)
	// Retention returns the retention of a topic; -1 is forever or until a limit. It is not known for a topic that the
	// broker does not have, which may be another broker's.
	Retention(ctx context.Context, topic string) (retention time.Duration, known bool, err error)
}

// Risk is a way in which a topic may lose acknowledged messages.
type Risk struct {
	Severity Severity
	Evidence string // what is the case, with the name of the topic
	Cure     string // what to do; commands are in parentheses or after a colon
}

// Severity is how bad something is. As text it is its name in lower case.
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

// UnmarshalText parses the name of a severity.
func (s *Severity) UnmarshalText(name []byte) error {
	i := slices.Index(severityNames, string(name))
	if i < 0 {
		return fmt.Errorf("there is no severity %q: use info, warning or critical", name)
	}
	*s = Severity(i)
	return nil
}
