package main

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverJob has the same data as one of our messages.
type riverJob struct {
	Index   int    `json:"index"`
	Key     string `json:"key"`
	Payload string `json:"payload"`
}

func (riverJob) Kind() string { return "bench" }

func riverJobOf(i int) riverJob { return riverJob{Index: i, Key: keyOf(i), Payload: string(payload)} }

// riverWorker passes a job to the same sink as the other sides.
type riverWorker struct {
	river.WorkerDefaults[riverJob]
	to *sink
}

func (w *riverWorker) Work(_ context.Context, job *river.Job[riverJob]) error {
	return w.to.Publish(topic, message.NewMessage(uuidOf(job.Args.Index), nil))
}

func migrateRiver(ctx context.Context, pool *pgxpool.Pool) error {
	m, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet})
	if err != nil {
		return err
	}
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// riverWriter only inserts. Its fetch cooldown is also the shortest time between two of its notifications; by default
// most inserts at 50 per second would notify no client.
func riverWriter(pool *pgxpool.Pool) (*river.Client[pgx.Tx], error) {
	return river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet, FetchCooldown: time.Millisecond})
}

// startRiver runs a client at its fastest: it is notified of inserts, fetches again after a millisecond, and also polls
// every millisecond.
func startRiver(ctx context.Context, pool *pgxpool.Pool, s *sink) (stop func() error, err error) {
	workers := river.NewWorkers()
	if err := river.AddWorkerSafely(workers, &riverWorker{to: s}); err != nil {
		return nil, err
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Logger:            quiet,
		FetchCooldown:     time.Millisecond,
		FetchPollInterval: time.Millisecond,
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 100}},
		Workers:           workers,
	})
	if err != nil {
		return nil, err
	}
	if err := client.Start(ctx); err != nil {
		return nil, err
	}
	return func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		return client.Stop(ctx)
	}, nil
}

func (b *bench) riverInProcess(ctx context.Context) (measured, error) {
	d, err := b.newDatabase(ctx)
	if err != nil {
		return measured{}, err
	}
	defer d.drop()
	if err := migrateRiver(ctx, d.pool); err != nil {
		return measured{}, err
	}
	s := newSink(latencyMessages)
	came := make([]time.Time, latencyMessages)
	s.stamp = func(i int) { came[i] = time.Now() }
	stop, err := startRiver(ctx, d.pool, s)
	if err != nil {
		return measured{}, err
	}
	committed, err := riverTrickle(ctx, d)
	if err == nil {
		err = s.wait(ctx)
	}
	if stopErr := stop(); err == nil {
		err = stopErr
	}
	if err != nil {
		return measured{}, err
	}
	return latency(latencies(committed, came)), nil
}

// riverTrickle inserts one job per tick, each in its own transaction, and returns when each was committed.
func riverTrickle(ctx context.Context, d *database) ([]time.Time, error) {
	client, err := riverWriter(d.pool)
	if err != nil {
		return nil, err
	}
	committed := make([]time.Time, latencyMessages)
	ticker := time.NewTicker(latencyTick)
	defer ticker.Stop()
	for i := range committed {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		err := pgx.BeginFunc(ctx, d.pool, func(tx pgx.Tx) error {
			_, err := client.InsertTx(ctx, tx, riverJobOf(i), nil)
			return err
		})
		if err != nil {
			return nil, err
		}
		committed[i] = time.Now()
	}
	return committed, nil
}
