package outbox

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// noDatabase returns a handle that is never connected.
func noDatabase(t *testing.T) *DB {
	t.Helper()
	db, err := sql.Open("pgx", "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return handleOf(t, db, DBConfig{})
}

type sink struct{ topics []string }

func (s *sink) Publish(topic string, _ ...*message.Message) error {
	s.topics = append(s.topics, topic)
	return nil
}

func (s *sink) Close() error { return nil }

func TestConstructorsNameWhatIsBad(t *testing.T) {
	for name, fn := range map[string]func() error{
		"FromPgx":           func() error { _, err := FromPgx(nil, DBConfig{}, nil); return err },
		"FromSQL":           func() error { _, err := FromSQL(nil, DBConfig{}, nil); return err },
		"NewPublisher":      func() error { _, err := NewPublisher(nil, PublisherConfig{}, nil); return err },
		"NewPublisher zero": func() error { _, err := NewPublisher(&DB{}, PublisherConfig{}, nil); return err },
		"Decorator":         func() error { _, err := Decorator(nil, PublisherConfig{}, nil); return err },
		"InTx":              func() error { return InTx(t.Context(), nil, func(context.Context) error { return nil }) },
		"InTx zero": func() error {
			return InTx(t.Context(), &DB{}, func(context.Context) error { return nil })
		},
	} {
		if err := fn(); !errors.Is(err, ErrNoDB) {
			t.Errorf("%s of nothing: %v", name, err)
		}
	}
	(*DB)(nil).Wake()
	pool := sql.OpenDB(&fakeServer{})
	if _, err := FromSQL(pool, DBConfig{Tables: Tables{Inbox: "a b"}}, nil); !errors.Is(err, sqltext.ErrBadName) ||
		!strings.Contains(err.Error(), "DBConfig.Tables") {
		t.Errorf("bad name: %v", err)
	}
	for field, cfg := range map[string]PublisherConfig{
		"WithoutTx is PassThrough": {WithoutTx: PassThrough},
		"WithoutTx is 3":           {WithoutTx: 3},
		"MaxPayloadBytes":          {MaxPayloadBytes: -1},
	} {
		if _, err := NewPublisher(noDatabase(t), cfg, nil); err == nil ||
			!strings.Contains(err.Error(), "PublisherConfig."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := NewPublisher(noDatabase(t), PublisherConfig{}, nil); err != nil {
		t.Errorf("zero value: %v", err)
	}
	decorate, err := Decorator(noDatabase(t), PublisherConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := decorate(nil); err == nil {
		t.Error("a nil publisher is decorated")
	}
}

// TestDecoratorServesSeveralPublishers uses one decorator twice, as a Router does.
func TestDecoratorServesSeveralPublishers(t *testing.T) {
	a, b := &sink{}, &sink{}
	decorate, err := Decorator(noDatabase(t), PublisherConfig{WithoutTx: PassThrough}, nil)
	if err != nil {
		t.Fatal(err)
	}
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
			"Capture":        (*core.Publisher)(pub).Capture(context.Background(), c.topic, c.msgs...),
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
		if err := publish(PublisherConfig{}, change); !errors.Is(err, ErrInvalidMessage) ||
			!strings.Contains(err.Error(), "aggregate") {
			t.Errorf("%s: %v", name, err)
		}
		keyed := func(m *message.Message) { change(m); SetKey(m, "") }
		if err := publish(PublisherConfig{}, keyed); !errors.Is(err, ErrNoTx) {
			t.Errorf("%s, with a key: %v", name, err)
		}
		byFunc := PublisherConfig{Key: func(string, *message.Message) (string, error) { return "", nil }}
		if err := publish(byFunc, change); !errors.Is(err, ErrNoTx) {
			t.Errorf("%s, with a Key: %v", name, err)
		}
	}
}

func TestErrorsOfKeyRefuseTheMessage(t *testing.T) {
	failed := errors.New("no customer")
	pub, err := NewPublisher(noDatabase(t), PublisherConfig{
		Key: func(string, *message.Message) (string, error) { return "", failed },
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := pub.Publish("topic", message.NewMessage("id", nil)); !errors.Is(err, failed) ||
		!strings.Contains(err.Error(), `"id"`) {
		t.Errorf("got %v", err)
	}
}

// TestSetAggregateReplacesTheKey: a copy of a consumed message concerns another aggregate, and gets its key.
func TestSetAggregateReplacesTheKey(t *testing.T) {
	t.Parallel()
	consumed := message.NewMessage("u", nil)
	SetKey(consumed, "order/1")
	copied := consumed.Copy()
	SetAggregate(copied, "invoice", "9")
	if key, set := copied.Metadata[MetadataKey]; set {
		t.Errorf("the key is still %q", key)
	}
	if consumed.Metadata[MetadataKey] != "order/1" {
		t.Error("the message that was copied lost its key")
	}
}

// passedOn records the messages that a decorated publisher receives.
type passedOn struct{ got []*message.Message }

func (p *passedOn) Publish(_ string, msgs ...*message.Message) error {
	p.got = append(p.got, msgs...)
	return nil
}

func (p *passedOn) Close() error { return nil }

// TestPassThroughKeepsTheKey: a message that bypasses the outbox has the key that the outbox would have stored, and is
// not delayed, because nothing would wait for its time.
func TestPassThroughKeepsTheKey(t *testing.T) {
	t.Parallel()
	decorate, err := Decorator(noDatabase(t), PublisherConfig{
		WithoutTx: PassThrough,
		Key:       func(string, *message.Message) (string, error) { return "tenant", nil },
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	broker := &passedOn{}
	pub, err := decorate(broker)
	if err != nil {
		t.Fatal(err)
	}
	own := message.NewMessage("own", nil)
	SetKey(own, "k")
	if err := pub.Publish("orders", message.NewMessage("none", nil), own); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"tenant", "k"} {
		if key := broker.got[i].Metadata[MetadataKey]; key != want {
			t.Errorf("message %s left with the key %q, not %q", broker.got[i].UUID, key, want)
		}
	}
	late := message.NewMessage("late", nil)
	SetDelay(late, time.Hour)
	if err := pub.Publish("orders", late); !errors.Is(err, ErrInvalidMessage) || len(broker.got) != 2 {
		t.Errorf("a delayed message: %v, %d passed on", err, len(broker.got))
	}
	SetDueAt(late, time.Now().Add(-time.Hour)) // a copy of a delayed message
	if err := pub.Publish("orders", late); err != nil {
		t.Errorf("a time that has passed: %v", err)
	}
}
