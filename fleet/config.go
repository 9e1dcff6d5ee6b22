package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/observe"
)

// Config configures a Fleet. The zero value is ready for use.
type Config struct {
	// RefreshInterval is how often the Discovery is polled; default 5 min, sooner after a failure.
	RefreshInterval time.Duration
	// MaxConns is the limit of open connections of all pools together; default 50, -1 no limit. With fewer connections
	// than databases, connections are opened and closed all the time.
	MaxConns int
	// MaxConnsPerDSN limits the pool of one DSN; default: pool_max_conns of the DSN, or else the greater of 4 and the
	// number of CPUs.
	MaxConnsPerDSN int
	// Observers are passed to every handle, as outbox.DBConfig.Observers; default none.
	Observers []observe.Observer
	// Open opens a handle, for changing credentials or another driver; default: a pgx pool on the DSN. It is called
	// concurrently, and must return when its context ends, after 10 s. It must set DBConfig.Name and Observers. The
	// returned function closes the handle; nil if there is nothing to close. Its connections do not count against
	// MaxConns.
	Open func(ctx context.Context, t Target) (db *outbox.DB, close func(), err error)
}

func (c *Config) setDefaults() {
	if c.RefreshInterval == 0 {
		c.RefreshInterval = 5 * time.Minute
	}
	if c.MaxConns == 0 {
		c.MaxConns = 50
	}
}

// validate returns an error that names the fields at fault.
func (c *Config) validate() error {
	var errs []error
	if c.RefreshInterval < 0 {
		errs = append(errs, fmt.Errorf("Config.RefreshInterval is %s: use a positive duration", c.RefreshInterval))
	}
	if c.MaxConns < -1 {
		errs = append(errs, fmt.Errorf("Config.MaxConns is %d: use -1 for no limit", c.MaxConns))
	}
	if c.MaxConnsPerDSN < 0 {
		errs = append(errs, fmt.Errorf("Config.MaxConnsPerDSN is %d: use a positive number", c.MaxConnsPerDSN))
	}
	return errors.Join(errs...)
}
