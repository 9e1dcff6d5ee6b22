package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/riverqueue/river"

	"github.com/millrace-go/watermill-outbox/queue"
)

const (
	dispatchWorkers = 100
	ingestCallers   = 16
)

// queueGroup is the durable queue: its dispatcher against River with as many workers, and gathered deliveries against
// single ones.
func (b *bench) queueGroup() group {
	n, deliveries, slow := b.scaled(drained), b.scaled(20_000), b.scaled(5_000)
	if b.quick {
		n = b.scaled(drained / 2)
	}
	return group{
		about: 80 * time.Second,
		rows: []row{
			{
				name:  "queue_dispatch_vs_river",
				what:  number(float64(n)) + " stored messages through handlers that do nothing, 100 workers: ours / River",
				floor: 1.5, aim: 2.5,
				ours: "ours_dispatch", rival: "river_dispatch", quick: true, chart: "stored messages, no-op handlers",
				label: "River",
			},
			{name: "ingest_16", what: "16 deliveries at once: through Ingest / one commit each", floor: 3, aim: 4,
				ours: "ingest", rival: "enqueue_each"},
		},
		sides: func(context.Context) ([]side, func(), error) {
			return []side{
				{name: "ours_dispatch", run: b.oursDispatching(n)},
				{
					name: "river_dispatch", rounds: b.slowRounds(), run: b.riverDispatching(n),
					note: "River fetches each millisecond and completes in batches",
				},
				{name: "ingest", run: b.delivering(deliveries, func(s *queue.Store) (func(context.Context, int) error, error) {
					ingest, err := queue.Ingest(s, queue.IngestConfig{Item: func(msg *message.Message) (queue.Item, error) {
						return queueItem(indexOf(msg.UUID)), nil
					}})
					return func(_ context.Context, i int) error { return ingest(message.NewMessage(uuidOf(i), payload)) }, err
				})},
				{name: "enqueue_each", rounds: b.slowRounds(), note: number(float64(slow)) +
					" with one commit each", run: b.delivering(slow, func(s *queue.Store) (func(context.Context, int) error, error) {
					return func(ctx context.Context, i int) error { _, err := s.Enqueue(ctx, queueItem(i)); return err }, nil
				})},
			}, nil, nil
		},
	}
}

func queueItem(i int) queue.Item {
	return queue.Item{ID: queue.ID{Source: "bench", MessageID: uuidOf(i)}, Topic: topic, Payload: payload}
}

// timed returns the messages per second from now until done returns.
func timed(n int, done func() error) (measured, error) {
	begun := time.Now()
	err := done()
	return measured{value: float64(n) / time.Since(begun).Seconds()}, err
}

// oursDispatching measures from the start of a dispatcher until all messages are done in the database.
func (b *bench) oursDispatching(n int) func(context.Context) (measured, error) {
	return func(ctx context.Context) (measured, error) {
		d, err := b.newDatabase(ctx)
		if err != nil {
			return measured{}, err
		}
		defer d.drop()
		store, err := queue.NewStore(d.db, queue.StoreConfig{}, nil)
		if err != nil {
			return measured{}, err
		}
		for i := 0; i < n; i += 1000 {
			var items []queue.Item
			for j := i; j < min(i+1000, n); j++ {
				items = append(items, queueItem(j))
			}
			if _, err := store.Enqueue(ctx, items...); err != nil {
				return measured{}, err
			}
		}
		if _, err := d.pool.Exec(ctx, "VACUUM ANALYZE inbox_queue"); err != nil {
			return measured{}, err
		}
		s := newSink(n)
		dispatcher, err := queue.NewDispatcher(store, queue.DispatcherConfig{
			Concurrency: dispatchWorkers, BatchSize: dispatchWorkers,
			Handlers: map[string]queue.Handler{
				topic: {Detached: true, Handle: func(_ context.Context, msg *queue.Message) error {
					return s.Publish(topic, message.NewMessage(msg.MessageID, nil))
				}},
			},
		}, nil)
		if err != nil {
			return measured{}, err
		}
		m, err := timed(n, func() error { return dispatcher.Drain(ctx) })
		if err != nil {
			return m, err
		}
		var left int
		if err := d.pool.QueryRow(ctx, "SELECT count(*) FROM inbox_queue WHERE state <> 'done'").Scan(&left); err != nil {
			return m, err
		}
		if left > 0 || s.distinct.Load() != int64(n) {
			m.broken = fmt.Sprintf("%d of %d messages handled, %d left", s.distinct.Load(), n, left)
		}
		return m, nil
	}
}

// riverDispatching measures the same with River, whose Stop returns when all results are written.
func (b *bench) riverDispatching(n int) func(context.Context) (measured, error) {
	return func(ctx context.Context) (measured, error) {
		d, err := b.newDatabase(ctx)
		if err != nil {
			return measured{}, err
		}
		defer d.drop()
		if err := migrateRiver(ctx, d.pool); err != nil {
			return measured{}, err
		}
		client, err := riverWriter(d.pool)
		if err != nil {
			return measured{}, err
		}
		for i := 0; i < n; i += 1000 {
			var jobs []river.InsertManyParams
			for j := i; j < min(i+1000, n); j++ {
				jobs = append(jobs, river.InsertManyParams{Args: riverJobOf(j)})
			}
			if _, err := client.InsertManyFast(ctx, jobs); err != nil {
				return measured{}, err
			}
		}
		if _, err := d.pool.Exec(ctx, "VACUUM ANALYZE river_job"); err != nil {
			return measured{}, err
		}
		s := newSink(n)
		return timed(n, func() error {
			stop, err := startRiver(ctx, d.pool, s)
			if err != nil {
				return err
			}
			if err := s.wait(ctx); err != nil {
				return err
			}
			return stop()
		})
	}
}

// delivering measures callers that each store one message after another.
func (b *bench) delivering(
	n int, make func(*queue.Store) (func(context.Context, int) error, error),
) func(context.Context) (measured, error) {
	return func(ctx context.Context) (measured, error) {
		d, err := b.newDatabase(ctx)
		if err != nil {
			return measured{}, err
		}
		defer d.drop()
		store, err := queue.NewStore(d.db, queue.StoreConfig{}, nil)
		if err != nil {
			return measured{}, err
		}
		put, err := make(store)
		if err != nil {
			return measured{}, err
		}
		return timed(n, func() error {
			failed := &firstError{}
			var callers sync.WaitGroup
			for c := range ingestCallers {
				callers.Go(func() {
					for i := c; i < n; i += ingestCallers {
						if err := put(ctx, i); err != nil {
							failed.add(err)
							return
						}
					}
				})
			}
			callers.Wait()
			return failed.first
		})
	}
}

// firstError keeps the first error of several goroutines.
type firstError struct {
	once  sync.Once
	first error
}

func (e *firstError) add(err error) { e.once.Do(func() { e.first = err }) }
