package core

import (
	"encoding/json"
	"slices"
	"strings"
)

// News says what was committed: to which tables, and of which topics. The zero value is nothing.
type News struct {
	Outbox bool `json:"outbox,omitempty"`
	Queue  bool `json:"queue,omitempty"`
	// Topics are those of the queue; none means that they are not known.
	Topics []string `json:"topics,omitempty"`
}

var (
	// OutboxNews is that something was written to the outbox.
	OutboxNews = News{Outbox: true}
	// AllNews is that something may have been written anywhere.
	AllNews = News{Outbox: true, Queue: true}
)

// maxNewsTopics and maxNewsBytes are how many topics a notification names, and how long they are together at most.
// Postgres takes no more than 8,000 bytes.
const (
	maxNewsTopics = 32
	maxNewsBytes  = 1000
)

// QueueNews is that messages of some topics were written to the queue.
func QueueNews(topics ...string) News { return News{Queue: true, Topics: topics}.short() }

// Concerns says whether a dispatcher of some topics of the queue has to look; no topics means all.
func (n News) Concerns(topics []string) bool {
	return n.Queue && (len(topics) == 0 || len(n.Topics) == 0 || slices.ContainsFunc(topics, func(t string) bool {
		return slices.Contains(n.Topics, t)
	}))
}

// and is both.
func (n News) and(other News) News {
	all := News{Outbox: n.Outbox || other.Outbox, Queue: n.Queue || other.Queue}
	switch {
	case !n.Queue:
		all.Topics = other.Topics
	case !other.Queue:
		all.Topics = n.Topics
	case len(n.Topics) > 0 && len(other.Topics) > 0:
		all.Topics = slices.Concat(n.Topics, other.Topics)
	}
	return all.short()
}

// short names no topics if they are many.
func (n News) short() News {
	if len(n.Topics) > 1 {
		n.Topics = slices.Clone(n.Topics)
		slices.Sort(n.Topics)
		n.Topics = slices.Compact(n.Topics)
	}
	bytes := 0
	for _, t := range n.Topics {
		bytes += len(t)
	}
	if len(n.Topics) > maxNewsTopics || bytes > maxNewsBytes {
		n.Topics = nil
	}
	return n
}

// payload is what a notification of the news says, and its sender.
func (n News) payload(sender string) string {
	if n.Outbox && !n.Queue {
		return sender + outboxPayload
	}
	text, err := json.Marshal(n)
	if err != nil || len(text) > 4*maxNewsBytes {
		text, _ = json.Marshal(News{Outbox: n.Outbox, Queue: n.Queue})
	}
	return sender + " " + string(text)
}

const outboxPayload = ` {"outbox":true}`

// newsOf reads a notification. What it cannot read may be anything.
func newsOf(payload string) (sender string, n News) {
	sender, text, _ := strings.Cut(payload, " ")
	if err := json.Unmarshal([]byte(text), &n); err != nil || !n.Outbox && !n.Queue {
		n = AllNews
	}
	return sender, n
}
