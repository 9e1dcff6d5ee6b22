// Package facts defines the facts that only a forwarder's own process can know. The forwarder writes them to its row of
// outbox_forwarders, for admin.Doctor. Readers must accept missing and unknown fields.
package facts

import "time"

// Forwarder holds the facts about a forwarder. The database adds Role and ClockAhead.
type Forwarder struct {
	Role    string `json:"role,omitempty"`    // of the database
	Program string `json:"program,omitempty"` // the package of its main function
	// ClockAhead is the number of seconds by which its clock was ahead of the database's.
	ClockAhead float64 `json:"clock_ahead,omitempty"`
	// Consumers lists consumers of the inbox that handled messages through the same handle, with their topics.
	Consumers map[string][]string `json:"consumers,omitempty"`

	// Blocked lists the partitions, read by handlers of the same handle, that are paused because a message keeps failing
	// or handlers hang.
	Blocked []Partition `json:"blocked"`

	Pool string `json:"pool,omitempty"` // ID of its pool
	// maximum number of connections of the pool; 0 = no limit, or unknown
	PoolConns      int           `json:"pool_conns"`
	PoolNeeds      int           `json:"pool_needs"` // of these, the number that the forwarder uses concurrently
	Handlers       int           `json:"handlers"`   // highest number of handlers in flight through its handle
	Beside         int           `json:"beside"`     // connections outside the pool
	Blind          bool          `json:"blind"`      // its publisher has returned errors without a verdict
	Hung           int           `json:"hung"`       // publishes that timed out and have not returned
	BlockKeyOnDead bool          `json:"block_key_on_dead"`
	LeaseTTL       time.Duration `json:"lease_ttl"`
	PublishTimeout time.Duration `json:"publish_timeout"`
	CloseTimeout   time.Duration `json:"close_timeout"`
	Retention      time.Duration `json:"retention"`
	InboxRetention time.Duration `json:"inbox_retention"` // 0 = an older version, -1 = forever
}

// Partition is a partition that a subscriber has stopped reading, because a message keeps failing or no handler
// returns.
type Partition struct {
	Group     string    `json:"group"`
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Since     time.Time `json:"since"`          // of the pause, by its own clock, in whole seconds, like Failing
	Failing   time.Time `json:"failing"`        // since when its first blocked key fails
	Keys      int       `json:"keys"`           // number of blocked keys
	Lag       int64     `json:"lag"`            // number of unfinished offsets
	Hung      bool      `json:"hung,omitempty"` // no message fails, but its handlers do not return
}
