package nats

import (
	"errors"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	outbox "github.com/millrace-go/watermill-outbox"
)

func TestConfigNamesTheField(t *testing.T) {
	for field, spoil := range map[string]func(*SubscriberConfig){
		"URL: server 2":          func(c *SubscriberConfig) { c.URL = "nats://a:1,nats://user:can/ary@b:1" },
		"Consumer is empty":      func(c *SubscriberConfig) { c.Consumer = "" },
		"Consumer is":            func(c *SubscriberConfig) { c.Consumer = "a.b" },
		"Concurrency is -1":      func(c *SubscriberConfig) { c.Concurrency = -1 },
		"MaxAhead is -1":         func(c *SubscriberConfig) { c.MaxAhead = -1 },
		"MaxBytes is -1":         func(c *SubscriberConfig) { c.MaxBytes = -1 },
		"AckWait is 1s":          func(c *SubscriberConfig) { c.AckWait = time.Second },
		"CloseTimeout is -1":     func(c *SubscriberConfig) { c.CloseTimeout = -1 },
		"Backoff.Max":            func(c *SubscriberConfig) { c.Backoff = outbox.Backoff{Initial: 2, Max: 1} },
		"Options: MaxReconnects": func(c *SubscriberConfig) { c.Options = []natsgo.Option{natsgo.MaxReconnects(3)} },
		"Options: ReconnectBuf":  func(c *SubscriberConfig) { c.Options = []natsgo.Option{natsgo.ReconnectBufSize(100)} },
		"Options: open": func(c *SubscriberConfig) {
			c.Options = []natsgo.Option{natsgo.RootCAs("/does/not/exist")}
		},
	} {
		cfg := SubscriberConfig{Consumer: "booking"}
		spoil(&cfg)
		_, err := NewSubscriber(cfg, nil)
		if err == nil || !strings.Contains(err.Error(), "SubscriberConfig."+field) && !strings.Contains(field, "open") {
			t.Errorf("%s: %v", field, err)
		}
		if err != nil && (strings.Contains(err.Error(), "ary@") || strings.Contains(err.Error(), "can/")) {
			t.Errorf("a password is shown: %v", err)
		}
	}
	_, err := NewSubscriber(SubscriberConfig{Concurrency: -1}, nil)
	if err == nil || strings.Count(err.Error(), "nats: SubscriberConfig.") != 2 {
		t.Errorf("two invalid fields: %v", err)
	}
}

func TestDefaults(t *testing.T) {
	s, err := NewSubscriber(SubscriberConfig{Consumer: "booking"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := s.cfg
	if c.Concurrency != 16 || c.MaxAhead != 1000 || c.MaxBytes != 64<<20 || c.AckWait != 15*time.Second ||
		c.CloseTimeout != 5*time.Second || c.URL != natsgo.DefaultURL {
		t.Errorf("defaults %+v", c)
	}
	if c.pinnedTTL() < c.AckWait+2*c.pullWait() {
		t.Error("a standby takes over before the owner's messages are redelivered")
	}
	msg := natsgo.NewMsg("orders")
	msg.Header.Set("outbox_key", "k")
	if key := c.Key(msg); string(key) != "k" {
		t.Errorf("the key is %q", key)
	}
}

// TestUnmarshalReadsWhatThePublisherWrites: keys that cannot be header names are restored, commands are not.
func TestUnmarshalReadsWhatThePublisherWrites(t *testing.T) {
	msg := natsgo.NewMsg("orders")
	msg.Header["_watermill_message_uuid"] = []string{"u"}
	msg.Header["%customer+name"] = []string{"Ann"}
	msg.Header["outbox_headers"] = []string{`{"Nats-Rollup":"all"}`}
	got, err := Unmarshaler{}.Unmarshal(msg)
	if err != nil {
		t.Fatal(err)
	}
	if got.UUID != "u" || got.Metadata.Get("customer name") != "Ann" || len(got.Metadata) != 1 {
		t.Errorf("%q %v", got.UUID, got.Metadata)
	}
}

func TestSubscribeAndClose(t *testing.T) {
	s, err := NewSubscriber(SubscriberConfig{Consumer: "booking", URL: "nats://127.0.0.1:1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Subscribe(t.Context(), ""); err == nil {
		t.Error("subscribed to no topic")
	}
	messages, err := s.Subscribe(t.Context(), "orders")
	if err != nil {
		t.Fatalf("without a server: %v", err)
	}
	if _, err := s.Subscribe(t.Context(), "orders"); err == nil ||
		!strings.Contains(err.Error(), "already has a subscription") {
		t.Errorf("subscribed twice: %v", err)
	}
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, open := <-messages; open {
		t.Error("a message from nowhere")
	}
	if _, err := s.Subscribe(t.Context(), "orders"); !errors.Is(err, outbox.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestAConsumerOfOthersIsRefused: it would lose messages or their order.
func TestAConsumerOfOthersIsRefused(t *testing.T) {
	want := jetstream.ConsumerConfig{
		FilterSubject: "a", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: -1,
		PriorityPolicy: jetstream.PriorityPolicyPinned, PriorityGroups: []string{group},
	}
	if err := usable(want, want); err != nil {
		t.Error(err)
	}
	for what, spoil := range map[string]func(*jetstream.ConsumerConfig){
		"filter":         func(c *jetstream.ConsumerConfig) { c.FilterSubject = "b" },
		"AckPolicy":      func(c *jetstream.ConsumerConfig) { c.AckPolicy = jetstream.AckAllPolicy },
		"PriorityPolicy": func(c *jetstream.ConsumerConfig) { c.PriorityPolicy = jetstream.PriorityPolicyNone },
		"with the group": func(c *jetstream.ConsumerConfig) { c.PriorityGroups = []string{"x"} },
		"MaxDeliver":     func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 5 },
	} {
		have := want
		spoil(&have)
		if err := usable(have, want); !errors.Is(err, errOtherConsumer) || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
