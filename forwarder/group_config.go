package forwarder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// GroupConfig configures a Group. The zero value is ready for use.
type GroupConfig struct {
	// Forwarder is the configuration of each database's forwarder, but for DisableListen, which is always set. In a
	// database at rest, old messages are looked for at sixty times CleanInterval, once an hour. ReadAheadBytes is that of
	// each forwarder; default 128 MiB divided by MaxActive, at least 1 MiB and at most 32.
	Forwarder Config
	// Configure, if not nil, changes a copy of it for one database, or the publisher. It is called whenever the forwarder
	// of that database starts, for several databases at once, and must return when its context ends, after QueryTimeout.
	// An error leaves the database alone for a while.
	Configure func(ctx context.Context, key string, cfg *Config, pub *message.Publisher) error
	// LookInterval is how often a database at rest is looked at, and so how long the first message of another process may
	// wait there; default 1 s. With many databases on one process a round may take longer.
	LookInterval time.Duration
	// IdleAfter is how long a forwarder must have had nothing to do to be stopped; default 1 min.
	IdleAfter time.Duration
	// MaxActive is how many forwarders run at once; default 32. When more are wanted they take turns: those with nothing
	// to do are stopped first, and then those that have run for 10 s. One whose database does not answer does not count.
	MaxActive int
}

const (
	lookAllInterval = time.Minute      // between looks at everything
	tidyRarely      = 60               // times CleanInterval between clean-ups of a database at rest
	turn            = 10 * time.Second // of a forwarder while others wait,
	rest            = checkInterval    // or until it has had nothing to do for as long
	stuckForwarders = 4                // times MaxActive
	failingFor      = 10 * time.Second // after which a forwarder that cannot read is stopped
	checkInterval   = 100 * time.Millisecond

	looksAtOnce = 8
	slowLook    = 250 * time.Millisecond // a look that takes longer leaves its place among looksAtOnce,
	slowLooks   = 32                     // and is one of these
	manyLooks   = 1000                   // sequences in a statement

	groupRoom = 128 << 20 // bytes in memory, of all forwarders together
)

func (c *GroupConfig) setDefaults() {
	fill(&c.LookInterval, time.Second)
	fill(&c.IdleAfter, time.Minute)
	fill(&c.MaxActive, 32)
	c.Forwarder.DisableListen = true
	c.Forwarder.Topics, c.Forwarder.Routes = slices.Clone(c.Forwarder.Topics), maps.Clone(c.Forwarder.Routes)
	fill(&c.Forwarder.ReadAheadBytes, min(readAheadBytes, max(1<<20, groupRoom/max(c.MaxActive, 1))))
	scope := c.Forwarder.Scope
	c.Forwarder.setDefaults()
	c.Forwarder.Scope = scope // Configure may set other topics, which make another one
}

// validate returns an error that names the fields at fault.
func (c *GroupConfig) validate() error {
	var errs []error
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"LookInterval", c.LookInterval}, {"IdleAfter", c.IdleAfter}} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("GroupConfig.%s is %s: use a positive duration", d.field, d.value))
		}
	}
	if c.MaxActive < 1 {
		errs = append(errs, fmt.Errorf("GroupConfig.MaxActive is %d: use at least 1", c.MaxActive))
	}
	return errors.Join(append(errs, c.Forwarder.validate("GroupConfig.Forwarder"))...)
}
