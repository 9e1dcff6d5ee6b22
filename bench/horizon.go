package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

const (
	sweepLimit = 2 * time.Minute
	lateLimit  = time.Second
)

// horizonGroup measures a queue table while an open transaction prevents vacuum from cleaning it.
func (b *bench) horizonGroup() group {
	return group{
		about: 200 * time.Second,
		rows: []row{
			{name: "drain_pinned_horizon", what: "rounds 8 to 10 of insert 100,000 + drain, under a transaction that pins " +
				"vacuum / with none; full sweep within 2 min",
				floor: 0.8, aim: 1, ours: "pinned", rival: "unpinned"},
			{name: "drain_long_writer", what: "the same under a writing transaction that holds an uncommitted message / with " +
				"none; published within 1 s of its commit",
				floor: 0.8, aim: 1, ours: "long_writer", rival: "unpinned"},
		},
		sides: func(context.Context) ([]side, func(), error) {
			return []side{
				{name: "unpinned", lasting: &horizon{bench: b, who: nobody}},
				{name: "pinned", lasting: &horizon{bench: b, who: reader}},
				{name: "long_writer", lasting: &horizon{bench: b, who: writer}},
			}, nil, nil
		},
	}
}

// pin is the owner of the open transaction.
type pin int

const (
	nobody pin = iota
	reader
	writer
)

// horizon is a forwarder under a pin that lasts from the first round to the last.
type horizon struct {
	bench *bench
	who   pin
	*database
	sink *sink
	n    int // messages per round
	sent int
	f    *forwarder.Forwarder
	stop func() error
	held *pgx.Conn
	came chan time.Time // of the writer's messages
}

func (h *horizon) begin(ctx context.Context) (err error) {
	if h.database, err = h.bench.newServer(ctx); err != nil {
		return err
	}
	h.n = h.bench.scaled(drained)
	last := lastingMost * h.n // the writer's messages
	h.sink, h.came = newSink(last+1), make(chan time.Time, 1)
	h.sink.stamp = func(i int) {
		if i == last {
			select {
			case h.came <- time.Now():
			default: // first message not yet recorded
			}
		}
	}
	if h.f, h.stop, err = h.forward(ctx, h.sink, forwarder.Config{}); err != nil {
		return err
	}
	if h.held, err = pgx.Connect(ctx, h.url); err != nil {
		return err
	}
	return hold(ctx, h.held, h.who, last)
}

func (h *horizon) round(ctx context.Context) (measured, error) {
	rate, err := insertAndDrain(ctx, h.pool, h.f, h.sink, h.sent, h.n)
	h.sent += h.n
	return measured{value: rate}, err
}

func (h *horizon) end(ctx context.Context) (measured, error) {
	var m measured
	switch h.who {
	case reader:
		took, err := h.fullSweep(ctx)
		if err != nil {
			return m, err
		}
		m.facts = []string{"full sweep " + took.Round(100*time.Millisecond).String()}
		if took > sweepLimit {
			m.broken = "a full sweep takes longer than " + sweepLimit.String()
		}
	case writer:
		if _, err := h.held.Exec(ctx, "COMMIT"); err != nil {
			return m, err
		}
		committed := time.Now()
		h.sent++
		select {
		case at := <-h.came:
			took := max(at.Sub(committed), 0)
			m.facts = []string{"message of the writer published " + took.Round(time.Millisecond).String() + " after its commit"}
			if took > lateLimit {
				m.broken = "the message of the long writer came later than " + lateLimit.String()
			}
		case <-ctx.Done():
			return m, errors.New("the message of the long writer never came")
		}
	}
	if err := errors.Join(h.f.Drain(ctx), h.stop()); err != nil {
		return m, err
	}
	h.sink.wanted = int64(h.sent)
	return m, errors.Join(h.sink.check(), h.settled(ctx))
}

func (h *horizon) close() {
	if h.stop != nil {
		_ = h.stop() // end returns the error
	}
	if h.held != nil {
		_ = h.held.Close(context.Background())
	}
	if h.database != nil {
		h.drop()
	}
}

// hold opens the transaction that stays open.
func hold(ctx context.Context, conn *pgx.Conn, who pin, index int) error {
	if who == nobody {
		return nil
	}
	if _, err := conn.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ"); err != nil {
		return err
	}
	if who == reader {
		_, err := conn.Exec(ctx, "SELECT count(*) FROM outbox")
		return err
	}
	return load(ctx, conn, index, 1)
}

// insertAndDrain measures from the commit of n messages until they are settled.
func insertAndDrain(
	ctx context.Context, pool *pgxpool.Pool, f *forwarder.Forwarder, s *sink, first, n int,
) (float64, error) {
	tx, err := pool.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback(ctx)
	if err := load(ctx, tx, first, n); err != nil {
		return 0, err
	}
	if err := tx.Commit(ctx); err != nil {
		return 0, err
	}
	begun := time.Now()
	if err := f.Drain(ctx); err != nil {
		return 0, err
	}
	took := time.Since(begun)
	if came := s.distinct.Load(); came != int64(first+n) {
		return 0, fmt.Errorf("drained, but %d messages came instead of %d", came, first+n)
	}
	return perSecond(n, took), nil
}

// fullSweep makes the lowest, a middle and the highest row of every lane pending without notifying the forwarder, and
// returns how long it took to find them all.
func (d *database) fullSweep(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	_, err := d.pool.Exec(ctx, `UPDATE outbox SET published_at = NULL WHERE id IN (
 SELECT unnest(ARRAY[min(id), percentile_disc(0.5) WITHIN GROUP (ORDER BY id), max(id)]) FROM outbox GROUP BY lane)`)
	if err != nil {
		return 0, err
	}
	for {
		var pending bool
		if err := d.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM outbox WHERE published_at IS NULL)").Scan(&pending); err !=
			nil || !pending {
			return time.Since(begun), err
		}
		time.Sleep(100 * time.Millisecond)
	}
}
