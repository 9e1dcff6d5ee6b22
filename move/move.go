package move

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
)

const defaultBatchSize = 500

// Result is the result of a move. It is valid with an error too.
type Result struct {
	// Pending is how many messages waited when the move began, and Left how many at its end: written meanwhile, held back
	// by a transaction that is still open, or delayed where the other side knows no delays. Call again until it is 0.
	Pending int64 `json:"pending"`
	Left    int64 `json:"left"`
	// Moved is how many are in the other place now; of a dry run, how many would be.
	Moved int64 `json:"moved"`
	// Dead is how many of them are dead messages now, because they could not be read: see
	// WatermillConfig.UnreadableAsDead.
	Dead int64 `json:"dead,omitempty"`
	// Topics is Moved by topic. Dead ones are under the topic of the forwarder.
	Topics map[string]int64 `json:"topics"`
	// AuditID is the entry in the audit log; 0 where nothing was moved.
	AuditID int64 `json:"audit_id,omitempty"`
}

func (r *Result) count(topic string) {
	r.Moved++
	r.Topics[topic]++
}

func (r *Result) copy() Result {
	c := *r
	c.Topics = maps.Clone(r.Topics)
	return c
}

// options are what all moves have in common.
type options struct {
	config      string // the struct that they are fields of
	batchSize   int
	lockTimeout time.Duration
	dryRun      bool
	act         act
	bury        string // topic of what cannot be read; "" = it ends the move
	progress    func(ctx context.Context, r Result)
}

func (o *options) check(config string) error {
	o.config = config
	if o.batchSize == 0 {
		o.batchSize = defaultBatchSize
	}
	if o.lockTimeout == 0 {
		o.lockTimeout = defaultLockTimeout
	}
	switch {
	case o.batchSize < 1:
		return fmt.Errorf("%s.BatchSize is %d: use at least 1", config, o.batchSize)
	case o.lockTimeout != -1 && (o.lockTimeout < time.Millisecond || o.lockTimeout > maxLockTimeout):
		return fmt.Errorf("%s.LockTimeout is %s: use 1ms to %s, or -1 for none", config, o.lockTimeout, maxLockTimeout)
	}
	return o.act.check(config)
}

// side is the other outbox, as a move needs it. Its methods run in the transaction of a batch; with a dry run nothing
// is written, so take begins behind what it returned last.
type side interface {
	pending(ctx context.Context, q drive.Querier) (int64, error)
	take(ctx context.Context, q drive.Querier, limit int) ([]item, error)
	done(ctx context.Context, q drive.Querier, taken []item) error
	lock() lock // that take waits for after what it has read
}

// item is a message on its way.
type item struct {
	id    int64  // of the row
	xid   string // of the transaction that wrote it, in a log
	row   string // what errors call it
	topic string
	msg   *message.Message
	due   string           // the time that the message is delayed to, RFC 3339; "" = it is not
	raw   *message.Message // as it stands in the table
	err   error            // why msg could not be made of it
}

// run moves one batch after another until there are no more.
func run(
	ctx context.Context, db *core.DB, o options, from side, put func(ctx context.Context, r *Result, items []item) error,
) (r Result, err error) {
	ctx = core.OutsideTx(ctx)
	r.Topics = map[string]int64{}
	if r.Pending, err = from.pending(ctx, db); err != nil {
		return r, fmt.Errorf("count pending messages: %w", err)
	}
	for more := true; more; {
		if err := ctx.Err(); err != nil {
			return r, o.act.end(ctx, db, r, err)
		}
		next := r.copy()
		err = core.InTx(ctx, db, core.TxOptions{Isolation: sql.LevelReadCommitted}, func(ctx context.Context) error {
			q, err := db.Tx(ctx)
			if err != nil {
				return err
			}
			if err := boundWaits(ctx, q, o.lockTimeout); err != nil {
				return err
			}
			items, err := from.take(ctx, q, o.batchSize)
			if err != nil {
				return fmt.Errorf("read: %w", err)
			}
			more = len(items) == o.batchSize
			if len(items) == 0 {
				return nil
			}
			if err := put(ctx, &next, items); err != nil || o.dryRun {
				return err
			}
			if err := from.done(ctx, q, items); err != nil {
				return fmt.Errorf("mark as moved: %w", err)
			}
			return o.act.note(ctx, db, q, &next, len(items))
		})
		if err != nil {
			return r, o.act.end(ctx, db, r, explain(ctx, db, o, from, err))
		}
		if r = next; o.progress != nil {
			o.progress(ctx, r.copy())
		}
	}
	if r.Left, err = from.pending(ctx, db); err != nil {
		err = fmt.Errorf("count remaining messages: %w", err)
	}
	return r, o.act.end(ctx, db, r, err)
}

// intoOutbox writes messages as the publisher would.
func intoOutbox(pub *core.Publisher, o options) func(ctx context.Context, r *Result, items []item) error {
	return func(ctx context.Context, r *Result, items []item) error {
		for _, it := range items {
			err := it.err
			if err == nil {
				err = pub.Validate(it.topic, it.msg)
			}
			switch {
			case err == nil && !o.dryRun:
				if err := pub.Capture(ctx, it.topic, it.msg); err != nil {
					return fmt.Errorf("%s: %w", it.row, err)
				}
			case err != nil && o.bury == "":
				return fmt.Errorf("%s: %w", it.row, err)
			case err != nil:
				it.topic = o.bury
				r.Dead++
				if err := bury(ctx, pub.DB(), o, it, err); err != nil {
					return fmt.Errorf("%s: store as dead: %w", it.row, err)
				}
			}
			r.count(it.topic)
		}
		return nil
	}
}

// errNoPublisher: see outbox.NewPublisher.
// Cause: the publisher that was passed is nil.
var errNoPublisher = errors.New("move: the publisher is nil: make one with outbox.NewPublisher, whose " +
	"PublisherConfig.Key decides which messages keep their order")
