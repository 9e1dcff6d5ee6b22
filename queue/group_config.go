package queue

import (
	"errors"
	"time"

	"github.com/millrace-go/watermill-outbox/fleet"
)

// GroupConfig configures a Group. Dispatcher.Handlers is required.
type GroupConfig struct {
	// Dispatcher is the configuration of all databases. Required. Its Concurrency is that of all of them together, of
	// which one has no more than half unless it is alone; DisableListen is always set. PollInterval grows up to tenfold
	// while there is nothing to do; a commit in this process has its database looked at once. A database with nothing to
	// do is at rest after some looks: all of one DSN are then looked at in one statement, and each by itself once a
	// minute, or when a message falls due.
	Dispatcher DispatcherConfig
	// Selection chooses which database has its turn; default fleet.RoundRobin(). Set fleet.DrainFirst() to finish one
	// database's backlog before the next.
	Selection fleet.Selection
	// MaxPolls is how many databases are looked at once; default 4. A look that takes longer than a quarter of a second
	// leaves its place to another one, and gives back the places of handlers that it kept, but for one of an eighth of
	// them all. If there are fewer when it has its messages, the others are given back without a charge. At most 32 looks
	// have left their places to others at a time; further ones keep them until they end.
	MaxPolls int
}

const (
	slowPoll  = 250 * time.Millisecond
	slowPolls = 32               // at most that have left their places
	syncEvery = time.Second      // between looks which databases there are
	rareClean = 60               // times CleanInterval between clean-ups where nothing happens
	noWait    = 10 * time.Minute // there is nothing to do before something signals
)

func (c *GroupConfig) setDefaults() {
	c.Dispatcher.setDefaults()
	c.Dispatcher.DisableListen = true
	fill(&c.MaxPolls, 4)
	if c.Selection == nil {
		c.Selection = fleet.RoundRobin()
	}
}

func (c GroupConfig) validate() error {
	return errors.Join(positive("GroupConfig.MaxPolls", c.MaxPolls), c.Dispatcher.validate())
}
