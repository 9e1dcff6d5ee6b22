package core

import (
	"encoding/json"
	"slices"
	"strings"
)

// Notification lists the tables that a transaction wrote messages to, and the topics. The zero value lists none.
type Notification struct {
	Outbox bool `json:"outbox,omitempty"`
	Queue  bool `json:"queue,omitempty"`
	// Topics are the topics of the queue; empty means unknown.
	Topics []string `json:"topics,omitempty"`
}

var (
	// OutboxNotification means that the outbox has new messages.
	OutboxNotification = Notification{Outbox: true}
	// AllNotification means that any table may have new messages.
	AllNotification = Notification{Outbox: true, Queue: true}
)

// A notification names at most maxNotificationTopics topics, with at most maxNotificationBytes in total. Postgres
// limits a payload to 8,000 bytes.
const (
	maxNotificationTopics = 32
	maxNotificationBytes  = 1000
)

// QueueNotification means that the queue has new messages for some topics.
func QueueNotification(topics ...string) Notification {
	return Notification{Queue: true, Topics: topics}.short()
}

// Concerns reports whether a dispatcher of these topics must poll; no topics means all.
func (n Notification) Concerns(topics []string) bool {
	return n.Queue && (len(topics) == 0 || len(n.Topics) == 0 || slices.ContainsFunc(topics, func(t string) bool {
		return slices.Contains(n.Topics, t)
	}))
}

// and merges two notifications.
func (n Notification) and(other Notification) Notification {
	all := Notification{Outbox: n.Outbox || other.Outbox, Queue: n.Queue || other.Queue}
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

// short drops the topics if there are too many.
func (n Notification) short() Notification {
	if len(n.Topics) > 1 {
		n.Topics = slices.Clone(n.Topics)
		slices.Sort(n.Topics)
		n.Topics = slices.Compact(n.Topics)
	}
	bytes := 0
	for _, t := range n.Topics {
		bytes += len(t)
	}
	if len(n.Topics) > maxNotificationTopics || bytes > maxNotificationBytes {
		n.Topics = nil
	}
	return n
}

// payload returns the text that NOTIFY sends: the sender, then the notification.
func (n Notification) payload(sender string) string {
	if n.Outbox && !n.Queue {
		return sender + outboxPayload
	}
	text, err := json.Marshal(n)
	if err != nil || len(text) > 4*maxNotificationBytes {
		text, _ = json.Marshal(Notification{Outbox: n.Outbox, Queue: n.Queue})
	}
	return sender + " " + string(text)
}

const outboxPayload = ` {"outbox":true}`

// parseNotification reads a payload. An unreadable payload means all tables, because any program may notify.
func parseNotification(payload string) (sender string, n Notification) {
	sender, text, _ := strings.Cut(payload, " ")
	if err := json.Unmarshal([]byte(text), &n); err != nil || !n.Outbox && !n.Queue {
		n = AllNotification
	}
	return sender, n
}
