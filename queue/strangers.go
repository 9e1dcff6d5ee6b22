package queue

import (
	"time"
)

const (
	// strangerGrace is how long a message is left to those who have a handler for its topic, and how long the topic is
	// passed by: more than they take between two looks.
	strangerGrace = 10 * time.Second
	// strangerWarning is how often a topic without a handler is warned of.
	strangerWarning = time.Minute
	// strangerWait is the longest that a message of such a topic waits until it is looked at again, in the first hour:
	// while a new release is rolled out, the old one sees what is meant for the new one. Later it waits a share of the
	// time that it is there, and its topic has been coming by, up to maxStrangerWait.
	strangerWait    = time.Minute
	strangerShare   = 60
	maxStrangerWait = time.Hour
	// maxStrangers is how many such topics are remembered.
	maxStrangers = 10_000
)

// strangers are the topics without a handler that came by.
type strangers map[string]*stranger

type stranger struct{ first, last, warned time.Time }

// met says what to do about a message of the topic, first seen so long ago: whether to warn, and how long it waits.
func (s strangers) met(topic string, now time.Time, age time.Duration) (warn bool, wait time.Duration) {
	t := s[topic]
	if t == nil || now.Sub(t.last) >= 2*maxStrangerWait {
		if len(s) >= maxStrangers {
			clear(s)
		}
		t = &stranger{first: now}
		s[topic] = t
	}
	t.last = now
	if warn = now.Sub(t.warned) >= strangerWarning; warn {
		t.warned = now
	}
	known := min(now.Sub(t.first), age) // others may handle the topic, and be late with this one
	return warn, min(max(known, time.Second), max(strangerWait, known/strangerShare), maxStrangerWait)
}
