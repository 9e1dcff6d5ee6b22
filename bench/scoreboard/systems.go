package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/queue"
	"github.com/millrace-go/watermill-outbox/schema"
)

const (
	topic      = "events"
	takes      = 5 * time.Millisecond // time to handle a message
	concurrent = 100
	lease      = 10 * time.Second
)

// system is one of the compared systems.
type system struct {
	name    string
	ours    bool
	migrate func(ctx context.Context, pool *pgxpool.Pool) error
	// produce returns a function that commits message i in its own transaction.
	produce func(pool *pgxpool.Pool) (func(ctx context.Context, i int) error, error)
	// work handles messages until ctx ends or something fails.
	work func(ctx context.Context, pool *pgxpool.Pool) error
}

var systems = []system{
	{name: "outbox", ours: true, migrate: migrateOurs, produce: produceOutbox, work: workOutbox},
	{name: "queue", ours: true, migrate: migrateOurs, produce: produceQueue, work: workQueue},
	{name: "river", migrate: migrateRiver, produce: produceRiver, work: workRiver},
}

// handled sleeps for takes and then reports to the parent in a single write, which a killed process has either
// made or not.
func handled(i int) error {
	time.Sleep(takes)
	_, err := os.Stdout.WriteString(strconv.Itoa(i) + "\n")
	return err
}

func migrateOurs(ctx context.Context, pool *pgxpool.Pool) error {
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err == nil {
		_, err = schema.Migrate(ctx, db, schema.MigrateConfig{})
	}
	return err
}

// payload returns 500 bytes that begin with the number.
func payload(i int) []byte { return fmt.Appendf(nil, `{"index":%d,"text":"%0470d"}`, i, 0) }

func indexOf(payload []byte) (int, error) {
	var body struct{ Index int }
	err := json.Unmarshal(payload, &body)
	return body.Index, err
}

func produceOutbox(pool *pgxpool.Pool) (func(context.Context, int) error, error) {
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		return nil, err
	}
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, i int) error {
		msg := message.NewMessage(uuid.NewString(), payload(i))
		outbox.SetKey(msg, fmt.Sprint("key-", i%10_000))
		return outbox.InTx(ctx, db, func(ctx context.Context) error { return pub.PublishContext(ctx, topic, msg) })
	}, nil
}

// counter takes the place of a broker.
type counter struct{}

func (counter) Publish(_ string, messages ...*message.Message) error {
	for _, msg := range messages {
		i, err := indexOf(msg.Payload)
		if err == nil {
			err = handled(i)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (counter) Close() error { return nil }

func workOutbox(ctx context.Context, pool *pgxpool.Pool) error {
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		return err
	}
	f, err := forwarder.New(db, counter{}, forwarder.Config{}, nil)
	if err != nil {
		return err
	}
	return f.Run(ctx)
}

func newStore(pool *pgxpool.Pool) (*queue.Store, error) {
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		return nil, err
	}
	return queue.NewStore(db, queue.StoreConfig{}, nil)
}

func produceQueue(pool *pgxpool.Pool) (func(context.Context, int) error, error) {
	store, err := newStore(pool)
	return func(ctx context.Context, i int) error {
		_, err := store.Enqueue(ctx, queue.Item{
			ID: queue.ID{Source: "scoreboard", MessageID: strconv.Itoa(i)}, Topic: topic, Payload: payload(i),
		})
		return err
	}, err
}

func workQueue(ctx context.Context, pool *pgxpool.Pool) error {
	store, err := newStore(pool)
	if err != nil {
		return err
	}
	handle := func(_ context.Context, msg *queue.Message) error {
		i, err := indexOf(msg.Payload)
		if err == nil {
			err = handled(i)
		}
		return err
	}
	d, err := queue.NewDispatcher(store, queue.DispatcherConfig{
		Handlers:    map[string]queue.Handler{topic: {Handle: handle, Detached: true}},
		Concurrency: concurrent, LeaseTTL: lease,
	}, nil)
	if err != nil {
		return err
	}
	return d.Run(ctx)
}

// job is the job that River stores.
type job struct {
	Index int    `json:"index"`
	Text  string `json:"text"`
}

func (job) Kind() string { return "scoreboard" }

type worker struct{ river.WorkerDefaults[job] }

func (worker) Work(_ context.Context, j *river.Job[job]) error { return handled(j.Args.Index) }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func migrateRiver(ctx context.Context, pool *pgxpool.Pool) error {
	m, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: quiet})
	if err == nil {
		_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	return err
}

func produceRiver(pool *pgxpool.Pool) (func(context.Context, int) error, error) {
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet, FetchCooldown: time.Millisecond})
	text := fmt.Sprintf("%0470d", 0)
	return func(ctx context.Context, i int) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := client.InsertTx(ctx, tx, job{Index: i, Text: text}, nil)
			return err
		})
	}, err
}

func workRiver(ctx context.Context, pool *pgxpool.Pool) error {
	workers := river.NewWorkers()
	if err := river.AddWorkerSafely(workers, worker{}); err != nil {
		return err
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Logger: quiet, FetchCooldown: time.Millisecond, FetchPollInterval: 100 * time.Millisecond,
		JobTimeout: lease / 2, RescueStuckJobsAfter: lease / 2,
		Queues:  map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: concurrent}},
		Workers: workers,
	})
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	<-client.Stopped()
	return ctx.Err()
}
