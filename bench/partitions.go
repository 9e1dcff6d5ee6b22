package main

import (
	"context"
	"fmt"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/schema"
)

const (
	cleaned        = 100_000 // messages past the retention
	partitionCount = 8       // partitions with messages
)

// partitionsGroup compares a partitioned outbox with a plain one, by values that are the same on every machine.
func (b *bench) partitionsGroup() group {
	n := b.scaled(cleaned)
	return group{
		about: 60 * time.Second,
		rows: []row{
			{name: "partitions_clean_wal", what: "WAL of removing 100,000 old messages: deleted one by one / with their " +
				"partition, at most 3 bytes a message", floor: 28, aim: 200,
				ours: "dropped_wal", rival: "deleted_wal", unit: "bytes each", lower: true},
			{name: "partitions_idle_fetch", what: "pages that a Fetch at rest visits: one table / 8 partitions", floor: 0.95,
				aim:  1,
				ours: "partitions_fetch", rival: "plain_fetch", unit: "pages", lower: true},
			{name: "partitions_settle", what: "pages that settling 100 messages visits: one table / 8 partitions", floor: 0.83,
				aim:  1,
				ours: "partitions_settle", rival: "plain_settle", unit: "pages", lower: true},
		},
		sides: func(context.Context) ([]side, func(), error) {
			return []side{
				{name: "dropped_wal", rounds: 3, run: b.cleaning(n, true)},
				{name: "deleted_wal", rounds: 3, run: b.cleaning(n, false)},
				{name: "partitions_fetch", rounds: 2, run: b.pagesOf(true, fetchAtRest)},
				{name: "plain_fetch", rounds: 2, run: b.pagesOf(false, fetchAtRest)},
				{name: "partitions_settle", rounds: 2, run: b.pagesOf(true, settleHundred)},
				{name: "plain_settle", rounds: 2, run: b.pagesOf(false, settleHundred)},
			}, nil, nil
		},
	}
}

// partitionsTimedGroup compares values that depend on the machine.
func (b *bench) partitionsTimedGroup() group {
	return group{
		about: 30 * time.Second,
		rows: []row{
			{name: "partitions_publish", what: "publish 20,000 in transactions of 100: 8 partitions / one table", floor: 0.97,
				aim:  1,
				ours: "partitions_publish", rival: "plain_publish"},
		},
		sides: func(context.Context) ([]side, func(), error) {
			return []side{
				{name: "partitions_publish", run: b.publishing(true)},
				{name: "plain_publish", run: b.publishing(false)},
			}, nil, nil
		},
	}
}

// newOutbox creates a database with a plain outbox, or one with partitions of size ids.
func (b *bench) newOutbox(ctx context.Context, size, parts int) (*database, error) {
	d, err := b.newDatabaseOn(ctx, b.postgres, schema.MigrateConfig{PartitionSize: int64(size)})
	for i := 1 + migrations.Ahead; i < parts && err == nil; i++ {
		_, err = d.pool.Exec(ctx, fmt.Sprintf(`CREATE TABLE outbox_p%d PARTITION OF outbox FOR VALUES FROM (%d) TO (%d)`,
			i, i*size, (i+1)*size))
		if err != nil {
			d.drop()
		}
	}
	return d, err
}

// settledLongAgo writes n old messages and vacuums them, as autovacuum would have.
func (d *database) settledLongAgo(ctx context.Context, n int) error {
	if _, err := d.pool.Exec(ctx, `INSERT INTO outbox (uuid, topic, key, payload, metadata, created_at, published_at)
		SELECT gen_random_uuid(), $1, 'key-' || n % $2::int, $3, '{}', now() - interval '2 days', now() - interval '2 days'
		FROM generate_series(1, $4::int) n`, topic, keys, payload, n); err != nil {
		return err
	}
	_, err := d.pool.Exec(ctx, "VACUUM ANALYZE outbox")
	return err
}

