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
	// RefreshInterval is how often the Discovery is asked; default 5 min. After a failure it is asked again sooner.
	// Lower it if new databases must be found faster.
	RefreshInterval time.Duration
	// MaxConns is how many connections all pools together have open at most; default 50, -1 no limit. Keep it below
	// what the servers can spare; with fewer than there are databases, connections are opened and closed all the time.
	MaxConns int
	// MaxConnsPerDSN is how many of them the pool of one DSN has at most; default: pool_max_conns of the DSN, else 4
	// or the number of CPUs, whichever is greater. Raise it if targets that share a DSN wait for each other.
	MaxConnsPerDSN int
	// Observers are those of every handle, as in outbox.DBConfig; default none.
	Observers []observe.Observer
	// Open opens a handle instead of a pgx pool on the DSN; default nil. Set it for credentials that change, or for
	// another driver. It is called once for each target that is new or has changed, for several at once, and must
	// return when its context ends, after 10 s: a call that does not is given up, and a handle that it returns later
	// is closed. It should name the handle by the key (outbox.DBConfig.Name), and add Observers itself. The function
	// returned closes what Open opened; nil if there is nothing to close. MaxConns does not count those connections.
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
