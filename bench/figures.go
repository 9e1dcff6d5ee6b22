package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

const (
	latencyTick     = time.Second / 50
	latencyMessages = 500
	idleTime        = 10 * time.Second
)

// figure is a result that is not a ratio.
type figure struct{ name, text, aim string }

// figure notes one, in the place of an earlier one of that name.
func (b *bench) figure(name, text, aim string) {
	for i, f := range b.figures {
		if f.name == name {
			b.figures[i] = figure{name, text, aim}
			return
		}
	}
	b.figures = append(b.figures, figure{name, text, aim})
}

// measurement is a figure that is measured by itself.
type measurement struct {
	name, aim string
	run       func(ctx context.Context) (string, error)
}

func (b *bench) measurements() []measurement {
	return []measurement{
		{"latency_in_process", "p50 under 0.5 ms, p99 under 2 ms", b.latencyInProcess},
		{"latency_across", "p50 under 3 ms", b.latencyAcross},
		{"idle_queries", "3 or fewer", b.idleQueries},
	}
}

// latencyInProcess is how long a message waits after its commit for a forwarder in the same process.
func (b *bench) latencyInProcess(ctx context.Context) (string, error) {
	d, err := b.newDatabase(ctx)
	if err != nil {
		return "", err
	}
	defer d.drop()
	s := newSink(latencyMessages)
	came := make([]time.Time, latencyMessages)
	s.stamp = func(i int) { came[i] = time.Now() }
	_, stop, err := d.forward(ctx, s, forwarder.Config{})
	if err != nil {
		return "", err
	}
	defer stop()
	committed, err := d.trickle(ctx, latencyTick, 0, latencyMessages, keyOf)
	if err != nil {
		return "", err
	}
	if err := s.wait(ctx); err != nil {
		return "", err
	}
	return "from commit to publish " + latencies(committed, came).String(), stop()
}

// latencyAcross is the same for a forwarder in another process.
func (b *bench) latencyAcross(ctx context.Context) (string, error) {
	d, err := b.newDatabase(ctx)
	if err != nil {
		return "", err
	}
	defer d.drop()
	w, err := startWorker(ctx, workerConfig{URL: d.url, N: latencyMessages, Stamped: true})
	if err != nil {
		return "", err
	}
	defer w.close()
	if _, err := w.ask("start"); err != nil {
		return "", err
	}
	committed, err := d.trickle(ctx, latencyTick, 0, latencyMessages, keyOf)
	if err != nil {
		return "", err
	}
	if _, err := w.ask("wait"); err != nil {
		return "", err
	}
	r, err := w.result()
	if err != nil {
		return "", err
	}
	came := make([]time.Time, latencyMessages)
	for i, at := range r.Stamps {
		came[i] = time.Unix(0, at)
		committed[i] = committed[i].Round(0) // the wall clock is what two processes share
	}
	return "from commit to publish " + latencies(committed, came).String(), nil
}

// idleQueries counts what a forwarder asks when there is nothing to do.
func (b *bench) idleQueries(ctx context.Context) (string, error) {
	d, err := b.newDatabase(ctx)
	if err != nil {
		return "", err
	}
	defer d.drop()
	cfg, err := pgxpool.ParseConfig(d.url)
	if err != nil {
		return "", err
	}
	var count queryCount
	cfg.ConnConfig.Tracer = &count
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return "", err
	}
	defer pool.Close()
	counted, err := open(d.url, pool)
	if err != nil {
		return "", err
	}
	_, stop, err := counted.forward(ctx, newSink(1), forwarder.Config{})
	if err != nil {
		return "", err
	}
	defer stop()
	for _, wait := range []time.Duration{2 * time.Second, idleTime} {
		count.n.Store(0)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	return fmt.Sprintf("%.1f queries per second", float64(count.n.Load())/idleTime.Seconds()), stop()
}

// queryCount is a pgx tracer that counts queries, those in batches one by one.
type queryCount struct{ n atomic.Int64 }

func (c *queryCount) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	c.n.Add(1)
	return ctx
}

func (c *queryCount) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (c *queryCount) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (c *queryCount) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) { c.n.Add(1) }

func (c *queryCount) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
