package outbox

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/schema"
)

// noDatabase is a handle that is never connected.
func noDatabase(t *testing.T) *DB {
	t.Helper()
	db, err := sql.Open("pgx", "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return FromSQL(db)
}

type sink struct{ topics []string }

func (s *sink) Publish(topic string, _ ...*message.Message) error {
	s.topics = append(s.topics, topic)
	return nil
}

func (s *sink) Close() error { return nil }

func TestNewPublisherNamesTheBadField(t *testing.T) {
	for _, db := range []*DB{nil, {}, FromPgx(nil), FromSQL(nil)} {
		if _, err := NewPublisher(db, PublisherConfig{}, nil); !errors.Is(err, ErrNoDB) {
			t.Errorf("nil database: %v", err)
		}
		if _, err := Decorator(db, PublisherConfig{}, nil)(&sink{}); !errors.Is(err, ErrNoDB) {
			t.Errorf("nil database: %v", err)
		}
	}
	for field, cfg := range map[string]PublisherConfig{
		"Tables":          {Tables: schema.Names{Inbox: "a b"}},
		"Publisher":       {WithoutTx: PassThrough},
		"WithoutTx":       {WithoutTx: 3},
		"MaxPayloadBytes": {MaxPayloadBytes: -1},
	} {
		if _, err := NewPublisher(noDatabase(t), cfg, nil); err == nil || !strings.Contains(err.Error(), "PublisherConfig."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := NewPublisher(noDatabase(t), PublisherConfig{}, nil); err != nil {
		t.Errorf("zero value: %v", err)
	}
}

func TestDecoratorPassesThrough(t *testing.T) {
	decorated, configured := &sink{}, &sink{}
	for want, cfg := range map[*sink]PublisherConfig{
		decorated:  {WithoutTx: PassThrough},
		configured: {WithoutTx: PassThrough, Publisher: configured},
	} {
		pub, err := Decorator(noDatabase(t), cfg, nil)(decorated)
		if err != nil {
			t.Fatal(err)
		}
		want.topics = nil
		if err := pub.Publish("orders", message.NewMessage("id", nil)); err != nil || len(want.topics) != 1 {
			t.Errorf("published to %v: %v", want.topics, err)
		}
	}
}

// TestDecoratorServesSeveralPublishers uses one decorator twice, as a Router does.
func TestDecoratorServesSeveralPublishers(t *testing.T) {
	a, b := &sink{}, &sink{}
	decorate := Decorator(noDatabase(t), PublisherConfig{WithoutTx: PassThrough}, nil)
	for _, s := range []*sink{a, b} {
		pub, err := decorate(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := pub.Publish("orders", message.NewMessage("id", nil)); err != nil {
			t.Fatal(err)
		}
	}
	if len(a.topics) != 1 || len(b.topics) != 1 {
		t.Errorf("%v, %v", a.topics, b.topics)
	}
}

func TestPublishChecksBeforeItLooksForATransaction(t *testing.T) {
	pub, err := NewPublisher(noDatabase(t), PublisherConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	good := message.NewMessage("id", nil)
	for name, c := range map[string]struct {
		topic string
		msgs  []*message.Message
		want  error
	}{
		"no transaction": {"orders", []*message.Message{good}, ErrNoTx},
		"nothing":        {"orders", nil, nil},
		"empty topic":    {"", []*message.Message{good}, ErrInvalidMessage},
		"no UUID":        {"orders", []*message.Message{good, message.NewMessage("", nil)}, ErrInvalidMessage},
		"nil message":    {"orders", []*message.Message{nil}, ErrInvalidMessage},
	} {
		for how, err := range map[string]error{
			"Publish":        pub.Publish(c.topic, c.msgs...),
			"PublishContext": pub.PublishContext(context.Background(), c.topic, c.msgs...),
			"Capture":        pub.Capture(context.Background(), c.topic, c.msgs...),
		} {
			if !errors.Is(err, c.want) || (c.want == nil && err != nil) {
				t.Errorf("%s: %s: %v", name, how, err)
			}
		}
	}
}

func TestHalfAnAggregateIsRefused(t *testing.T) {
	publish := func(cfg PublisherConfig, change func(*message.Message)) error {
		pub, err := NewPublisher(noDatabase(t), cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		msg := message.NewMessage("id", nil)
		change(msg)
		return pub.Publish("topic", msg)
	}
	for name, change := range map[string]func(*message.Message){
		"no id":   func(m *message.Message) { m.Metadata.Set(MetadataAggregateType, "order") },
		"no type": func(m *message.Message) { SetAggregate(m, "", "7") },
	} {
		if err := publish(PublisherConfig{}, change); !errors.Is(err, ErrInvalidMessage) || !strings.Contains(err.Error(), "aggregate") {
			t.Errorf("%s: %v", name, err)
		}
		keyed := func(m *message.Message) { change(m); SetKey(m, "") }
		if err := publish(PublisherConfig{}, keyed); !errors.Is(err, ErrNoTx) {
			t.Errorf("%s, with a key: %v", name, err)
		}
		byFunc := PublisherConfig{KeyFunc: func(string, *message.Message) string { return "" }}
		if err := publish(byFunc, change); !errors.Is(err, ErrNoTx) {
			t.Errorf("%s, with a KeyFunc: %v", name, err)
		}
	}
}

func TestAggregateKey(t *testing.T) {
	for want, set := range map[string]func(*message.Message){
		"":        func(*message.Message) {},
		"order/7": func(m *message.Message) { SetAggregate(m, "order", "7") },
	} {
		msg := message.NewMessage("id", nil)
		set(msg)
		if got := AggregateKey("topic", msg); got != want {
			t.Errorf("%q, not %q", got, want)
		}
	}
	half := message.NewMessage("id", nil)
	SetAggregate(half, "", "7")
	if got := AggregateKey("topic", half); got != "" {
		t.Errorf("half of the convention gives %q", got)
	}
}

func TestNilHandles(t *testing.T) {
	ctx := context.Background()
	for _, db := range []*DB{nil, {}} {
		_, execErr := db.Exec(ctx, "select 1")
		_, queryErr := db.Query(ctx, "select 1")
		_, _, dedicatedErr := db.Dedicated(ctx)
		for _, err := range []error{
			db.Check(), execErr, queryErr, dedicatedErr,
			db.Transact(ctx, func(schema.Querier) error { return nil }),
			db.Listen(ctx, "channel", func() {}),
			InTx(ctx, db, func(context.Context) error { return nil }),
		} {
			if !errors.Is(err, ErrNoDB) {
				t.Errorf("%v", err)
			}
		}
	}
}
