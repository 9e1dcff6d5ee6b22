package queue

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
)

// unreachable returns a store whose database never responds.
func unreachable(t *testing.T) *Store {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), "postgres://127.0.0.1:1/none?connect_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewStore(db, StoreConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestBadConfiguration(t *testing.T) {
	s := unreachable(t)
	handle := func(context.Context, *Message) error { return nil }
	good := map[string]Handler{"orders": {Handle: handle}}
	dispatcher := func(s *Store, cfg DispatcherConfig) error {
		if cfg.Handlers == nil {
			cfg.Handlers = good
		}
		_, err := NewDispatcher(s, cfg, nil)
		return err
	}
	subscriber := func(s *Store, cfg SubscriberConfig) error { _, err := NewSubscriber(s, cfg, nil); return err }
	webhook := func(s *Store, cfg WebhookConfig) error { _, err := NewWebhook(s, cfg, nil); return err }
	ingest := func(s *Store, cfg IngestConfig) error { _, err := Ingest(s, cfg); return err }
	verify := func(*http.Request, []byte) error { return nil }
	item := func(*http.Request, []byte) (Item, error) { return Item{}, nil }
	publisher := func(cfg PublisherConfig) error { _, err := NewPublisher(s, cfg); return err }
	for want, err := range map[string]error{
		"PublisherConfig.WithoutTx is 2": publisher(PublisherConfig{WithoutTx: outbox.PassThrough}),
		"DispatcherConfig.Handlers is empty": dispatcher(s,
			DispatcherConfig{Handlers: map[string]Handler{}}),
		`DispatcherConfig.Handlers["x"].Handle is required`: dispatcher(s,
			DispatcherConfig{Handlers: map[string]Handler{"x": {}}}),
		"WebhookConfig.ReadTimeout is": webhook(s, WebhookConfig{
			ReadTimeout: -2, Verify: verify, Item: item,
		}),
		"DispatcherConfig.DefaultHandler.Handle is required": dispatcher(s, DispatcherConfig{
			DefaultHandler: Handler{Detached: true},
		}),
		"DispatcherConfig.DefaultHandler.Concurrency is 3": dispatcher(s, DispatcherConfig{
			DefaultHandler: Handler{Handle: handle, Concurrency: 3},
		}),
		`DispatcherConfig.Handlers[""]: no message`: dispatcher(s, DispatcherConfig{
			Handlers: map[string]Handler{"": {Handle: handle}},
		}),
		`DispatcherConfig.Handlers["x"].Concurrency is -1`: dispatcher(s, DispatcherConfig{
			Handlers: map[string]Handler{"x": {Handle: handle, Concurrency: -1}},
		}),
		`DispatcherConfig.Handlers["x"].Timeout is`: dispatcher(s, DispatcherConfig{
			Handlers: map[string]Handler{"x": {Handle: handle, Timeout: -2}},
		}),
		"DispatcherConfig.Concurrency is -1":  dispatcher(s, DispatcherConfig{Concurrency: -1}),
		"DispatcherConfig.BatchSize is -1":    dispatcher(s, DispatcherConfig{BatchSize: -1}),
		"DispatcherConfig.BatchSize is 10001": dispatcher(s, DispatcherConfig{BatchSize: 10001}),
		"DispatcherConfig.LeaseTTL is 999ms": dispatcher(s,
			DispatcherConfig{LeaseTTL: 999 * time.Millisecond}),
		"DispatcherConfig.PollInterval is -1ns":                dispatcher(s, DispatcherConfig{PollInterval: -1}),
		"DispatcherConfig.CloseTimeout is -1ns":                dispatcher(s, DispatcherConfig{CloseTimeout: -1}),
		"DispatcherConfig.CleanInterval is -2ns":               dispatcher(s, DispatcherConfig{CleanInterval: -2}),
		"SubscriberConfig.Concurrency is -1":                   subscriber(s, SubscriberConfig{Concurrency: -1}),
		"SubscriberConfig.LeaseTTL is 1ms":                     subscriber(s, SubscriberConfig{LeaseTTL: time.Millisecond}),
		"SubscriberConfig.AckTimeout is -2ns":                  subscriber(s, SubscriberConfig{AckTimeout: -2}),
		"SubscriberConfig.PollInterval is -1ns":                subscriber(s, SubscriberConfig{PollInterval: -1}),
		"WebhookConfig.Verify is required: without it anybody": webhook(s, WebhookConfig{Item: item}),
		"WebhookConfig.Item is required: it makes the ID":      webhook(s, WebhookConfig{Verify: verify}),
		"WebhookConfig.MaxBytes is -1": webhook(s, WebhookConfig{
			MaxBytes: -1, Verify: verify, Item: item,
		}),
		"IngestConfig.Source is required: together with the UUID": ingest(s, IngestConfig{}),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
	for name, err := range map[string]error{
		"NewDispatcher": dispatcher(nil, DispatcherConfig{}), "NewSubscriber": subscriber(nil, SubscriberConfig{}),
		"NewWebhook": webhook(nil, WebhookConfig{Verify: verify, Item: item}),
		"Ingest":     ingest(nil, IngestConfig{Source: "s"}),
	} {
		if !errors.Is(err, outbox.ErrNoDB) {
			t.Errorf("%s without a store: %v", name, err)
		}
	}
	if err := webhook(nil, WebhookConfig{Verify: verify, Item: item, Store: func(*http.Request) (*Store, error) {
		return s, nil
	}}); err != nil {
		t.Error(err)
	}
}
