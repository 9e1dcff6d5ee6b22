package forwarder

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
)

func TestConfigNamesEveryBadField(t *testing.T) {
	cfg := Config{
		Concurrency: -1, ReadAhead: -2, PollInterval: -1, LeaseTTL: time.Millisecond, MaxAttempts: -5, Retention: -2,
		Topics: []string{"a", ""}, Routes: map[string]message.Publisher{"b": nil},
		Backoff: outbox.Backoff{Initial: 2, Max: 1},
	}
	cfg.setDefaults()
	err := cfg.validate("Config")
	for _, field := range []string{
		"Concurrency", "ReadAhead", "PollInterval", "LeaseTTL", "MaxAttempts", "Retention", "Topics", "Routes", "Backoff",
	} {
		if err == nil || !strings.Contains(err.Error(), "Config."+field) {
			t.Errorf("%s is not named in: %v", field, err)
		}
	}
	var zero Config
	zero.setDefaults()
	if err := zero.validate("Config"); err != nil {
		t.Errorf("the zero value is refused: %v", err)
	}
	off := Config{
		PublishTimeout: -1, MinDeadAge: -1, Retention: -1, InboxRetention: -1, MaxAttempts: -1,
		Backoff: outbox.Backoff{Initial: -1}, OutageBackoff: outbox.Backoff{Initial: -1},
	}
	off.setDefaults()
	if err := off.validate("Config"); err != nil {
		t.Errorf("-1 is refused: %v", err)
	}
}

func TestNewRefusesWhatIsMissing(t *testing.T) {
	if _, err := New(nil, nil, Config{}, nil); !errors.Is(err, errNoPublisher) {
		t.Errorf("nil publisher: %v", err)
	}
	if _, err := NewSubscriber(nil, SubscriberConfig{}, nil); !errors.Is(err, outbox.ErrNoDB) {
		t.Errorf("nil handle: %v", err)
	}
	_, err := NewSubscriber(nil, SubscriberConfig{
		AckTimeout: -2, Forwarder: Config{LeaseTTL: 1, Retention: -2, Backoff: outbox.Backoff{Initial: 2, Max: 1}},
	}, nil)
	for _, field := range []string{"AckTimeout", "Forwarder.LeaseTTL", "Forwarder.Retention", "Forwarder.Backoff"} {
		if err == nil || !strings.Contains(err.Error(), "SubscriberConfig."+field) {
			t.Errorf("%s is not named in: %v", field, err)
		}
	}
}

// TestASubscriberDoesNotPublish: fields for publishing are errors, not ignored.
func TestASubscriberDoesNotPublish(t *testing.T) {
	_, err := NewSubscriber(nil, SubscriberConfig{Forwarder: Config{
		Topics: []string{"orders"}, Scope: "here", Routes: map[string]message.Publisher{}, PublishTimeout: time.Second,
		Classify: func(error) Verdict { return Retry }, OutageBackoff: outbox.Backoff{Max: time.Second},
	}}, nil)
	for _, field := range []string{"Topics", "Scope", "Routes", "PublishTimeout", "Classify", "OutageBackoff"} {
		if err == nil || !strings.Contains(err.Error(), "SubscriberConfig.Forwarder."+field) {
			t.Errorf("%s is not named in: %v", field, err)
		}
	}
}

// TestASubscriberLeavesTheInboxAlone: otherwise its default would shorten the forwarders' InboxRetention.
func TestASubscriberLeavesTheInboxAlone(t *testing.T) {
	for set, want := range map[time.Duration]time.Duration{0: -1, time.Hour: time.Hour} {
		cfg, err := SubscriberConfig{Forwarder: Config{InboxRetention: set}}.config()
		if err != nil || cfg.InboxRetention != want {
			t.Errorf("%s: %s, %v", set, cfg.InboxRetention, err)
		}
	}
}

func TestScopeFollowsTopics(t *testing.T) {
	cfg := Config{Topics: []string{"b", "a", "b"}}
	cfg.setDefaults()
	if cfg.Scope != `["a","b"]` || len(cfg.Topics) != 2 {
		t.Errorf("scope %q of topics %v", cfg.Scope, cfg.Topics)
	}
	one := Config{Topics: []string{"a,b"}}
	if one.setDefaults(); one.Scope == cfg.Scope {
		t.Error("one topic with a comma has the scope of two topics")
	}
}
