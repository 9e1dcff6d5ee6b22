package queue

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/clean"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

const defaultMaxAttempts = 10

// StoreConfig configures a Store. The zero value is ready for use.
type StoreConfig struct {
	// HashContent gives Items without a hash the SHA-256 of the payload; default off. EnqueueResult.Mismatch then
	// reports senders that reuse an ID.
	HashContent bool
	// KeepPayload keeps payload and metadata of done messages; default off.
	KeepPayload bool
	// MaxPayloadBytes is the largest payload; default 0, PostgreSQL's limit of 1 GB.
	MaxPayloadBytes int
	// Backoff is the wait after a failed attempt; default 2 s doubling to 60 s.
	Backoff outbox.Backoff
	// MaxAttempts is the number of failed attempts after which a message is dead; default 10, a few minutes; -1 unlimited.
	// It applies to the topics that Dispatchers, Subscribers and calls of Claim handle with this Store.
	MaxAttempts int
	// Retention is how long done messages are kept; default 30 days, -1 forever. It also applies to messages that were
	// only seen. A duplicate that arrives later is handled again. If services that share the table differ, the shortest
	// Retention applies to all of their topics.
	Retention time.Duration
	// DeadRetention is how long dead messages are kept before they are discarded; default 0, forever. They are discarded
	// as if by an operator: the audit log gets an entry, and the rows are deleted after Retention. A Dispatcher does so
	// once an hour, and its role needs the grants of an admin. The shortest DeadRetention of all services applies.
	DeadRetention time.Duration
}

func (c *StoreConfig) setDefaults() {
	if c.MaxAttempts == 0 {
		c.MaxAttempts = defaultMaxAttempts
	}
	if c.Retention == 0 {
		c.Retention = 30 * 24 * time.Hour
	}
	c.Backoff = outbox.Backoff(core.Backoff(c.Backoff).WithDefaults(2*time.Second, time.Minute))
}

func (c StoreConfig) validate() error {
	switch {
	case c.MaxPayloadBytes < 0:
		return fmt.Errorf("StoreConfig.MaxPayloadBytes is %d: use 0 for no limit", c.MaxPayloadBytes)
	case c.MaxAttempts < -1:
		return fmt.Errorf("StoreConfig.MaxAttempts is %d: use -1 for no limit", c.MaxAttempts)
	case c.DeadRetention < 0:
		return fmt.Errorf("StoreConfig.DeadRetention is %s: use a positive duration, or 0 to keep dead messages",
			c.DeadRetention)
	case c.Retention < -1:
		return fmt.Errorf("StoreConfig.Retention is %s: use -1 to remember messages forever", c.Retention)
	}
	return core.Backoff(c.Backoff).Validate("StoreConfig.Backoff")
}

// Store is the table of stored messages. It is safe for concurrent use and owns no resources.
//
// Every method joins the transaction that its context carries (outbox.InTx, WithPgxTx, WithSQLTx), or runs its own. All
// return outbox.ErrOtherDB for a transaction of another database, outbox.ErrNoTx if it has ended, and errors of the
// database.
type Store struct {
	lines    trouble.RateLimit
	refusals refusals

	db      *core.DB
	cfg     StoreConfig
	backoff core.Backoff
	logger  watermill.LoggerAdapter
	dead    clean.Dead

	mu       sync.Mutex
	cursors  map[string]*claimCursor // by topics
	reapAt   time.Time               // of the next reaping by Claim
	reaping  bool                    // a Claim is reaping now
	reapFrom reapPlace               // where reaping continues
	reapTook time.Duration           // duration of the last reaping
	// whether a trigger may leave rows unchanged, and when to check again for triggers, and for the rows of each statement
	triggers    bool
	triggersAt  time.Time
	unchangedAt map[string]time.Time
	low         lowest
}

// NewStore makes a Store over the handle's queue table, which schema.Migrate creates. It does no I/O. It logs calls at
// debug level, stored messages at info level, and different content under the same ID as an error. If logger is nil,
// the logger of db is used. It returns outbox.ErrNoDB or an error that names an invalid field.
func NewStore(db *outbox.DB, cfg StoreConfig, logger watermill.LoggerAdapter) (*Store, error) {
	cfg.setDefaults()
	if err := errors.Join((*core.DB)(db).Check(), cfg.validate()); err != nil {
		return nil, err
	}
	backoff, err := core.Backoff(cfg.Backoff).Precomputed("StoreConfig.Backoff")
	if err != nil {
		return nil, err
	}
	s := &Store{db: (*core.DB)(db), cfg: cfg, backoff: backoff, logger: (*core.DB)(db).Logger(logger)}
	s.dead = clean.Dead{
		DB: s.db, Logger: s.logger, Store: sqltext.Queue, In: "queue", Retention: cfg.DeadRetention, Timeout: cleanTimeout,
	}
	return s, nil
}

// on returns the transaction of ctx, or else the pool.
func (s *Store) on(ctx context.Context) (q drive.Querier, joined bool, err error) {
	q, err = s.db.Tx(ctx)
	switch {
	case err == nil:
		return q, true, nil
	case errors.Is(err, core.ErrNoTx) && !errors.Is(err, drive.ErrTxEnded):
		return s.db, false, nil
	}
	return nil, false, err
}

// onKept returns the same as on, but caches plans outside a transaction. It is for statements that run for each message
// or batch.
func (s *Store) onKept(ctx context.Context) (q drive.Querier, joined bool, err error) {
	if q, joined, err = s.on(ctx); err == nil && !joined {
		q = s.db.PlanCached()
	}
	return q, joined, err
}

// exec runs a statement and returns how many rows it changed.
func (s *Store) exec(ctx context.Context, what, statement string, args ...any) (int, error) {
	return s.execOn(ctx, s.on, what, statement, args...)
}

func (s *Store) execOn(
	ctx context.Context, on func(context.Context) (drive.Querier, bool, error), what, statement string, args ...any,
) (int, error) {
	q, _, err := on(ctx)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	n, err := q.Exec(ctx, s.db.Render(statement), args...)
	if err != nil {
		return 0, s.failed(what, err)
	}
	return int(n), nil
}

// collect runs a query and calls scan for each row.
func (s *Store) collect(
	ctx context.Context, what string, scan func(drive.Rows) error, statement string, args ...any,
) error {
	return s.collectOn(ctx, s.on, what, scan, statement, args...)
}

func (s *Store) collectOn(
	ctx context.Context, on func(context.Context) (drive.Querier, bool, error), what string,
	scan func(drive.Rows) error, statement string, args ...any,
) error {
	q, _, err := on(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := drive.Collect(ctx, q, scan, s.db.Render(statement), args...); err != nil {
		return s.failed(what, err)
	}
	return nil
}

func (s *Store) failed(what string, err error) error {
	return fmt.Errorf("%s in %s: %w", what, s.db.Tables().Queue, text.Stored(err))
}
