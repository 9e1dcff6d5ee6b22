package middleware

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

const (
	defaultRetention = 30 * 24 * time.Hour
	defaultInterval  = time.Minute
	defaultBatch     = 1000
)

// CleanerConfig configures a Cleaner. The zero value is ready for use.
type CleanerConfig struct {
	// Retention is how long a row stays after its message was processed; default 30 days, -1 for ever. A copy
	// that comes later is handled again, so keep it longer than a broker, a delay, a requeue or a replay can
	// take to bring one. Rows of messages that failed so long ago for the first time, and were not handled since, go as well;
	// should such a message come again, its failures are counted anew.
	Retention time.Duration
	// Interval is the pause between two rounds; default 1 minute.
	Interval time.Duration
	// Batch is how many rows one statement deletes; default 1000. A round goes on until none are left.
	Batch int
	// Observer, if not nil, is told of each round that deleted something or failed.
	Observer CleanObserver
}

// CleanObserver is told of the work of a Cleaner. It must be safe for concurrent use and must not block.
type CleanObserver interface {
	Cleaned(ctx context.Context, c Cleaned)
}

// Cleaned is one round of a Cleaner. Fields may be added.
type Cleaned struct {
	DB       string        // name of the database
	Rows     int64         // deleted
	Duration time.Duration // of the round
	Err      error         // what ended it early, or nil
}

func (c *CleanerConfig) setDefaults() {
	if c.Retention == 0 {
		c.Retention = defaultRetention
	}
	if c.Interval == 0 {
		c.Interval = defaultInterval
	}
	if c.Batch == 0 {
		c.Batch = defaultBatch
	}
}

func (c CleanerConfig) validate() error {
	switch {
	case c.Retention < -1:
		return fmt.Errorf("CleanerConfig.Retention is %s: use -1 to keep rows for ever", c.Retention)
	case c.Interval < 0:
		return fmt.Errorf("CleanerConfig.Interval is %s: it must be positive", c.Interval)
	case c.Batch < 0:
		return fmt.Errorf("CleanerConfig.Batch is %d: it must be positive", c.Batch)
	}
	return nil
}

// Cleaner deletes old rows from the inbox table, but not those of dead messages. Any number of processes may run one.
type Cleaner struct {
	db     *core.DB
	cfg    CleanerConfig
	logger watermill.LoggerAdapter

	start   sync.Once
	running chan struct{}
	close   context.CancelFunc
	closing context.Context
	done    chan struct{}
}

// NewCleaner makes a Cleaner. It does no I/O. It returns outbox.ErrNoDB or an error that names the field at fault. A nil
// logger is that of db.
func NewCleaner(db *outbox.DB, cfg CleanerConfig, logger watermill.LoggerAdapter) (*Cleaner, error) {
	cfg.setDefaults()
	if err := errors.Join((*core.DB)(db).Check(), cfg.validate()); err != nil {
		return nil, err
	}
	c := &Cleaner{
		db: (*core.DB)(db), cfg: cfg, logger: (*core.DB)(db).Logger(logger),
		running: make(chan struct{}), done: make(chan struct{}),
	}
	c.closing, c.close = context.WithCancel(context.Background())
	return c, nil
}

// Run cleans at once and then after each Interval, until ctx is over or Close is called, and returns nil. A round
// that fails is logged and tried again after the next Interval. It returns an error if it was called before, or after Close.
func (c *Cleaner) Run(ctx context.Context) error {
	first := false
	c.start.Do(func() { first = true })
	if !first {
		return errors.New("cleaner: it was run or closed before: make a new one")
	}
	defer close(c.done)
	close(c.running)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.closing, cancel)()

	tick := time.NewTicker(c.cfg.Interval)
	defer tick.Stop()
	for ctx.Err() == nil {
		c.round(ctx)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	return nil
}

// Running is closed once Run was called.
func (c *Cleaner) Running() chan struct{} { return c.running }

// Close ends Run and returns when it has. It may be called at any time and more than once.
func (c *Cleaner) Close() error {
	c.close()
	c.start.Do(func() { close(c.done) }) // Run was never called and is refused now
	<-c.done
	return nil
}

// Clean is one round: it deletes what is old, batch by batch, and returns how many rows that were. It is for
// those who run it as a job of their own instead of Run.
func (c *Cleaner) Clean(ctx context.Context) (int64, error) {
	if c.cfg.Retention < 0 {
		return 0, nil
	}
	rows := int64(0)
	for _, statement := range []string{sqltext.CleanInbox, sqltext.CleanInboxFailed} {
		for more := true; more; {
			n, err := c.db.Exec(ctx, c.db.Render(statement), c.cfg.Retention.Seconds(), c.cfg.Batch)
			rows += n
			if err != nil {
				return rows, fmt.Errorf("clean inbox: %w", text.Explain(err))
			}
			more = n == int64(c.cfg.Batch)
		}
	}
	return rows, nil
}

func (c *Cleaner) round(ctx context.Context) {
	begun := time.Now()
	rows, err := c.Clean(ctx)
	if ctx.Err() != nil {
		err = nil // cut off, not failed
	}
	if err != nil {
		c.logger.Error("Could not clean the inbox", err, watermill.LogFields{"rows_deleted": rows})
	} else if rows > 0 {
		c.logger.Debug("Cleaned the inbox", watermill.LogFields{"rows_deleted": rows})
	}
	if c.cfg.Observer != nil && (rows > 0 || err != nil) {
		c.cfg.Observer.Cleaned(ctx, Cleaned{DB: c.db.Name(), Rows: rows, Duration: time.Since(begun), Err: err})
	}
}
