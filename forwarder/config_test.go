package forwarder

import (
	"errors"
	"reflect"
	"slices"
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
	if _, err := New(nil, nil, Config{}, nil); !errors.Is(err, ErrNoPublisher) {
		t.Errorf("nil publisher: %v", err)
	}
	if _, err := NewSubscriber(nil, SubscriberConfig{}, nil); !errors.Is(err, outbox.ErrNoDB) {
		t.Errorf("nil handle: %v", err)
	}
	_, err := NewSubscriber(nil, SubscriberConfig{
		AckTimeout: -2, LeaseTTL: 1, Retention: -2, Backoff: outbox.Backoff{Initial: 2, Max: 1},
	}, nil)
	for _, field := range []string{"AckTimeout", "LeaseTTL", "Retention", "Backoff"} {
		if err == nil || !strings.Contains(err.Error(), "SubscriberConfig."+field) {
			t.Errorf("%s is not named in: %v", field, err)
		}
	}
}

// TestSubscriberConfigIsWhatASubscriberUses: each of its fields reaches the engine, and it has all of a Forwarder's but
// those that say what is published where, and how.
func TestSubscriberConfigIsWhatASubscriberUses(t *testing.T) {
	forwarders := []string{"Topics", "Scope", "Routes", "PublishTimeout", "Classify", "OutageBackoff"}
	own := []string{"Relay", "AckTimeout"}
	config, subscriber := reflect.TypeFor[Config](), reflect.TypeFor[SubscriberConfig]()
	for i := range config.NumField() {
		field := config.Field(i)
		_, shared := subscriber.FieldByName(field.Name)
		if field.IsExported() && shared == slices.Contains(forwarders, field.Name) {
			t.Errorf("Config.%s: in SubscriberConfig: %t", field.Name, shared)
		}
	}
	for i := range subscriber.NumField() {
		field := subscriber.Field(i)
		if slices.Contains(own, field.Name) {
			continue
		}
		var c SubscriberConfig
		var want any
		switch v := reflect.ValueOf(&c).Elem().Field(i); v.Kind() {
		case reflect.String:
			v.SetString("other")
			want = v.Interface()
		case reflect.Bool:
			v.SetBool(true)
			want = v.Interface()
		case reflect.Struct:
			v.FieldByName("Initial").SetInt(int64(time.Minute))
			want = time.Minute
		default:
			v.SetInt(int64(time.Hour) + 7)
			want = v.Interface()
		}
		cfg, err := c.config()
		if err != nil {
			t.Errorf("%s: %v", field.Name, err)
		}
		got := reflect.ValueOf(cfg).FieldByName(field.Name)
		if got.Kind() == reflect.Struct {
			got = got.FieldByName("Initial")
		}
		if got.Interface() != want {
			t.Errorf("SubscriberConfig.%s: the engine has %v, not %v", field.Name, got, want)
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
