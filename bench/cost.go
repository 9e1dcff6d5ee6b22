package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	wforwarder "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
)

const (
	costMessages = 20_000
	costPerTx    = 100
	costAim      = "WAL is the same on every machine"
)

// cost is the cost of messages in the database.
type cost struct {
	wal int64         // bytes
	cpu time.Duration // of all server processes
}

func (c cost) perMessage(n int, what string) string {
	return fmt.Sprintf("%d bytes of WAL and %.0f us of database CPU per message, %s", c.wal/int64(n),
		float64(c.cpu.Microseconds())/float64(n), what)
}

// costOf measures what work costs the server. A checkpoint before it gives all of them the same start: the first change
// of a page after a checkpoint writes the whole page.
func (b *bench) costOf(ctx context.Context, d *database, work func() error) (cost, error) {
	if _, err := d.pool.Exec(ctx, "CHECKPOINT"); err != nil {
		return cost{}, err
	}
	var from, to int64
	const position = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
	if err := d.pool.QueryRow(ctx, position).Scan(&from); err != nil {
		return cost{}, err
	}
	cpu, err := d.serverCPU(ctx)
	if err != nil {
		return cost{}, err
	}
	if err := work(); err != nil {
		return cost{}, err
	}
	used, err := d.serverCPU(ctx)
	if err != nil {
		return cost{}, err
	}
	err = d.pool.QueryRow(ctx, position).Scan(&to)
	return cost{to - from, used - cpu}, err
}

// costOfOurs measures from the insert to the row's deletion.
func (b *bench) costOfOurs(cfg forwarder.Config) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		d, err := b.newDatabase(ctx)
		if err != nil {
			return "", err
		}
		defer d.drop()
		n := b.scaled(costMessages)
		s := newSink(n)
		pub, err := outbox.NewPublisher(d.db, outbox.PublisherConfig{}, nil)
		if err != nil {
			return "", err
		}
		f, stop, err := d.forward(ctx, s, cfg)
		if err != nil {
			return "", err
		}
		defer stop()
		c, err := b.costOf(ctx, d, func() error {
			for first := 0; first < n; first += costPerTx {
				err := outbox.InTx(ctx, d.db, func(ctx context.Context) error {
					return pub.PublishContext(ctx, topic, messagesOf(first, min(first+costPerTx, n))...)
				})
				if err != nil {
					return err
				}
			}
			return errors.Join(f.Drain(ctx), d.emptied(ctx))
		})
		return c.perMessage(n, "from insert to deletion"), errors.Join(err, stop(), s.check())
	}
}

// costOfWatermill measures from the insert to the acknowledged offset: Watermill deletes nothing.
func (b *bench) costOfWatermill(ctx context.Context) (string, error) {
	d, err := b.newDatabase(ctx)
	if err != nil {
		return "", err
	}
	defer d.drop()
	n := b.scaled(costMessages)
	db, err := sql.Open("pgx", d.url)
	if err != nil {
		return "", err
	}
	defer db.Close()
	sub, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
		SchemaAdapter: watermillSchema, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{}, InitializeSchema: true,
	}, nil)
	if err != nil {
		return "", err
	}
	defer sub.Close()
	if err := sub.SubscribeInitialize(watermillTopic); err != nil {
		return "", err
	}
	s := newSink(n)
	f, err := wforwarder.NewForwarder(sub, s, watermill.NopLogger{}, wforwarder.Config{ForwarderTopic: watermillTopic})
	if err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	c, err := b.costOf(ctx, d, func() error {
		if err := loadWatermill(db, n); err != nil {
			return err
		}
		return errors.Join(s.wait(ctx), offsetReaches(ctx, db, n))
	})
	return c.perMessage(n, "from insert to acknowledged offset; it deletes nothing"), errors.Join(err, f.Close(), <-ended)
}

// costOfRiver measures from the insert to the deletion of the completed job, by the statement of its cleaner, which
// runs too rarely to be awaited.
func (b *bench) costOfRiver(ctx context.Context) (string, error) {
	d, err := b.newDatabase(ctx)
	if err != nil {
		return "", err
	}
	defer d.drop()
	if err := migrateRiver(ctx, d.pool); err != nil {
		return "", err
	}
	n := b.scaled(costMessages)
	s := newSink(n)
	writer, err := riverWriter(d.pool)
	if err != nil {
		return "", err
	}
	stop, err := startRiver(ctx, d.pool, s)
	if err != nil {
		return "", err
	}
	c, err := b.costOf(ctx, d, func() error {
		for first := 0; first < n; first += costPerTx {
			var jobs []river.InsertManyParams
			for i := first; i < min(first+costPerTx, n); i++ {
				jobs = append(jobs, river.InsertManyParams{Args: riverJobOf(i)})
			}
			err := pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
				_, err := writer.InsertManyTx(ctx, tx, jobs)
				return err
			})
			if err != nil {
				return err
			}
		}
		if err := s.wait(ctx); err != nil {
			return err
		}
		for deleted := 0; deleted < n; {
			tag, err := d.pool.Exec(ctx, `DELETE FROM river_job WHERE id IN (SELECT id FROM river_job `+
				`WHERE state = 'completed' ORDER BY id LIMIT 1000)`)
			if err != nil {
				return err
			}
			if deleted += int(tag.RowsAffected()); tag.RowsAffected() == 0 {
				time.Sleep(time.Millisecond) // its completer works in batches
			}
		}
		return nil
	})
	return c.perMessage(n, "from insert to deletion"), errors.Join(err, stop())
}

func messagesOf(first, end int) (msgs []*message.Message) {
	for i := first; i < end; i++ {
		msgs = append(msgs, messageOf(i))
	}
	return msgs
}

// emptied returns an error unless every row was published and deleted. It deletes rows that cleaning passed before they
// were published, because cleaning would only return to them within the hour.
func (d *database) emptied(ctx context.Context) error {
	if _, err := d.pool.Exec(ctx, "DELETE FROM outbox WHERE published_at IS NOT NULL"); err != nil {
		return fmt.Errorf("delete published rows that cleaning passed by: %w", err)
	}
	var left int
	if err := d.pool.QueryRow(ctx, "SELECT count(*) FROM outbox").Scan(&left); err != nil || left == 0 {
		return err
	}
	return fmt.Errorf("%d rows are left, which were not published", left)
}
