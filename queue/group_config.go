package queue

import (
	"errors"
	"time"

	"github.com/millrace-go/watermill-outbox/fleet"
)

// GroupConfig configures a Group. Dispatcher.Handlers is required.
type GroupConfig struct {
	// Dispatcher is the configuration of all databases. Required. Concurrency is shared: one database has at most half
	// of it unless it is alone. DisableListen is always set. Idle databases of one DSN are polled by one statement.
	Dispatcher DispatcherConfig
	// Selection chooses whose turn it is; default fleet.RoundRobin. fleet.DrainFirst finishes one database's
	// backlog before the next.
	Selection fleet.Selection
	// MaxPolls is the number of databases that are polled concurrently; default 4. A slow poll gives up its slot after 250
	// ms; at most 32 do so at a time.
	MaxPolls int
}

const (
	patience  = 250 * time.Millisecond // for a busy database chosen by the Selection
	rareClean = 60                     // times CleanInterval, between clean-ups of an idle database
	noWait    = 10 * time.Minute       // until a signal arrives
)

func (c *GroupConfig) setDefaults() {
	c.Dispatcher.setDefaults()
	c.Dispatcher.DisableListen = true
	fill(&c.MaxPolls, 4)
	if c.Selection == nil {
		c.Selection = fleet.RoundRobin
	}
}

func (c GroupConfig) validate() error {
	return errors.Join(positive("GroupConfig.MaxPolls", c.MaxPolls), c.Dispatcher.validate())
}
