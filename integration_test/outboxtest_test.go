package integration_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/outboxtest"
)

// TestNewPostgresIsOfOneTest: parallel tests on one database each drain their own messages, have their own tables, and
// leave nothing behind.
func TestNewPostgresIsOfOneTest(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newDatabase(t))
	t.Run("at once", func(t *testing.T) {
		for i := range 3 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				db, pool := outboxtest.NewPostgres(t, h.url)
				_, err := pool.Exec(t.Context(), "CREATE TABLE bookings (id text PRIMARY KEY)")
				require.NoError(t, err)
				pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
				require.NoError(t, err)
				own := fmt.Sprint("of ", i)
				require.NoError(t, outbox.InTx(t.Context(), db, func(ctx context.Context) error {
					tx, err := outbox.PgxTx(ctx)
					if err != nil {
						return err
					}
					if _, err := tx.Exec(ctx, "INSERT INTO bookings VALUES ('1')"); err != nil {
						return err
					}
					return pub.PublishContext(ctx, "orders", message.NewMessage(own, nil))
				}))
				drained := outboxtest.Drain(t, db)
				require.Len(t, drained, 1)
				assert.Equal(t, own, drained[0].UUID)
				assert.Empty(t, outboxtest.Drain(t, db))
			})
		}
	})
	assert.Zero(t, h.count(t, "SELECT count(*)::int FROM pg_namespace WHERE nspname LIKE 'outboxtest%'"))
}

var errOfHandler = errors.New("the handler's")

// answers is a handler that publishes one message.
func answers(msg *message.Message) ([]*message.Message, error) {
	return message.Messages{message.NewMessage("answer to "+msg.UUID, []byte("answer"))}, nil
}

// TestHandleNamesWhatARouterWould: names default to the Router's, and explicit names win.
func TestHandleNamesWhatARouterWould(t *testing.T) {
	db := onPgx(t).db
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
		got, err := outboxtest.Handle(t, db, answers, msg, step.cfg)
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
		poison := func(*message.Message) ([]*message.Message, error) { return nil, outbox.Poison(errOfHandler) }
		got, err := outboxtest.Handle(t, db, poison, message.NewMessage("poison of "+service, nil), cfg)
		if err != nil || len(got.Published) != 1 || got.Published[0].Metadata.Get("service_poisoned") != service {
			t.Errorf("the dead letter of %s: %v %v", service, got, err)
		}
	}
	if all := outboxtest.Drain(t, db); len(all) != 5 {
		t.Errorf("Drain returns messages that Handle returned before: %d", len(all))
	}
}

// TestHandleWaitsOnlyIfAsked: a failure is nacked immediately unless ErrorHandler.Backoff sets a wait.
func TestHandleWaitsOnlyIfAsked(t *testing.T) {
	db := onPgx(t).db
	const wait = 2 * time.Second
	for name, backoff := range map[string]outbox.Backoff{
		"nothing is set": {},
		"only a limit":   {Max: time.Hour},
		"a first wait":   {Initial: wait},
		"a function":     {Func: func(int) time.Duration { return wait }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failing := func(*message.Message) ([]*message.Message, error) { return nil, errOfHandler }
			cfg := middleware.StackConfig{}
			cfg.ErrorHandler.Backoff = backoff
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			msg := message.NewMessage(name, nil)
			msg.SetContext(ctx)
			begun := time.Now()
			got, err := outboxtest.Handle(t, db, failing, msg, cfg)
			require.ErrorIs(t, err, errOfHandler)
			assert.False(t, got.Acked)
			assert.Empty(t, got.Published)
			if backoff.Initial > 0 || backoff.Func != nil {
				assert.GreaterOrEqual(t, time.Since(begun), wait*8/10)
			}
		})
	}
}

// TestHandleLetsPanicsThrough after the transaction was rolled back: the next delivery counts as the first.
func TestHandleLetsPanicsThrough(t *testing.T) {
	h := onPgx(t)
	db := h.db
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
	require.NoError(t, err)
	msg := message.NewMessage("1", nil)
	said := func() (said any) {
		defer func() { said = recover() }()
		_, err := outboxtest.Handle(t, db, func(msg *message.Message) ([]*message.Message, error) {
			if err := pub.PublishContext(msg.Context(), "topic", message.NewMessage("lost", nil)); err != nil {
				t.Error(err)
			}
			panic("the handler's")
		}, msg, middleware.StackConfig{})
		t.Error("Handle returned", err)
		return nil
	}()
	if said != "the handler's" {
		t.Errorf("the panic is now %v", said)
	}
	if got, err := outboxtest.Handle(t, db, answers, msg, middleware.StackConfig{}); err != nil ||
		len(got.Published) != 1 {
		t.Error(got, err)
	}
	if all := outboxtest.Drain(t, db); len(all) != 1 {
		t.Errorf("%d messages exist", len(all))
	}
}

// TestBadWiringEndsTheTest: errors in the test itself are not results.
func TestBadWiringEndsTheTest(t *testing.T) {
	db := onPgx(t).db
	msg := message.NewMessage("1", nil)
	handler := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	for want, call := range map[string]func(t testing.TB){
		"handler or the message is nil": func(t testing.TB) {
			_, _ = outboxtest.Handle(t, db, nil, msg, middleware.StackConfig{})
		},
		"no database": func(t testing.TB) { _, _ = outboxtest.Handle(t, nil, handler, msg, middleware.StackConfig{}) },
		"must not contain a slash": func(t testing.TB) {
			_, _ = outboxtest.Handle(t, db, handler, msg, middleware.StackConfig{Service: "a/b"})
		},
		"outboxtest.Drain: outbox: no database": func(t testing.TB) { outboxtest.Drain(t, nil) },
	} {
		if said := fatal(t, call); !strings.Contains(said, want) {
			t.Errorf("the test ended with %q, want %q", said, want)
		}
	}
}

// fatal returns the message with which call ends its test.
func fatal(t *testing.T, call func(t testing.TB)) (said string) {
	defer func() { said = fmt.Sprint(recover()) }()
	call(fatalT{t})
	return ""
}

type fatalT struct{ testing.TB }

func (fatalT) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (fatalT) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
