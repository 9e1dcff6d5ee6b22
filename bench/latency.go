package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

const (
	latencyTick     = time.Second / 50
	latencyMessages = 300
)

// latencyGroup is the time from a message's commit to its arrival, on an otherwise idle machine.
func (b *bench) latencyGroup() group {
	return group{
		about: 100 * time.Second,
		rows: []row{
			{name: "latency_vs_roundtrip", what: "50 msg/s, p50 of a prepared SELECT 1 at the same tick / p50 " +
				"from commit to publish in process",
				floor: 0.33, aim: 0.5, ours: "ours_in_process", rival: "roundtrip", unit: "ms", lower: true, quick: true},
			{name: "latency_vs_river", what: "50 msg/s, p50 from commit to work of river (fetch cooldown and poll 1 ms, " +
				"notifier) / from commit to publish of ours, in process",
				floor: 1, aim: 1.5, ours: "ours_in_process", rival: "river_in_process", unit: "ms", lower: true},
			{name: "latency_across_vs_river", what: "the same with the writer and the worker in two processes",
				floor: 1, aim: 1.5, ours: "ours_across", rival: "river_across", unit: "ms", lower: true},
		},
		sides: func(context.Context) ([]side, func(), error) {
			return []side{
				{name: "roundtrip", rounds: 3, run: b.roundTripLatency},
				{name: "ours_in_process", rounds: 3, run: b.latencyInProcess},
				{name: "river_in_process", rounds: 3, run: b.riverInProcess},
				{name: "ours_across", rounds: 3, run: b.across(workerConfig{}, oursTrickle)},
				{name: "river_across", rounds: 3, run: b.across(workerConfig{River: true}, riverTrickle)},
			}, nil, nil
		},
	}
}

// latency converts waits to a result: the median in milliseconds.
func latency(w waits) measured {
	return measured{value: float64(w.p50) / float64(time.Millisecond), facts: []string{w.String()}}
}

// roundTripLatency is the shortest time that any program waits for the database.
func (b *bench) roundTripLatency(ctx context.Context) (measured, error) {
	d, err := b.newDatabase(ctx)
	if err != nil {
		return measured{}, err
	}
	defer d.drop()
	var from, to []time.Time
	ticker := time.NewTicker(latencyTick)
	defer ticker.Stop()
	for range latencyMessages {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return measured{}, ctx.Err()
		}
		from = append(from, time.Now())
		var one int
		if err := d.pool.QueryRow(ctx, "SELECT 1", pgx.QueryExecModeCacheStatement).Scan(&one); err != nil {
			return measured{}, err
		}
		to = append(to, time.Now())
	}
	return latency(latencies(from, to)), nil
}

// latencyInProcess is the latency of a forwarder in the process that committed the message.
func (b *bench) latencyInProcess(ctx context.Context) (measured, error) {
	d, err := b.newDatabase(ctx)
	if err != nil {
		return measured{}, err
	}
	defer d.drop()
	s := newSink(latencyMessages)
	came := make([]time.Time, latencyMessages)
	s.stamp = func(i int) { came[i] = time.Now() }
	_, stop, err := d.forward(ctx, s, forwarder.Config{})
	if err != nil {
		return measured{}, err
	}
	defer stop()
	committed, err := oursTrickle(ctx, d)
	if err != nil {
		return measured{}, err
	}
	if err := s.wait(ctx); err != nil {
		return measured{}, err
	}
	return latency(latencies(committed, came)), errors.Join(stop(), s.check())
}

func oursTrickle(ctx context.Context, d *database) ([]time.Time, error) {
	return d.trickle(ctx, latencyTick, 0, latencyMessages, keyOf)
}

// across measures a worker in another process; write commits its messages in this one.
func (b *bench) across(
	cfg workerConfig, write func(context.Context, *database) ([]time.Time, error),
) func(context.Context) (measured, error) {
	return func(ctx context.Context) (measured, error) {
		d, err := b.newDatabase(ctx)
		if err != nil {
			return measured{}, err
		}
		defer d.drop()
		if cfg.River {
			if err := migrateRiver(ctx, d.pool); err != nil {
				return measured{}, err
			}
		}
		cfg := cfg
		cfg.URL, cfg.N, cfg.Stamped = d.url, latencyMessages, true
		w, err := startWorker(ctx, cfg)
		if err != nil {
			return measured{}, err
		}
		defer w.close()
		if _, err := w.ask("start"); err != nil {
			return measured{}, err
		}
		committed, err := write(ctx, d)
		if err != nil {
			return measured{}, err
		}
		if _, err := w.ask("wait"); err != nil {
			return measured{}, err
		}
		r, err := w.result()
		if err != nil {
			return measured{}, err
		}
		came := make([]time.Time, latencyMessages)
		for i, at := range r.Stamps {
			came[i] = time.Unix(0, at)
			committed[i] = committed[i].Round(0) // only the wall clock is the same in two processes
		}
		return latency(latencies(committed, came)), checkWorkers(latencyMessages, r)
	}
}
