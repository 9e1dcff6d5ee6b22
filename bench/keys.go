package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
)

const (
	hotKey       = "hot"
	hotPerSecond = 1000 // the most that a publisher with 1 ms per call can do
	otherKeys    = 20
	otherLimit   = 50 * time.Millisecond
	otherTick    = 20 * time.Millisecond
)

// hotGroup is one key with a long backlog, next to other keys of its lane.
func (b *bench) hotGroup() group {
	n := b.scaled(20_000)
	if b.quick {
		n = b.scaled(6_000)
	}
	return group{
		about: 50 * time.Second,
		rows: []row{
			{name: "hot_key", what: "one key with " + number(float64(n)) + " pending, publisher takes 1 ms: " +
				"messages per second / 1000; p99 of other keys of its lane below 50 ms",
				floor: 0.7, aim: 0.9, ours: "hot_key", quick: true},
		},
		sides: func(context.Context) ([]side, func(), error) {
			return []side{{name: "hot_key", rounds: 2, run: b.hot(n)}}, nil, nil
		},
	}
}

func (b *bench) hot(n int) func(context.Context) (measured, error) {
	return func(ctx context.Context) (measured, error) {
		d, err := b.newDatabase(ctx)
		if err != nil {
			return measured{}, err
		}
		defer d.drop()
		if err := loadKeyed(ctx, d.pool, 0, n, func(int) string { return hotKey }); err != nil {
			return measured{}, err
		}
		neighbours, err := d.neighbours(ctx)
		if err != nil {
			return measured{}, err
		}
		others := int(float64(n) / hotPerSecond * 0.9 * float64(time.Second/otherTick))
		s := newSink(n + others)
		s.delay, s.sleep = time.Millisecond, sleepExactly
		s.keyOf = func(i int) int {
			if i < n {
				return 0
			}
			return 1 + i%otherKeys
		}
		came := make([]time.Time, n+others)
		s.stamp = func(i int) { came[i] = time.Now() }
		f, stop, err := d.forward(ctx, s, forwarder.Config{})
		if err != nil {
			return measured{}, err
		}
		defer stop()
		begun := time.Now()
		committed, err := d.trickle(ctx, otherTick, n, others, func(i int) string { return neighbours[i%otherKeys] })
		if err != nil {
			return measured{}, err
		}
		if err := errors.Join(s.wait(ctx), f.Drain(ctx), stop(), s.check(), d.settled(ctx)); err != nil {
			return measured{}, err
		}
		m := measured{value: perSecond(n, came[n-1].Sub(begun)) / hotPerSecond}
		waits := latencies(committed, came[n:])
		m.facts = []string{fmt.Sprintf("other keys of the lane %s", waits)}
		if waits.p99 > otherLimit {
			m.broken = fmt.Sprintf("other keys of the lane have a p99 of %s", waits.p99.Round(100*time.Microsecond))
		}
		return m, nil
	}
}

// neighbours returns keys of the hot key's lane.
func (d *database) neighbours(ctx context.Context) ([]string, error) {
	rows, err := d.pool.Query(ctx, `SELECT k FROM (SELECT 'other-' || i AS k FROM generate_series(1, 100000) i) c
 WHERE hashtext(k) & 63 = hashtext($1) & 63 LIMIT $2`, hotKey, otherKeys)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// trickle publishes messages first to first+n-1, one per tick and transaction, and returns when each was committed.
func (d *database) trickle(
	ctx context.Context, tick time.Duration, first, n int, key func(i int) string,
) ([]time.Time, error) {
	pub, err := outbox.NewPublisher(d.db, outbox.PublisherConfig{}, nil)
	if err != nil {
		return nil, err
	}
	committed := make([]time.Time, n)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for i := range n {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		msg := messageOf(first + i)
		outbox.SetKey(msg, key(first+i))
		err := outbox.InTx(ctx, d.db, func(ctx context.Context) error { return pub.PublishContext(ctx, topic, msg) })
		if err != nil {
			return nil, err
		}
		committed[i] = time.Now()
	}
	return committed, nil
}

// failingGroup makes 1% of the keys fail for a while.
func (b *bench) failingGroup() group {
	return group{
		about: 25 * time.Second,
		rows: []row{
			{name: "failing_keys", what: "drain 100,000, 1 % of keys fail their first three attempts, backoff 10 ms / " +
				"none fails",
				floor: 0.7, aim: 0.9, ours: "failing", rival: "healthy", quick: true},
		},
		sides: func(context.Context) ([]side, func(), error) {
			n := b.scaled(drained)
			cfg := forwarder.Config{Backoff: outbox.Backoff{Initial: 10 * time.Millisecond, Max: 10 * time.Millisecond}}
			return []side{
				{name: "healthy", run: b.oursDraining(n, cfg, noop)},
				{name: "failing", run: b.oursDraining(n, cfg, failing)},
			}, nil, nil
		},
	}
}

func failing(n int) (*sink, error) {
	s := newSink(n)
	failures := make([]atomic.Int32, keys)
	refused := errors.New("refused")
	s.fail = func(i int) error {
		if key := i % keys; key%100 == 0 && failures[key].Add(1) <= 3 {
			return refused
		}
		return nil
	}
	return s, nil
}

// waits holds how long each message waited.
type waits struct{ p50, p95, p99 time.Duration }

func latencies(from, to []time.Time) waits {
	all := make([]time.Duration, len(from))
	for i := range from {
		all[i] = max(to[i].Sub(from[i]), 0)
	}
	slices.Sort(all)
	at := func(p float64) time.Duration { return all[min(int(p*float64(len(all))), len(all)-1)] }
	return waits{at(0.5), at(0.95), at(0.99)}
}

func (w waits) String() string {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond)) }
	return fmt.Sprintf("p50 %s, p95 %s, p99 %s", ms(w.p50), ms(w.p95), ms(w.p99))
}
