package kafka

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
)

// TestMovingIsOneLine: our constructor accepts the arguments of watermill-kafka's.
func TestMovingIsOneLine(t *testing.T) {
	cfg := wmkafka.SubscriberConfig{
		Brokers: []string{"127.0.0.1:1"}, Unmarshaler: wmkafka.DefaultMarshaler{}, ConsumerGroup: "group",
		OverwriteSaramaConfig: wmkafka.DefaultSaramaSubscriberConfig(),
	}
	theirs, err := wmkafka.NewSubscriber(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := NewSubscriber(SubscriberConfig{SubscriberConfig: cfg}, nil)
	if err != nil {
		t.Fatal(err)
	}
	type subscriber interface {
		message.Subscriber
		message.SubscribeInitializer
	}
	for _, s := range []subscriber{theirs, ours} {
		for range 2 {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		if _, err := s.Subscribe(t.Context(), "topic"); err == nil {
			t.Error("subscribed after Close")
		}
	}
}

func TestConfigNamesTheField(t *testing.T) {
	for field, spoil := range map[string]func(*SubscriberConfig){
		"Brokers is empty":    func(c *SubscriberConfig) { c.Brokers = nil },
		"Brokers: address 2":  func(c *SubscriberConfig) { c.Brokers = []string{"a:1", "user:canary@b:1"} },
		"Unmarshaler":         func(c *SubscriberConfig) { c.Unmarshaler = nil },
		"ConsumerGroup":       func(c *SubscriberConfig) { c.ConsumerGroup = "" },
		"Concurrency is -1":   func(c *SubscriberConfig) { c.Concurrency = -1 },
		"MaxAhead is -1":      func(c *SubscriberConfig) { c.MaxAhead = -1 },
		"MaxBytes is -1":      func(c *SubscriberConfig) { c.MaxBytes = -1 },
		"RevokeTimeout is -1": func(c *SubscriberConfig) { c.RevokeTimeout = -1 },
		"CloseTimeout is -1":  func(c *SubscriberConfig) { c.CloseTimeout = -1 },
		"Backoff.Max":         func(c *SubscriberConfig) { c.Backoff = outbox.Backoff{Initial: 2, Max: 1} },
		"Backoff.Func": func(c *SubscriberConfig) {
			c.Backoff.Func = func(int) time.Duration { panic("no") }
		},
		"OverwriteSaramaConfig: kafka:": func(c *SubscriberConfig) { c.OverwriteSaramaConfig = &sarama.Config{} },
	} {
		cfg := validConfig()
		spoil(&cfg)
		_, err := NewSubscriber(cfg, nil)
		if err == nil || !strings.Contains(err.Error(), "SubscriberConfig."+field) {
			t.Errorf("%s: %v", field, err)
		}
		if err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("a password is shown: %v", err)
		}
	}
	cfg := validConfig()
	cfg.ConsumerGroup, cfg.Concurrency = "", -1
	if _, err := NewSubscriber(cfg, nil); err == nil || strings.Count(err.Error(), "SubscriberConfig.") != 2 {
		t.Errorf("two invalid fields: %v", err)
	}
}

func TestRevokeTimeoutBelowRebalanceTimeout(t *testing.T) {
	cfg := validConfig()
	cfg.OverwriteSaramaConfig = DefaultSaramaSubscriberConfig()
	cfg.OverwriteSaramaConfig.Consumer.Group.Rebalance.Timeout = 10 * time.Second
	s, err := NewSubscriber(cfg, nil)
	if err != nil || s.cfg.RevokeTimeout != 5*time.Second {
		t.Errorf("the default follows the rebalance timeout: %v", err)
	}
	cfg.RevokeTimeout = 10 * time.Second
	_, err = NewSubscriber(cfg, nil)
	if err == nil || !strings.Contains(err.Error(), "SubscriberConfig.RevokeTimeout is 10s") {
		t.Errorf("RevokeTimeout may equal the rebalance timeout: %v", err)
	}
}

func TestDefaultSettings(t *testing.T) {
	s, err := NewSubscriber(validConfig(), nil)
	if err != nil {
		t.Fatal(err)
	}
	c := s.cfg.OverwriteSaramaConfig
	if c.Consumer.Offsets.Initial != sarama.OffsetOldest || c.Consumer.IsolationLevel != sarama.ReadCommitted {
		t.Error("a new group would lose messages, or handle aborted ones")
	}
	if s.cfg.Concurrency != 16 || s.cfg.MaxAhead != 10_000 || s.cfg.MaxBytes != 64<<20 ||
		s.cfg.RevokeTimeout != 30*time.Second || s.cfg.CloseTimeout != 5*time.Second {
		t.Errorf("defaults %+v", s.cfg)
	}
}

// Two members of a group with the same instance id fence each other.
func TestInstanceIDHasTheTopic(t *testing.T) {
	cfg := validConfig()
	cfg.OverwriteSaramaConfig = DefaultSaramaSubscriberConfig()
	cfg.OverwriteSaramaConfig.Version = sarama.V2_8_0_0
	cfg.OverwriteSaramaConfig.Consumer.Group.InstanceId = "pod-1"
	s, err := NewSubscriber(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	settings, err := s.cfg.settings("orders")
	if err != nil {
		t.Fatal(err)
	}
	given := cfg.OverwriteSaramaConfig.Consumer.Group.InstanceId
	if id := settings.Consumer.Group.InstanceId; id != "pod-1-orders" || given != "pod-1" {
		t.Errorf("the id is %q, and %q in the given config", id, given)
	}
	_, err = s.Subscribe(t.Context(), strings.Repeat("t", 245))
	if err == nil || !strings.Contains(err.Error(), "InstanceId") {
		t.Errorf("an id that is too long: %v", err)
	}
}

// Two handlers of a topic would share its partitions, each with its own name in the inbox.
func TestATopicIsSubscribedOnce(t *testing.T) {
	s, err := NewSubscriber(validConfig(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	first, err := s.Subscribe(ctx, "topic")
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Subscribe(t.Context(), "topic")
	if err == nil || !strings.Contains(err.Error(), "its own ConsumerGroup") {
		t.Errorf("subscribed twice: %v", err)
	}
	if _, err := s.Subscribe(t.Context(), ""); err == nil {
		t.Error("subscribed to no topic")
	}
	cancel()
	if _, err := s.Subscribe(t.Context(), "topic"); err != nil {
		t.Errorf("the first subscription ended: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, open := <-first; open {
		t.Error("a message from nowhere")
	}
}

// TestUnusedFieldsAreLogged: settings for watermill-kafka that have no effect here are logged.
func TestUnusedFieldsAreLogged(t *testing.T) {
	t.Parallel()
	for _, set := range []bool{false, true} {
		cfg := validConfig()
		if set {
			cfg.NackResendSleep, cfg.ReconnectRetrySleep = time.Second, time.Minute
		}
		logger := watermill.NewCaptureLogger()
		sub, err := NewSubscriber(cfg, logger)
		if err != nil {
			t.Fatal(err)
		}
		_ = sub.Close()
		var fields []any
		for _, line := range logger.Captured()[watermill.InfoLogLevel] {
			if f, ok := line.Fields["fields"]; ok {
				fields = append(fields, f)
			}
		}
		want := "[]"
		if set {
			want = "[[NackResendSleep ReconnectRetrySleep]]"
		}
		if got := fmt.Sprint(fields); got != want {
			t.Errorf("set %t: reported %s, want %s", set, got, want)
		}
	}
}
