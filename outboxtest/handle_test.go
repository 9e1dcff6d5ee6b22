package outboxtest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/outboxtest"
)

// answering is a handler that publishes one message.
func answering(msg *message.Message) ([]*message.Message, error) {
	return message.Messages{message.NewMessage("answer to "+msg.UUID, []byte("answer"))}, nil
}

func failing(*message.Message) ([]*message.Message, error) { return nil, errTest }

// TestHandleNamesWhatARouterWould, and takes the names that are given instead.
func TestHandleNamesWhatARouterWould(t *testing.T) {
	db := outboxtest.NewDB(t)
	named := middleware.StackConfig{Service: "shop"}
	named.Inbox.Consumer, named.Outbox.Topic = "orders", "answers"
	same := middleware.StackConfig{Service: "test"}
	same.Inbox.Consumer, same.Outbox.Topic = "handler", "published"
	msg := message.NewMessage("1", nil)
	for i, step := range []struct {
		cfg   middleware.StackConfig
		topic string // "" = a duplicate
	}{
		{middleware.StackConfig{}, "published"}, {same, ""}, {named, "answers"}, {named, ""},
		{middleware.StackConfig{Service: "shop"}, "published"},
	} {
		got, err := outboxtest.Handle(t, db, answering, msg, step.cfg)
		switch {
		case err != nil || !got.Acked:
			t.Fatal(i, got, err)
		case step.topic == "" && len(got.Published) > 0:
			t.Errorf("%d: another consumer handled it: %v", i, got)
		case step.topic != "" && (len(got.Published) != 1 || got.Published[0].Topic != step.topic):
			t.Errorf("%d: %v, want one message to %s", i, got, step.topic)
		}
	}
	for service, cfg := range map[string]middleware.StackConfig{"test": {}, "shop": named} {
		poison := func(*message.Message) ([]*message.Message, error) { return nil, outbox.Poison(errTest) }
		got, err := outboxtest.Handle(t, db, poison, message.NewMessage("poison of "+service, nil), cfg)
		if err != nil || len(got.Published) != 1 || got.Published[0].Metadata.Get(middleware.MetadataService) != service {
			t.Errorf("the letter of %s: %v %v", service, got, err)
		}
	}
	if all := outboxtest.Drain(t, db); len(all) != 5 {
		t.Errorf("what Handle returns is still there for Drain: %d messages", len(all))
	}
}

// TestHandleWaitsOnlyIfAsked: a failure is nacked at once, unless Outcomes.Backoff says how long it is to wait.
func TestHandleWaitsOnlyIfAsked(t *testing.T) {
	for name, c := range map[string]struct {
		backoff outbox.Backoff
		want    time.Duration
	}{
		"nothing is said": {outbox.Backoff{}, 0},
		"only a limit is": {outbox.Backoff{Max: time.Second}, 0},
		"a first wait":    {outbox.Backoff{Initial: 10 * time.Second}, 10 * time.Second},
		"a function":      {outbox.Backoff{Func: func(int) time.Duration { return 7 * time.Second }}, 7 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				cfg := middleware.StackConfig{}
				cfg.Outcomes.Backoff = c.backoff
				got, err := outboxtest.Handle(t, outboxtest.NewDB(t), failing, message.NewMessage("1", nil), cfg)
				if err == nil || got.Acked || len(got.Published) != 0 {
					t.Error(got, err)
				}
				if took := time.Since(begun); took < c.want*8/10 || took > c.want*12/10 {
					t.Errorf("it took %s, want %s", took, c.want)
				}
			})
		})
	}
}

// TestHandleLetsPanicsThrough, after the transaction was rolled back: the next delivery is a first one.
func TestHandleLetsPanicsThrough(t *testing.T) {
	db := outboxtest.NewDB(t)
	pub := publisher(t, db, outbox.RequireTx)
	msg := message.NewMessage("1", nil)
	said := func() (said any) {
		defer func() { said = recover() }()
		_, err := outboxtest.Handle(t, db, func(msg *message.Message) ([]*message.Message, error) {
			if err := pub.PublishContext(msg.Context(), "topic", message.NewMessage("lost", nil)); err != nil {
				t.Error(err)
			}
			panic("the handler's")
		}, msg, middleware.StackConfig{})
		t.Error("it came back with", err)
		return nil
	}()
	if said != "the handler's" {
		t.Errorf("the panic became %v", said)
	}
	if got, err := outboxtest.Handle(t, db, answering, msg, middleware.StackConfig{}); err != nil ||
		len(got.Published) != 1 {
		t.Error(got, err)
	}
	if all := outboxtest.Drain(t, db); len(all) != 1 {
		t.Errorf("%d messages are there", len(all))
	}
}
