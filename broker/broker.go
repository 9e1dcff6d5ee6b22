// Package broker defines the interfaces that package admin uses to read a broker: TopicReader for its messages, and
// Checker for settings that may lose messages. kafka.TopicReader and nats.TopicReader implement both.
//
//	reader, err := kafka.NewTopicReader(kafka.TopicReaderConfig{Brokers: brokers}, logger)
//	findings, err := a.Doctor(ctx, reader)
//	result, err := a.Reconcile(ctx, reader, admin.Action{Filter: filter, DryRun: true})
package broker

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// TopicReader reads the messages in the topics of a broker, for admin.Reconcile. It must be safe for concurrent use.
type TopicReader interface {
	// Each calls fn with the UUID of each message that is in a topic when Each is called and that the broker received at
	// or after a time, on the broker's clock. The order does not matter, and fn may also get UUIDs of other messages.
	//
	// If fn fails, Each stops and returns its error. Each also returns an error if the topic does not exist, or if the
	// broker may have deleted messages on purpose: by age, by compaction, because of a limit, or after consumption. Such
	// messages would otherwise count as lost.
	Each(ctx context.Context, topic string, after time.Time, fn func(uuid string) error) error
}

// Checker checks the settings of a broker's topics, for admin.Doctor. It must be safe for concurrent use.
type Checker interface {
	// Check returns the risks that these topics lose acknowledged messages, and the topics that the broker does not
	// have. Missing topics may be on another broker and are not an error.
	Check(ctx context.Context, topics []string) (risks []Risk, missing []string, err error)
	// Retention returns how long the broker keeps the messages of a topic; -1 = forever, or until the topic reaches
	// another limit. known is false, without an error, if the broker does not have the topic, or deletes messages once
	// they are consumed.
	Retention(ctx context.Context, topic string) (retention time.Duration, known bool, err error)
}

// Risk is a setting that may lose acknowledged messages of a topic.
type Risk struct {
	Severity Severity
	Evidence string // the setting and its consequence, with the name of the topic or stream
	Cure     string // the next step; commands are in parentheses or after a colon
}

// Severity grades a Risk or an admin.Finding. A higher value is more severe.
type Severity int

// The severities, from the lowest to the highest.
const (
	Info    Severity = iota // worth knowing: no action is needed now
	Warning                 // works, but badly, or not for long
	// messages are not published or handled, or may be lost, or PostgreSQL will soon refuse work
	Critical
)

var severityNames = []string{"info", "warning", "critical"}

// String returns "info", "warning" or "critical".
func (s Severity) String() string {
	if s < 0 || int(s) >= len(severityNames) {
		return fmt.Sprintf("Severity(%d)", int(s))
	}
	return severityNames[s]
}

// MarshalText returns the same name as String. It never fails.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText sets the severity by its name, in lower case. It returns an error for any other text.
func (s *Severity) UnmarshalText(name []byte) error {
	i := slices.Index(severityNames, string(name))
	if i < 0 {
		return fmt.Errorf("unknown severity %q: use info, warning or critical", name)
	}
	*s = Severity(i)
	return nil
}
