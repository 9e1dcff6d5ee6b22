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
	idleTime    = 10 * time.Second
	aboutFigure = 15 * time.Second // time to measure a figure
)

// figure is a result that is not a ratio.
type figure struct{ name, text, aim string }

// figure records a figure, replacing an earlier one with the same name.
func (b *bench) figure(name, text, aim string) {
	for i, f := range b.figures {
		if f.name == name {
			b.figures[i] = figure{name, text, aim}
			return
		}
	}
	b.figures = append(b.figures, figure{name, text, aim})
}

// measurement is a figure measured separately.
type measurement struct {
	name, aim string
	run       func(ctx context.Context) (string, error)
}

func (b *bench) measurements() []measurement {
	return []measurement{
		{"idle_queries", "3 or fewer", b.idleQueries},
		{
			"cost_keep", costAim, b.costOfOurs(forwarder.Config{
				Retention: time.Millisecond, CleanInterval: 10 * time.Millisecond,
			}),
		},
		{"cost_delete", costAim, b.costOfOurs(forwarder.Config{Retention: -1})},
		{"cost_watermill", costAim, b.costOfWatermill},
		{"cost_river", costAim, b.costOfRiver},
		{"cost_clean", "WAL is the same on every machine; -scale 50 is 5,000,000 messages", b.cleanup},
		{"cost_observers", "what a user of each pays for a message", b.observed},
	}
}

// idleQueries counts the queries of an idle forwarder.
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

// queryCount is a pgx tracer that counts queries, including each query of a batch.
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
