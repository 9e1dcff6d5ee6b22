package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/queue"
)

const (
	claimBatch = 200
	claimLease = 30 * time.Second
)

// claimGroup measures the cost of the store over hand-written statements.
func (b *bench) claimGroup() group {
	n := b.scaled(drained)
	return group{
		about: 50 * time.Second,
		rows: []row{
			{name: "queue_claim_vs_raw", what: "claim and ack 100,000 stored messages, 200 at a time: " +
				"ours / hand-written loop with SKIP LOCKED", floor: 0.8, aim: 1,
				ours: "ours_claim", rival: "raw_claim", chart: "claim and ack stored messages", label: "hand-written loop"},
		},
		sides: func(context.Context) ([]side, func(), error) {
			return []side{
				{name: "ours_claim", rounds: 5, run: b.claiming(n, ourQueue, (*database).storeClaims)},
				{name: "raw_claim", rounds: 5, run: b.claiming(n, rawQueue, (*database).rawClaims)},
			}, nil, nil
		},
	}
}

// claims claims messages, hands them to pub, and acks them, one batch after another until none are left.
type claims func(ctx context.Context, pub message.Publisher) error

// claiming measures n existing messages.
func (b *bench) claiming(
	n int, table queueTable, start func(*database, context.Context) (claims, func(), error),
) func(context.Context) (measured, error) {
	return func(ctx context.Context) (measured, error) {
		d, err := b.newDatabase(ctx)
		if err != nil {
			return measured{}, err
		}
		defer d.drop()
		claim, done, err := start(d, ctx)
		if err != nil {
			return measured{}, err
		}
		defer done()
		if err := table.fill(ctx, d.pool, 0, n); err != nil {
			return measured{}, err
		}
		if _, err := d.pool.Exec(ctx, "VACUUM ANALYZE "+table.name); err != nil {
			return measured{}, err
		}
		s := newSink(n)
		m, err := timed(n, func() error { return claim(ctx, s) })
		return m, errors.Join(err, s.check(), table.done(ctx, d))
	}
}

// queueTable is a table of stored messages, with its state column and the value for ready messages.
type queueTable struct{ name, state, ready string }

var ourQueue = queueTable{"inbox_queue", "state", "processing"}

// fill stores messages first to first+n-1 by plain SQL, because we do not measure Enqueue.
func (t queueTable) fill(ctx context.Context, to copier, first, n int) error {
	i := first
	_, err := to.CopyFrom(ctx, pgx.Identifier{t.name}, []string{
		"source", "message_id", "topic", t.state, "payload", "metadata",
	},
		pgx.CopyFromFunc(func() ([]any, error) {
			if i == first+n {
				return nil, nil
			}
			row := []any{"bench", uuidOf(i), topic, t.ready, payload, `{"` + outbox.MetadataKey + `":"` + keyOf(i) + `"}`}
			i++
			return row, nil
		}))
	if err != nil {
		return fmt.Errorf("store %d messages: %w", n, err)
	}
	return nil
}

// done returns an error unless every message is done.
func (t queueTable) done(ctx context.Context, d *database) error {
	var left int
	if err := d.pool.QueryRow(ctx, "SELECT count(*) FROM "+t.name+" WHERE "+t.state+" <> 'done'").Scan(&left); err != nil {
		return err
	}
	if left > 0 {
		return fmt.Errorf("%d messages are not done", left)
	}
	return nil
}

func (d *database) storeClaims(context.Context) (claims, func(), error) {
	store, err := queue.NewStore(d.db, queue.StoreConfig{}, nil)
	return claimsOf(store, store.Claim), func() {}, err
}

// claimsOf claims with claim, which is the store's method or a wrapper, and acks.
func claimsOf(store *queue.Store, claim func(context.Context, queue.Claim) ([]queue.Message, error)) claims {
	owner := queue.NewOwner()
	return func(ctx context.Context, pub message.Publisher) error {
		for {
			msgs, err := claim(ctx, queue.Claim{Owner: owner, LeaseTTL: claimLease, Limit: claimBatch})
			if err != nil || len(msgs) == 0 {
				return err
			}
			ids := make([]queue.ID, len(msgs))
			for i, m := range msgs {
				ids[i] = m.ID
				msg := message.NewMessage(m.MessageID, m.Payload)
				msg.Metadata = m.Metadata
				if err := pub.Publish(m.Topic, msg); err != nil {
					return err
				}
			}
			if n, err := store.Ack(ctx, owner, ids...); err != nil || n < len(ids) {
				return errors.Join(err, fmt.Errorf("%d of %d messages were acked", n, len(ids)))
			}
		}
	}
}
