package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// handlingTime is the duration of a round. It is long because transactions wait for the disk, which has good and bad
// moments.
const handlingTime = 4 * time.Second

// overheadGroup compares handling a message in the middlewares with the same statements written by hand.
func (b *bench) overheadGroup() group {
	return group{
		about: 90 * time.Second,
		rows: []row{
			{name: "tx_overhead_1", what: "one handler, Tx + Inbox + Outbox around one INSERT / the same statements " +
				"hand-written",
				floor: 1.1, aim: 1.3, ours: "middlewares_1", rival: "hand_written_1", unit: "tx/s", quick: true},
			{name: "tx_overhead_16", what: "the same with 16 handlers", floor: 0.95, aim: 1.05,
				ours: "middlewares_16", rival: "hand_written_16", unit: "tx/s", quick: true},
			{name: "tx_overhead_rtt", what: "one handler, through a proxy that adds 1 ms of round trip", floor: 1.2, aim: 1.6,
				ours: "middlewares_rtt", rival: "hand_written_rtt", unit: "tx/s"},
			{name: "notify_cost_16", what: "16 handlers, wake-up across processes on, and a second process that " +
				"listens and receives / off",
				floor: 0.9, aim: 1, ours: "notifying_16", rival: "silent_16", unit: "tx/s"},
		},
		sides: func(context.Context) ([]side, func(), error) {
			const rtt = time.Millisecond
			return []side{
				{name: "middlewares_1", run: b.handling(middlewares, 1, 0, false)},
				{name: "hand_written_1", run: b.handling(handWritten, 1, 0, false)},
				{name: "middlewares_16", run: b.handling(middlewares, 16, 0, false)},
				{name: "hand_written_16", run: b.handling(handWritten, 16, 0, false)},
				{name: "middlewares_rtt", run: b.handling(middlewares, 1, rtt, false)},
				{name: "hand_written_rtt", run: b.handling(handWritten, 1, rtt, false)},
				{name: "notifying_16", run: b.handling(middlewares, 16, 0, true)},
				{name: "silent_16", run: b.handling(silentMiddlewares, 16, 0, false)},
			}, nil, nil
		},
	}
}

// handling measures transactions per second of several concurrent handlers.
func (b *bench) handling(
	side handler, handlers int, rtt time.Duration, listening bool,
) func(context.Context) (measured, error) {
	return func(ctx context.Context) (measured, error) {
		d, err := b.newDatabase(ctx)
		if err != nil {
			return measured{}, err
		}
		defer d.drop()
		if _, err := d.pool.Exec(ctx, businessTable); err != nil {
			return measured{}, err
		}
		var fact string
		far, closeFar, err := d.sized(ctx, handlers, rtt)
		if err != nil {
			return measured{}, err
		}
		defer closeFar()
		if rtt > 0 {
			if fact, err = roundTrips(ctx, d.pool, far.pool); err != nil {
				return measured{}, err
			}
		}
		handle, err := side(far)
		if err != nil {
			return measured{}, err
		}
		var listener *worker
		if listening {
			if listener, err = startWorker(ctx, workerConfig{URL: d.url, Listen: true}); err != nil {
				return measured{}, err
			}
			defer listener.close()
			if _, err := listener.ask("start"); err != nil {
				return measured{}, err
			}
		}
		var next, handled atomic.Int64
		failed := newFailure()
		begun := time.Now()
		var group sync.WaitGroup
		for range handlers {
			group.Go(func() {
				for time.Since(begun) < handlingTime && failed.err() == nil {
					if err := handle(ctx, int(next.Add(1)-1)); err != nil {
						failed.set(err)
						return
					}
					handled.Add(1)
				}
			})
		}
		group.Wait()
		took := time.Since(begun)
		if err := failed.err(); err != nil {
			return measured{}, err
		}
		if listening {
			received, err := listener.count()
			if err != nil {
				return measured{}, err
			}
			if received == 0 {
				return measured{}, errors.New("the second process received no notification")
			}
			fact = fmt.Sprintf("%d notifications received", received)
		}
		n := int(handled.Load())
		return measured{value: perSecond(n, took), facts: []string{fact}}, d.wrote(ctx, n)
	}
}

// wrote returns an error unless n messages were recorded, handled and answered.
func (d *database) wrote(ctx context.Context, n int) error {
	var inbox, business, outbox int
	err := d.pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM inbox WHERE processed_at IS NOT NULL),
 (SELECT count(*) FROM business),
 (SELECT count(DISTINCT uuid) FROM outbox)`).Scan(&inbox, &business, &outbox)
	if err == nil && (inbox != n || business != n || outbox != n) {
		err = fmt.Errorf("%d messages in the inbox, %d rows, %d messages in the outbox instead of %d", inbox,
			business, outbox, n)
	}
	return err
}

// otherConns is how many connections a pool has in addition to one for each handler.
const otherConns = 4

// sized returns the database with enough connections, through a slow proxy if rtt is not 0.
func (d *database) sized(ctx context.Context, conns int, rtt time.Duration) (*database, func(), error) {
	url, done := d.url, func() {}
	if rtt > 0 {
		p, err := startProxy(d.url, rtt)
		if err != nil {
			return nil, nil, err
		}
		url, done = p.url, p.close
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		done()
		return nil, nil, err
	}
	cfg.MaxConns = int32(conns + otherConns)
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		done()
		return nil, nil, err
	}
	larger, err := open(url, pool)
	return larger, func() { pool.Close(); done() }, errors.Join(err, fillPool(ctx, pool))
}

// fillPool opens all connections of a pool: opening one takes as long as dozens of messages.
func fillPool(ctx context.Context, pool *pgxpool.Pool) error {
	for range pool.Config().MaxConns {
		c, err := pool.Acquire(ctx)
		if err != nil {
			return err
		}
		defer c.Release()
	}
	return nil
}

// failure keeps the first error of several goroutines.
type failure struct{ first atomic.Pointer[error] }

func newFailure() *failure { return &failure{} }

func (f *failure) set(err error) { f.first.CompareAndSwap(nil, &err) }

func (f *failure) err() error {
	if p := f.first.Load(); p != nil {
		return *p
	}
	return nil
}
