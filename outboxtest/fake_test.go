package outboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/outboxtest"
	"github.com/millrace-go/watermill-outbox/queue"
	"github.com/millrace-go/watermill-outbox/schema"
)

// What the fake promises as a whole is shown in integration_test (TestConformance, TestIBX), with Postgres beside it.
// Here is what only a fake has.

var errTest = errors.New("the test said so")

func payloads(msgs []outboxtest.Message) string {
	var all []string
	for _, msg := range msgs {
		all = append(all, string(msg.Payload))
	}
	return strings.Join(all, " ")
}

func publisher(t *testing.T, db *outbox.DB, without outbox.WithoutTx) *outbox.Publisher {
	t.Helper()
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{WithoutTx: without}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return pub
}

func TestWrittenIsWhatWasNotUndone(t *testing.T) {
	db := outboxtest.NewDB(t)
	pub := publisher(t, db, outbox.RequireTx)
	write := func(ctx context.Context, payload string) {
		if err := pub.PublishContext(ctx, "topic", message.NewMessage(payload, []byte(payload))); err != nil {
			t.Fatal(err)
		}
	}
	written := func(ctx context.Context, want string) {
		t.Helper()
		if is := payloads(outboxtest.Written(t, ctx)); is != want {
			t.Errorf("written: %q, want %q", is, want)
		}
	}
	for range 2 {
		err := outbox.InTx(t.Context(), db, func(ctx context.Context) error {
			written(ctx, "")
			write(ctx, "a")
			_ = outbox.InTx(ctx, db, func(ctx context.Context) error {
				write(ctx, "b")
				written(ctx, "a b")
				return errTest
			})
			write(ctx, "c")
			written(ctx, "a c")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestItSaysThatItIsAFake asks for what only Postgres has.
func TestItSaysThatItIsAFake(t *testing.T) {
	db := outboxtest.NewDB(t)
	fwd, err := forwarder.New(db, &outboxtest.Publisher{}, forwarder.Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := admin.New(db, admin.Config{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, ask := range map[string]func() error{
		"forwarder": func() error { return fwd.Run(t.Context()) },
		"migrate":   func() error { _, err := schema.Migrate(t.Context(), db, schema.MigrateConfig{}); return err },
		"check":     func() error { return schema.Check(t.Context(), db) },
		"admin":     func() error { _, err := a.Stats(t.Context(), admin.StatsConfig{}); return err },
	} {
		if err := ask(); err == nil || !strings.Contains(err.Error(), "is a fake, in memory") ||
			!strings.Contains(err.Error(), "Drain") {
			t.Errorf("%s: %v", name, err)
		}
	}
	err = outbox.InTx(t.Context(), db, func(ctx context.Context) error {
		_, pgxErr := outbox.PgxTx(ctx)
		_, sqlErr := outbox.SQLTx(ctx)
		for _, err := range []error{pgxErr, sqlErr} {
			if !errors.Is(err, outbox.ErrTxKind) || !strings.Contains(err.Error(), "outboxtest.NewDB") {
				t.Errorf("the transaction of the fake: %v", err)
			}
		}
		return nil
	})
	if err != nil || db.Name() != "memory" {
		t.Error(err, db.Name())
	}
}

// TestBadWiringEndsTheTest: faults of the test's own are no results.
func TestBadWiringEndsTheTest(t *testing.T) {
	db := outboxtest.NewDB(t)
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
		"outboxtest.Written: outbox: no tr":     func(t testing.TB) { outboxtest.Written(t, context.Background()) },
		"one of a real database": func(t testing.TB) {
			ctx, err := outbox.WithPgxTx(context.Background(), db, struct{ pgx.Tx }{})
			if err != nil {
				t.Fatal(err)
			}
			outboxtest.Written(t, ctx)
		},
	} {
		if said := fatal(t, call); !strings.Contains(said, want) {
			t.Errorf("it said %q, want %q", said, want)
		}
	}
}

// fatal returns with what a test is ended.
func fatal(t *testing.T, call func(t testing.TB)) (said string) {
	defer func() { said = fmt.Sprint(recover()) }()
	call(fatalT{t})
	return ""
}

type fatalT struct{ testing.TB }

func (fatalT) Fatal(args ...any)                 { panic(fmt.Sprint(args...)) }
func (fatalT) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// TestNothingWorksAfterTheTest: what outlives its test is told so and does not hang.
func TestNothingWorksAfterTheTest(t *testing.T) {
	var db *outbox.DB
	t.Run("test", func(t *testing.T) { db = outboxtest.NewDB(t) })
	err := publisher(t, db, outbox.OwnTx).Publish("topic", message.NewMessage("1", nil))
	if err == nil || !strings.Contains(err.Error(), "the test of this database in memory is over") {
		t.Error(err)
	}
}

// TestWaitsEnd: a transaction that waits for one of its own goroutine is told after a minute, where Postgres would wait
// for ever; and whoever waits hears the end of its context.
func TestWaitsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := outboxtest.NewDB(t)
		store, err := queue.NewStore(db, queue.StoreConfig{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		id := queue.ID{Source: "shop", MessageID: "1"}
		if _, err := store.Enqueue(t.Context(), queue.Item{ID: id, Topic: "orders"}); err != nil {
			t.Fatal(err)
		}
		err = outbox.InTx(t.Context(), db, func(ctx context.Context) error {
			if err := store.MarkDead(ctx, id, "inside"); err != nil {
				return err
			}
			begun := time.Now()
			if err := store.MarkDead(t.Context(), id, "outside"); err == nil ||
				!strings.Contains(err.Error(), "held by another transaction") {
				t.Error(err)
			}
			if waited := time.Since(begun); waited != time.Minute {
				t.Errorf("it waited %s", waited)
			}
			short, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if err := store.MarkDead(short, id, "outside"); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if msg, err := store.Get(t.Context(), id); err != nil || msg.LastError != "inside" {
			t.Error(msg.LastError, err)
		}
	})
}

// TestTimePassesInABubble: delays, backoff and leases, in no time.
func TestTimePassesInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := outboxtest.NewDB(t)
		store, err := queue.NewStore(db, queue.StoreConfig{MaxAttempts: 3, Retention: 24 * time.Hour}, nil)
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		var attempts atomic.Int32
		dispatcher, err := queue.NewDispatcher(store, queue.DispatcherConfig{Handlers: map[string]queue.Handler{
			"orders": {Handle: func(context.Context, *queue.Message) error { attempts.Add(1); return errTest }},
		}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() { ended <- dispatcher.Run(t.Context()) }()
		id := queue.ID{Source: "shop", MessageID: "1"}
		if _, err := store.Enqueue(t.Context(), queue.Item{
			ID: id, Topic: "orders", DueAt: begun.Add(time.Minute),
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Second)
		if attempts.Load() != 0 {
			t.Error("it was handled before its time")
		}
		time.Sleep(time.Minute)
		if msg, err := store.Get(t.Context(), id); err != nil || msg.State != queue.Dead || attempts.Load() != 3 {
			t.Error(msg.State, attempts.Load(), err)
		}
		if err := errors.Join(dispatcher.Close(), <-ended); err != nil {
			t.Error(err)
		}
	})
}

// TestGuide: the test in docs/start/testing.md is the one that runs here.
func TestGuide(t *testing.T) {
	page, err := os.ReadFile("../docs/start/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("booking_test.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"TestBooking"} {
		_, code, _ := strings.Cut(string(source), "\nfunc "+name+"(")
		code, _, _ = strings.Cut(code, "\n}\n")
		if code == "" || !strings.Contains(string(page), "\nfunc "+name+"("+code+"\n}\n") {
			t.Errorf("the page has not %s as it is in booking_test.go", name)
		}
	}
}

func TestMessageWithoutUUIDSaysWhatToDo(t *testing.T) {
	db := outboxtest.NewDB(t)
	handle := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	got, err := outboxtest.Handle(t, db, handle, message.NewMessage("", []byte("from another producer")),
		middleware.StackConfig{})
	if err != nil || len(got.Published) != 1 {
		t.Fatal(got, err)
	}
	if why := got.Published[0].Metadata.Get(middleware.MetadataReason); !strings.Contains(why, "has no UUID") ||
		!strings.Contains(why, "InboxConfig.Key") {
		t.Errorf("it was put aside with %q, want the cure", why)
	}
}
