package admin

import "time"

// StatsConfig configures Stats. The zero value is ready for use.
type StatsConfig struct {
	// Exact counts everything. By default what is counted is bounded, so that the answer is quick whatever is in the tables.
	Exact bool
}

// Stats is the state of the tables at one time.
type Stats struct {
	At         time.Time        `json:"at"`
	Topics     []TopicStats     `json:"topics"` // of the outbox, sorted
	Queue      []TopicStats     `json:"queue"`  // of the queue, sorted
	Forwarders []ForwarderStats `json:"forwarders"`
	Inbox      []ConsumerStats  `json:"inbox"` // of consumers that have failing or dead messages, sorted
}

// TopicStats is what is known of one topic.
type TopicStats struct {
	Topic   string `json:"topic"`
	Ready   Count  `json:"ready"`
	Failing Count  `json:"failing"`
	Delayed Count  `json:"delayed"`
	Dead    Count  `json:"dead"`
	// Oldest is the age of the oldest message that is ready or failing.
	Oldest time.Duration `json:"oldest"`
	// Rate is how many messages a second were published, or processed, in the last minute, as far as such messages are kept.
	Rate float64 `json:"rate"`
	// Paused says that an operator has paused the topic, or that a forwarder that is alive cannot reach its broker.
	Paused bool `json:"paused"`
	// PausedBy are those who have, the operator as "operator", with their reasons.
	PausedBy []Pause `json:"paused_by,omitempty"`
}

// Pause is one reason why a topic is paused.
type Pause struct {
	By     string    `json:"by"` // "operator", or the name of the forwarder
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
}

// ForwarderStats is what is known of one forwarder.
type ForwarderStats struct {
	Name   string   `json:"name"`
	Scope  string   `json:"scope"`
	Topics []string `json:"topics"` // empty = all
	Lanes  int      `json:"lanes"`
	Alive  bool     `json:"alive"`
	// LeaseLeft is how long its lease lasts; negative if it has run out: it vanished without a word.
	LeaseLeft time.Duration `json:"lease_left"`
	// WaitingSince is since when it waits for forwarders with other topics to leave.
	WaitingSince time.Time `json:"waiting_since,omitzero"`
}

// ConsumerStats is what is known of one consumer of the inbox.
type ConsumerStats struct {
	Consumer string `json:"consumer"`
	Failing  Count  `json:"failing"`
	Dead     Count  `json:"dead"`
	// Oldest is the age of the oldest message that is failing.
	Oldest time.Duration `json:"oldest"`
}
