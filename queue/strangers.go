package queue

import (
	"time"
)

const (
	// strangerWarning is how often a topic without a handler is warned of.
	strangerWarning = time.Minute
	// strangerGrace is how long messages of such a topic are not charged: while a new release is rolled out, the old one
	// must not use up the attempts of what is meant for the new one.
	strangerGrace = time.Hour
	// strangerWait is the longest that such a message waits until it is looked at again.
	strangerWait = time.Minute
)

// strangers are the topics without a handler that came by.
type strangers map[string]*stranger

type stranger struct{ first, last, warned time.Time }

// met says what to do about a message of the topic: whether to warn, whether it is charged, and how long it waits if not.
func (s strangers) met(topic string, now time.Time) (warn, charge bool, wait time.Duration) {
	t := s[topic]
	if t == nil || now.Sub(t.last) >= strangerGrace {
		t = &stranger{first: now}
		s[topic] = t
	}
	t.last = now
	if warn = now.Sub(t.warned) >= strangerWarning; warn {
		t.warned = now
	}
	known := now.Sub(t.first)
	return warn, known >= strangerGrace, min(max(known, time.Second), strangerWait)
}
