package queue

import (
	"time"
)

const (
	// unknownTopicGrace is how long a message is left to processes that have a handler for its topic, and how long the
	// topic is skipped. It is longer than the time between two of their polls.
	unknownTopicGrace = 10 * time.Second
	// unknownTopicWarning is how often a warning is logged about a topic without a handler.
	unknownTopicWarning = time.Minute
	// unknownTopicWait is the longest wait of a message of such a topic in the first hour, because during a rollout the
	// old release sees messages that are meant for the new one. Later the wait is a share of the message's age, or of the
	// time since its topic was first seen if that is less, up to maxUnknownTopicWait.
	unknownTopicWait    = time.Minute
	unknownTopicShare   = 60
	maxUnknownTopicWait = time.Hour
	// maxUnknownTopics is how many such topics are remembered.
	maxUnknownTopics = 10_000
)

// unknownTopics remembers topics without a handler.
type unknownTopics map[string]*unknownTopic

type unknownTopic struct{ first, last, warned time.Time }

// seen records a message of the topic, first seen age ago, and returns whether to warn and how long it waits.
func (s unknownTopics) seen(topic string, now time.Time, age time.Duration) (warn bool, wait time.Duration) {
	t := s[topic]
	if t == nil || now.Sub(t.last) >= 2*maxUnknownTopicWait {
		if len(s) >= maxUnknownTopics {
			clear(s)
		}
		t = &unknownTopic{first: now}
		s[topic] = t
	}
	t.last = now
	if warn = now.Sub(t.warned) >= unknownTopicWarning; warn {
		t.warned = now
	}
	known := min(now.Sub(t.first), age) // other processes may handle the topic and just be late
	return warn, min(max(known, time.Second), max(unknownTopicWait, known/unknownTopicShare), maxUnknownTopicWait)
}
