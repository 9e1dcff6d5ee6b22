package main

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/jackc/pgx/v5"
)

// backlogGroup drains ten times as much in a separate process, and also measures its memory. A longer run meets
// checkpoints and a larger table, so each backlog is compared with the hand-written loop on the same one.
func (b *bench) backlogGroup() group {
	n := b.scaled(drained)
	return group{
		about: 120 * time.Second,
		rows: []row{
			{name: "drain_backlog_10x", what: "backlog of 1,000,000 / of 100,000, each of them ours / hand-written loop",
				floor: 0.8, aim: 1, ours: "backlog_10x", oursBase: "raw_10x", rival: "backlog", rivalBase: "raw"},
		},
		sides: func(context.Context) ([]side, func(), error) {
			return []side{
				{name: "backlog", rounds: 3, run: b.backlogDraining(n, "memory_100k")},
				{name: "raw", rounds: 3, run: b.rawLoop(n, rawMark)},
				{name: "backlog_10x", rounds: 3, run: b.backlogDraining(10*n, "memory_1m")},
				{name: "raw_10x", rounds: 3, run: b.rawLoop(10*n, rawMark)},
			}, nil, nil
		},
	}
}

func (b *bench) backlogDraining(n int, memory string) func(context.Context) (measured, error) {
	return func(ctx context.Context) (measured, error) {
		d, err := b.newDatabase(ctx)
		if err != nil {
			return measured{}, err
		}
		defer d.drop()
		if err := d.backlog(ctx, n); err != nil {
			return measured{}, err
		}
		w, err := startWorker(ctx, workerConfig{URL: d.url, N: n})
		if err != nil {
			return measured{}, err
		}
		defer w.close()
		if _, err := w.ask("start"); err != nil {
			return measured{}, err
		}
		begun := time.Now()
		for _, command := range []string{"wait", "drain"} {
			if _, err := w.ask(command); err != nil {
				return measured{}, err
			}
		}
		took := time.Since(begun)
		r, err := w.result()
		if err != nil {
			return measured{}, err
		}
		text := fmt.Sprintf("%d MB at most while draining %s messages", r.PeakKB/1024, number(float64(n)))
		b.figure(memory, text, "bounded by messages in flight, not by the backlog")
		return measured{value: perSecond(n, took)}, errors.Join(checkWorkers(n, r), w.close(), d.settled(ctx))
	}
}

// twoGroup compares two forwarders in two processes with one. The publisher is slow enough that one forwarder leaves
// both cores idle time; otherwise the row would measure the machine.
func (b *bench) twoGroup() group {
	return group{
		about: 30 * time.Second,
		rows: []row{
			{name: "two_forwarders", what: "two forwarders (two processes) / one, publisher takes 5 ms, same Concurrency each",
				floor: 1.8, aim: 1.95, ours: "two", rival: "one"},
		},
		sides: func(context.Context) ([]side, func(), error) {
			n := b.scaled(drained / 2)
			return []side{
				{name: "one", rounds: 6, run: b.forwarders(1, n)},
				{name: "two", rounds: 6, run: b.forwarders(2, n)},
			}, nil, nil
		},
	}
}

// forwarders measures how fast processes publish n messages of one transaction, from its commit until all are settled.
func (b *bench) forwarders(processes, n int) func(context.Context) (measured, error) {
	return func(ctx context.Context) (measured, error) {
		d, err := b.newDatabase(ctx)
		if err != nil {
			return measured{}, err
		}
		defer d.drop()
		var workers []*worker
		for range processes {
			w, err := startWorker(ctx, workerConfig{URL: d.url, N: n, Delay: 5 * time.Millisecond})
			if err != nil {
				return measured{}, err
			}
			defer w.close()
			workers = append(workers, w)
			if _, err := w.ask("start"); err != nil {
				return measured{}, err
			}
		}
		if err := d.sharedBy(ctx, processes); err != nil {
			return measured{}, err
		}
		tx, err := d.pool.Begin(ctx)
		if err != nil {
			return measured{}, err
		}
		defer tx.Rollback(ctx)
		if err := load(ctx, tx, 0, n); err != nil {
			return measured{}, err
		}
		if err := tx.Commit(ctx); err != nil {
			return measured{}, err
		}
		begun := time.Now()
		if err := all(workers, "wake"); err != nil {
			return measured{}, err
		}
		for published := 0; published < n; time.Sleep(2 * time.Millisecond) {
			if err := ctx.Err(); err != nil {
				return measured{}, err
			}
			published = 0
			for _, w := range workers {
				count, err := w.count()
				if err != nil {
					return measured{}, err
				}
				published += count
			}
		}
		if err := all(workers, "drain"); err != nil {
			return measured{}, err
		}
		took := time.Since(begun)
		var results []workerResult
		for _, w := range workers {
			r, err := w.result()
			if err != nil {
				return measured{}, err
			}
			results = append(results, r)
		}
		return measured{value: perSecond(n, took)}, errors.Join(checkWorkers(n, results...), d.settled(ctx))
	}
}

func all(workers []*worker, command string) error {
	for _, w := range workers {
		if _, err := w.ask(command); err != nil {
			return err
		}
	}
	return nil
}

// sharedBy returns when this many forwarders each own the same number of lanes.
func (d *database) sharedBy(ctx context.Context, forwarders int) error {
	for {
		rows, err := d.pool.Query(ctx, "SELECT count(*) FROM outbox_lanes WHERE owner IS NOT NULL GROUP BY owner")
		if err != nil {
			return err
		}
		counts, err := pgx.CollectRows(rows, pgx.RowTo[int])
		if err != nil {
			return err
		}
		if len(counts) == forwarders && counts[0] == 64/forwarders && counts[forwarders-1] == 64/forwarders {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// checkWorkers returns an error unless the workers together got n distinct messages, each worker in order, and no key
// alternated between them.
func checkWorkers(n int, results ...workerResult) error {
	distinct := 0
	for word := range results[0].Seen {
		var union uint64
		for _, r := range results {
			union |= r.Seen[word]
		}
		distinct += bits.OnesCount64(union)
	}
	if distinct != n {
		return fmt.Errorf("%d distinct messages came instead of %d", distinct, n)
	}
	for i, r := range results {
		if r.Overtook > 0 {
			return fmt.Errorf("%d messages overtook an earlier one of their key", r.Overtook)
		}
		for _, other := range results[:i] {
			for key := range keys {
				if r.Last[key] > 0 && other.Last[key] > 0 && r.First[key] < other.Last[key] && other.First[key] < r.Last[key] {
					return fmt.Errorf("two processes published key %d at the same time", key)
				}
			}
		}
	}
	return nil
}
