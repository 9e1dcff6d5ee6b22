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
	horizonRounds = 10
	horizonJudged = 3 // the last ones
	sweepLimit    = 2 * time.Minute
	lateLimit     = time.Second
)

// horizonGroup is what happens to a queue table while somebody's transaction keeps vacuum from cleaning it.
func (b *bench) horizonGroup() group {
	return group{
		rows: []row{
			{name: "drain_pinned_horizon", what: "rounds 8 to 10 of insert 100,000 + drain, under a transaction that pins vacuum / with none; full sweep within 2 min",
				floor: 0.8, aim: 1, ours: "pinned", rival: "unpinned"},
			{name: "drain_long_writer", what: "the same under a writing transaction that holds an uncommitted message / with none; published within 1 s of its commit",
				floor: 0.8, aim: 1, ours: "long_writer", rival: "unpinned"},
		},
		sides: func(context.Context) ([]side, func(), error) {
			return []side{
				{name: "unpinned", rounds: 1, run: b.underHorizon(nobody)},
				{name: "pinned", rounds: 1, run: b.underHorizon(reader)},
				{name: "long_writer", rounds: 1, run: b.underHorizon(writer)},
			}, nil, nil
		},
	}
}

// pin is whose transaction is open meanwhile.
type pin int

const (
	nobody pin = iota
	reader
	writer
)

func (b *bench) underHorizon(who pin) func(context.Context) (measured, error) {
	return func(ctx context.Context) (measured, error) {
		d, err := b.newDatabase(ctx)
		if err != nil {
			return measured{}, err
		}
		defer d.drop()
		n := b.scaled(drained)
		total := n*horizonRounds + 1 // the last index is the writer's
		s := newSink(total)
		came := make(chan time.Time, 1)
		s.stamp = func(i int) {
			if i == total-1 {
				select {
				case came <- time.Now():
				default: // a repetition
				}
			}
		}
		f, stop, err := d.forward(ctx, s, forwarder.Config{})
		if err != nil {
			return measured{}, err
		}
		defer stop()
		held, err := pgx.Connect(ctx, d.url)
		if err != nil {
			return measured{}, err
		}
		defer held.Close(context.WithoutCancel(ctx))
		if err := hold(ctx, held, who, total-1); err != nil {
			return measured{}, err
		}

		var rates []float64
		for round := range horizonRounds {
			rate, err := insertAndDrain(ctx, d.pool, f, s, round*n, n)
			if err != nil {
				return measured{}, err
			}
			rates = append(rates, rate)
			b.progress("%-24s insert and drain %d/%d  %s", [...]string{"unpinned", "pinned", "long_writer"}[who], round+1, horizonRounds, number(rate))
		}
		m := measured{value: median(rates[horizonRounds-horizonJudged:])}
		m.facts = []string{fmt.Sprintf("first round %s", number(rates[0]))}
		switch who {
		case reader:
			took, err := d.fullSweep(ctx)
			if err != nil {
				return m, err
			}
			m.facts[0] += ", full sweep " + took.Round(100*time.Millisecond).String()
			if took > sweepLimit {
				m.broken = "a full sweep takes longer than " + sweepLimit.String()
			}
		case writer:
			if _, err := held.Exec(ctx, "COMMIT"); err != nil {
				return m, err
			}
			committed := time.Now()
			select {
			case at := <-came:
				took := max(at.Sub(committed), 0)
				m.facts[0] += ", message of the writer published " + took.Round(time.Millisecond).String() + " after its commit"
				if took > lateLimit {
					m.broken = "the message of the long writer came later than " + lateLimit.String()
				}
			case <-ctx.Done():
				return m, errors.New("the message of the long writer never came")
			}
		}
		if who != writer {
			s.wanted-- // nobody sends it
		}
		return m, errors.Join(f.Drain(ctx), stop(), s.check(), d.settled(ctx))
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
func insertAndDrain(ctx context.Context, pool *pgxpool.Pool, f *forwarder.Forwarder, s *sink, first, n int) (float64, error) {
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

// fullSweep makes rows of every lane pending behind the forwarder's back, the lowest, a middle and the highest, and
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
		if err := d.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM outbox WHERE published_at IS NULL)").Scan(&pending); err != nil || !pending {
			return time.Since(begun), err
		}
		time.Sleep(100 * time.Millisecond)
	}
}
