package move

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
)

const defaultBatchSize = 500

// Result is the result of a move. It is valid even with an error.
type Result struct {
	// Pending is the number of unsent messages when the move began, and Left the number at its end: written meanwhile,
	// held back by an open transaction, or delayed if the target has no delays. Call again until Left is 0.
	Pending int64 `json:"pending"`
	Left    int64 `json:"left"`
	// Moved is the number of messages moved, or with a dry run the number that would be moved.
	Moved int64 `json:"moved"`
	// Dead is the number of these that became dead messages because they could not be read: see
	// WatermillConfig.UnreadableAsDead.
	Dead int64 `json:"dead,omitempty"`
	// Topics is Moved by topic. Dead messages count under the topic of the forwarder.
	Topics map[string]int64 `json:"topics"`
	// AuditID is the id of the audit log entry; 0 if nothing was moved.
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

// options are common to all moves.
type options struct {
	config      string // name of the config struct, for errors
	batchSize   int
	lockTimeout time.Duration
	dryRun      bool
	act         act
	deadTopic   string // topic of unreadable messages; "" = they end the move
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

// side is the source of a move. Its methods run in the transaction of a batch. A dry run marks nothing as done, so take
// must continue after the rows that it returned last.
type side interface {
	pending(ctx context.Context, q drive.Querier) (int64, error)
	take(ctx context.Context, q drive.Querier, limit int) ([]item, error)
	done(ctx context.Context, q drive.Querier, taken []item) error
	lock() lock // that take waits for, after the rows that it has read
}

// item is a message being moved.
type item struct {
	id    int64  // of the row
	xid   string // of the transaction that wrote it, in a log
	row   string // its name in errors
	topic string
	msg   *message.Message
	due   string           // RFC 3339; "" = not delayed
	raw   *message.Message // as stored in the table
	err   error            // why msg could not be read
}

// run moves batch after batch until none is left.
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
			return o.act.record(ctx, db, q, &next, len(items))
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
			case err != nil && o.deadTopic == "":
				return fmt.Errorf("%s: %w", it.row, err)
			case err != nil:
				it.topic = o.deadTopic
				r.Dead++
				if err := storeDead(ctx, pub.DB(), o, it, err); err != nil {
					return fmt.Errorf("%s: store as dead: %w", it.row, err)
				}
			}
			r.count(it.topic)
		}
		return nil
	}
}
