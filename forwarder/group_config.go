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
	// Forwarder is the configuration of each forwarder. DisableListen is always set, and ReadAheadBytes is 128 MiB
	// divided by MaxActive by default. In a sleeping database old rows are deleted once an hour.
	Forwarder Config
	// Configure changes a copy of Forwarder, or the publisher, for one database; default none. It is called whenever a
	// forwarder starts, concurrently, and must return when its context ends. After an error the database is left alone
	// for a while.
	Configure func(ctx context.Context, key string, cfg *Config, pub *message.Publisher) error
	// IdlePollInterval is how often a sleeping database is polled; default 1 s.
	IdlePollInterval time.Duration
	// IdleAfter is the idle time after which a forwarder is stopped; default 1 min.
	IdleAfter time.Duration
	// MaxActive is the number of running forwarders; default 32. If more are wanted they take turns: idle ones are
	// stopped first, then those that have run for 10 s.
	MaxActive int
}

const (
	pollAllInterval = time.Minute      // between polls of everything
	tidyRarely      = 60               // times CleanInterval, between clean-ups of a sleeping database
	turn            = 10 * time.Second // of a forwarder while others wait,
	rest            = checkInterval    // or until it has been idle for this long
	stuckForwarders = 4                // times MaxActive
	failingFor      = 10 * time.Second // before a forwarder that cannot read is stopped
	checkInterval   = 100 * time.Millisecond

	pollsAtOnce = 8
	manyPolls   = 1000 // sequences in a statement

	groupRoom = 128 << 20 // bytes in memory, of all forwarders together
)

func (c *GroupConfig) setDefaults() {
	fill(&c.IdlePollInterval, time.Second)
	fill(&c.IdleAfter, time.Minute)
	fill(&c.MaxActive, 32)
	c.Forwarder.DisableListen = true
	c.Forwarder.Topics, c.Forwarder.Routes = slices.Clone(c.Forwarder.Topics), maps.Clone(c.Forwarder.Routes)
	fill(&c.Forwarder.ReadAheadBytes, min(readAheadBytes, max(1<<20, groupRoom/max(c.MaxActive, 1))))
	scope := c.Forwarder.Scope
	c.Forwarder.setDefaults()
	c.Forwarder.Scope = scope // Configure may set other topics, which need another scope
}

// validate returns an error that names the invalid fields.
func (c *GroupConfig) validate() error {
	var errs []error
	for _, d := range []struct {
		field string
		value time.Duration
	}{{"IdlePollInterval", c.IdlePollInterval}, {"IdleAfter", c.IdleAfter}} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("GroupConfig.%s is %s: use a positive duration", d.field, d.value))
		}
	}
	if c.MaxActive < 1 {
		errs = append(errs, fmt.Errorf("GroupConfig.MaxActive is %d: use at least 1", c.MaxActive))
	}
	return errors.Join(append(errs, c.Forwarder.validate("GroupConfig.Forwarder"))...)
}