// removal is the cost of removing old messages.
type removal struct {
	cost
	took time.Duration
	dead int64 // dead rows left to vacuum
}

func (r removal) String() string {
	return fmt.Sprintf("%.1f s, %.2f MB of WAL, %s dead rows", r.took.Seconds(), float64(r.wal)/1e6,
		number(float64(r.dead)))
}

// remove removes n old messages, with their partition or one by one.
func (b *bench) remove(ctx context.Context, n int, inParts bool) (r removal, err error) {
	size := 0
	if inParts {
		size = n + 1
	}
	d, err := b.newOutbox(ctx, size, 0)
	if err != nil {
		return r, err
	}
	defer d.drop()
	if err = d.settledLongAgo(ctx, n); err != nil {
		return r, err
	}
	if _, err = d.pool.Exec(ctx, `SELECT setval('outbox_id_seq', $1::bigint)`, n+2); err != nil {
		return r, err
	}
	a, err := admin.New(d.db, admin.Config{Actor: "bench"}, nil)
	if err != nil {
		return r, err
	}
	if inParts {
		if _, err = a.MaintainPartitions(ctx, admin.PartitionsConfig{}); err != nil { // creates partitions
			return r, err
		}
	}
	var removed int64
	begun := time.Now()
	r.cost, err = b.costOf(ctx, d, func() error {
		begun = time.Now() // after the checkpoint
		defer func() { r.took = time.Since(begun) }()
		if inParts {
			done, err := a.MaintainPartitions(ctx, admin.PartitionsConfig{Retention: 24 * time.Hour})
			removed = done.Removed
			return err
		}
		done, err := a.Clean(ctx, admin.CleanConfig{OutboxRetention: 24 * time.Hour})
		removed = done.Outbox.N
		return err
	})
	if err != nil {
		return r, err
	}
	if removed != int64(n) {
		return r, fmt.Errorf("%d messages were removed instead of %d", removed, n)
	}
	if !inParts {
		r.dead = removed
	}
	return r, nil
}

func (b *bench) cleaning(n int, inParts bool) func(context.Context) (measured, error) {
	return func(ctx context.Context) (m measured, err error) {
		r, err := b.remove(ctx, n, inParts)
		m = measured{value: float64(r.wal) / float64(n), facts: []string{r.String()}}
		if inParts && m.value > 3 { // each partition costs 0.25 MB, whatever the number of its messages
			m.broken = fmt.Sprintf("%.2f bytes of WAL a message instead of 3", m.value)
		}
		return m, err
	}
}

// cleanup reports both sides of a removal as a figure: with -scale 50 for 5,000,000 messages.
func (b *bench) cleanup(ctx context.Context) (string, error) {
	n := b.scaled(cleaned)
	dropped, err := b.remove(ctx, n, true)
	if err != nil {
		return "", err
	}
	deleted, err := b.remove(ctx, n, false)
	return fmt.Sprintf("%s old messages: partition dropped in %s; deleted in %s", number(float64(n)), dropped, deleted),
		err
}

// publishing measures transactions of an application.
func (b *bench) publishing(inParts bool) func(context.Context) (measured, error) {
	return func(ctx context.Context) (measured, error) {
		n := b.scaled(costMessages)
		size, parts := 0, 0
		if inParts {
			size, parts = n/partitionCount, partitionCount+4
		}
		d, err := b.newOutbox(ctx, size, parts)
		if err != nil {
			return measured{}, err
		}
		defer d.drop()
		pub, err := outbox.NewPublisher(d.db, outbox.PublisherConfig{}, nil)
		if err != nil {
			return measured{}, err
		}
		return timed(n, func() error {
			for first := 0; first < n; first += costPerTx {
				if err := outbox.InTx(ctx, d.db, func(ctx context.Context) error {
					return pub.PublishContext(ctx, topic, messagesOf(first, min(first+costPerTx, n))...)
				}); err != nil {
					return err
				}
			}
			return nil
		})
	}
}
