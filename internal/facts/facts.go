// Package facts is what a forwarder says of itself in its row of outbox_forwarders, for admin.Doctor: what only its own
// process knows. A reader of it must bear with fields that are missing, and with others.
package facts

import "time"

// Forwarder is what a forwarder says of itself. Role and ClockAhead are added by the database.
type Forwarder struct {
	Role    string `json:"role,omitempty"`    // of the database
	Program string `json:"program,omitempty"` // the package of its main function
	// ClockAhead is by how many seconds its clock was ahead of the database's when it wrote this.
	ClockAhead float64 `json:"clock_ahead,omitempty"`
	// Consumers are those of the inbox that handled messages through the same handle, with the topics of these.
	Consumers map[string][]string `json:"consumers,omitempty"`

	// Blocked are the partitions that are paused behind a message which keeps failing, or by handlers that hang, of what
	// handlers of the same handle read.
	Blocked []Partition `json:"blocked"`

	Pool string `json:"pool,omitempty"` // tells its pool from those of others
	// how many connections the pool may have; 0 = no limit, or not known
	PoolConns      int           `json:"pool_conns"`
	PoolNeeds      int           `json:"pool_needs"` // how many of them the forwarder uses at once
	Handlers       int           `json:"handlers"`   // at most so many were at work through its handle at once
	Beside         int           `json:"beside"`     // how many connections it has of its own
	Blind          bool          `json:"blind"`      // its publisher has returned errors that are not recognised
	Hung           int           `json:"hung"`       // publishes that have timed out and not returned
	BlockKeyOnDead bool          `json:"block_key_on_dead"`
	LeaseTTL       time.Duration `json:"lease_ttl"`
	PublishTimeout time.Duration `json:"publish_timeout"`
	CloseTimeout   time.Duration `json:"close_timeout"`
	Retention      time.Duration `json:"retention"`
	InboxRetention time.Duration `json:"inbox_retention"` // 0 = an older version, -1 = for ever
}

// Partition is one that a subscriber reads no further, because a message of it keeps failing or no handler returns.
type Partition struct {
	Group     string    `json:"group"`
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Since     time.Time `json:"since"`          // when it was paused, by its own clock, in whole seconds, as Failing
	Failing   time.Time `json:"failing"`        // since when the first of its blocked keys fails
	Keys      int       `json:"keys"`           // blocked
	Lag       int64     `json:"lag"`            // offsets that are not done
	Hung      bool      `json:"hung,omitempty"` // no message fails: its handlers do not return
}
