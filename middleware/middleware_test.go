package middleware

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// unreachable returns a handle that never gets a connection.
func unreachable(t *testing.T) *outbox.DB {
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
	return db
}

func TestBadConfiguration(t *testing.T) {
	db := unreachable(t)
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ready := func(_ message.HandlerMiddleware, err error) error { return err }
	stack := func(pub *outbox.Publisher, cfg StackConfig) error { _, err := Stack(pub, cfg, nil); return err }
	long := strings.Repeat("c", 4000)
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"Inbox nil": {ready(Inbox(nil, InboxConfig{Service: "s"}, nil)), "no database"},
		"Inbox no service": {
			ready(Inbox(db, InboxConfig{}, nil)), "InboxConfig.Service is required: without it two services",
		},
		"Inbox slash":        {ready(Inbox(db, InboxConfig{Service: "a/b"}, nil)), "InboxConfig.Service"},
		"Inbox service":      {ready(Inbox(db, InboxConfig{Service: "a\x00"}, nil)), "InboxConfig.Service"},
		"Inbox long service": {ready(Inbox(db, InboxConfig{Service: long}, nil)), "InboxConfig.Service"},
		"Inbox consumer":     {ready(Inbox(db, InboxConfig{Service: "s", Consumer: "a\x00"}, nil)), "InboxConfig.Consumer"},
		"Inbox long":         {ready(Inbox(db, InboxConfig{Service: "s", Consumer: long}, nil)), "InboxConfig.Consumer"},
		"Outbox nil":         {ready(Outbox(nil, OutboxConfig{}, nil)), "nil"},
		"Outbox topic":       {ready(Outbox(pub, OutboxConfig{Topic: "\xff"}, nil)), "OutboxConfig.Topic"},
		"ErrorHandler nil":   {ready(ErrorHandler(nil, ErrorHandlerConfig{Service: "s"}, nil)), "no database"},
		"ErrorHandler service": {
			ready(ErrorHandler(db, ErrorHandlerConfig{}, nil)), "ErrorHandlerConfig.Service is required",
		},
		"Tx nil":       {ready(Tx(nil, TxConfig{}, nil)), "no database"},
		"Tx isolation": {ready(Tx(db, TxConfig{Isolation: sql.LevelLinearizable}, nil)), "TxConfig.Isolation"},
		"Tx timeout":   {ready(Tx(db, TxConfig{Timeout: -5}, nil)), "TxConfig.Timeout"},
		"Tx retries":   {ready(Tx(db, TxConfig{MaxRetries: -2}, nil)), "TxConfig.MaxRetries"},
		"Tx backoff": {
			ready(Tx(db, TxConfig{Backoff: outbox.Backoff{Initial: -2}}, nil)), "TxConfig.Backoff.Initial",
		},
		"ErrorHandler topic": {
			ready(ErrorHandler(db, ErrorHandlerConfig{Service: "s", DeadLetterTopic: "\xff"}, nil)), "DeadLetterTopic",
		},
		"ErrorHandler attempts": {
			ready(ErrorHandler(db, ErrorHandlerConfig{Service: "s", MaxAttempts: -2}, nil)), "MaxAttempts",
		},
		"ErrorHandler age": {
			ready(ErrorHandler(db, ErrorHandlerConfig{Service: "s", MinDeadAge: -2}, nil)), "MinDeadAge",
		},
		"ErrorHandler backoff": {
			ready(ErrorHandler(db, ErrorHandlerConfig{Service: "s", Backoff: outbox.Backoff{Initial: -2}}, nil)),
			"Backoff.Initial",
		},
		"Stack nil pub": {stack(nil, StackConfig{Service: "s"}), "nil"},
		"Stack service": {stack(pub, StackConfig{}), "StackConfig.Service is required"},
		"Stack inner": {
			stack(pub, StackConfig{Service: "s", ErrorHandler: ErrorHandlerConfig{MaxAttempts: -2}}),
			"ErrorHandlerConfig.MaxAttempts",
		},
	} {
		if test.err == nil || !strings.Contains(test.err.Error(), test.want) {
			t.Errorf("%s: got %v, want an error with %q", name, test.err, test.want)
		}
	}
}

func TestBadWiringFailsEveryMessage(t *testing.T) {
	db := unreachable(t)
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ready := func(mw message.HandlerMiddleware, err error) message.HandlerMiddleware {
		if err != nil {
			t.Fatal(err)
		}
		return mw
	}
	for name, test := range map[string]struct {
		mw   message.HandlerMiddleware
		want string
	}{
		"Inbox without Tx":       {ready(Inbox(db, InboxConfig{Service: "s", Consumer: "c"}, nil)), "add middleware.Tx"},
		"Outbox without Tx":      {ready(Outbox(pub, OutboxConfig{}, nil)), "add middleware.Tx"},
		"ErrorHandler inside Tx": {insideTx(ready(ErrorHandler(db, ErrorHandlerConfig{Service: "s"}, nil))), "before Tx"},
	} {
		t.Run(name, func(t *testing.T) {
			handler := test.mw(func(*message.Message) ([]*message.Message, error) {
				t.Error("the handler was called")
				return nil, nil
			})
			_, err := handler(message.NewMessage("id", nil))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want an error with %q", err, test.want)
			}
			if strings.HasSuffix(name, "without Tx") &&
				(!errors.Is(err, outbox.ErrNoTx) || strings.Contains(err.Error(), "WithoutTx")) {
				t.Errorf("not the usual ErrNoTx, or with advice that is of no use here: %v", err)
			}
		})
	}
}

func TestNilMessageAndNilHandler(t *testing.T) {
	db := unreachable(t)
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	inbox, inboxErr := Inbox(db, InboxConfig{Service: "s"}, nil)
	out, outErr := Outbox(pub, OutboxConfig{}, nil)
	errorHandler, errorHandlerErr := ErrorHandler(db, ErrorHandlerConfig{Service: "s"}, nil)
	stack, stackErr := Stack(pub, StackConfig{Service: "s", Except: []string{"x"}}, nil)
	if err := errors.Join(inboxErr, outErr, errorHandlerErr, stackErr); err != nil {
		t.Fatal(err)
	}
	for name, mw := range map[string]message.HandlerMiddleware{
		"Inbox": inbox, "Outbox": out, "ErrorHandler": errorHandler, "Stack": stack[0],
	} {
		handler := func(*message.Message) ([]*message.Message, error) { return nil, nil }
		if _, err := mw(handler)(nil); err == nil || !strings.Contains(err.Error(), "the message is nil") {
			t.Errorf("%s: nil message: %v", name, err)
		}
		if _, err := mw(nil)(message.NewMessage("id", nil)); err == nil ||
			!strings.Contains(err.Error(), "the handler is nil") {
			t.Errorf("%s: nil handler: %v", name, err)
		}
	}
}

func TestConsumersOfDifferentPairsDiffer(t *testing.T) {
	seen := map[string]bool{}
	for _, pair := range [][2]string{{"a", "b/c"}, {"a", "b"}, {"ab", "c"}, {"a", "bc"}, {"a", "/b"}} {
		consumer, err := consumerOf(pair[0], pair[1])
		if err != nil || seen[consumer] {
			t.Errorf("%v: %q %v", pair, consumer, err)
		}
		seen[consumer] = true
	}
	for _, name := range []string{"", "\xff", strings.Repeat("n", 4000)} {
		if consumer, err := consumerOf("a", name); err == nil || !strings.Contains(err.Error(), "InboxConfig.Consumer") {
			t.Errorf("%.10q became %.10q, %v", name, consumer, err)
		}
	}
}

func TestDeadLetterUUIDs(t *testing.T) {
	seen := map[string]bool{}
	for _, of := range []struct {
		id, generation, consumer string
		revived                  int
	}{
		{"1", "", "a/b", 0}, {"1", "", "a/b", 1}, {"1", "", "a/c", 0}, {"2", "", "a/b", 0}, {"1a", "", "/b", 0},
		{"11", "", "a/b", 0},
		{"1", "1", "a/b", 0}, {"1", "1a", "/b", 0}, {"11", "1", "a/b", 0}, {"1", "2", "a/b", 0},
	} {
		id := deadLetterUUID(of.id, of.generation, of.consumer, of.revived)
		if seen[id] || id != deadLetterUUID(of.id, of.generation, of.consumer, of.revived) {
			t.Errorf("%+v: %s is not unique", of, id)
		}
		seen[id] = true
	}
}

// insideTx runs a middleware inside a Tx.
func insideTx(mw message.HandlerMiddleware) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			ctx, h, _ := handlingOf(msg)
			h.inTx = true
			msg.SetContext(ctx)
			return mw(next)(msg)
		}
	}
}

func TestRepeatable(t *testing.T) {
	state := func(code string) error { return fmt.Errorf("insert: %w", &pgconn.PgError{Code: code}) }
	for _, test := range []struct {
		err  error
		want bool
	}{
		{state("40001"), true},
		{state("40P01"), true},
		{errors.Join(state("40001"), errors.New("rollback: broken")), true},
		{state("23505"), false},
		{errors.New("deadlock detected"), false},
		{fmt.Errorf("%w: %w", outbox.ErrCommitUnknown, state("40001")), false},
		{outbox.Poison(state("40001")), false},
		{fmt.Errorf("%w: %w", outbox.ErrAlreadyProcessed, state("40P01")), false},
	} {
		if got := repeatable(test.err); got != test.want {
			t.Errorf("repeatable(%v) = %v", test.err, got)
		}
	}
}

func TestRelate(t *testing.T) {
	for name, test := range map[string]struct {
		metadata                    message.Metadata
		correlation                 string
		wantCorrelation, wantCauses string
	}{
		"none":          {nil, "", "cause", "cause"},
		"inherited":     {message.Metadata{}, "c", "c", "cause"},
		"set by itself": {message.Metadata{"correlation_id": "own", "causation_id": "own too"}, "c", "own", "own too"},
	} {
		t.Run(name, func(t *testing.T) {
			out := message.NewMessage("out", nil)
			out.Metadata = test.metadata
			relate(out, "cause", test.correlation)
			if got := out.Metadata.Get("correlation_id"); got != test.wantCorrelation {
				t.Errorf("correlation_id %q, want %q", got, test.wantCorrelation)
			}
			if got := out.Metadata.Get("causation_id"); got != test.wantCauses {
				t.Errorf("causation_id %q, want %q", got, test.wantCauses)
			}
		})
	}
	same := message.NewMessage("cause", nil)
	if relate(same, "cause", ""); same.Metadata.Get("causation_id") != "" {
		t.Error("a forwarded message has itself as its cause")
	}
	relate(nil, "cause", "")
}

func TestDeadLetterIsStorable(t *testing.T) {
	msg := message.NewMessage("", []byte("payload"))
	msg.Metadata = message.Metadata{
		"good": "ü", "bad": "a\x00b\xff", "k\xff": "v",
		delay.DelayedForKey: "never mind", delay.DelayedUntilKey: "tomorrow",
		outbox.MetadataKey: strings.Repeat("k", 5000),
	}
	dead := newDeadLetter(context.Background(), msg, nil, "shop", errors.New("why"))
	if dead.UUID == "" || string(dead.Payload) != "payload" {
		t.Errorf("got %q %q", dead.UUID, dead.Payload)
	}
	for k, v := range dead.Metadata {
		if !text.Storable(k) || !text.Storable(v) {
			t.Errorf("metadata %q = %q", k, v)
		}
	}
	if dead.Metadata["good"] != "ü" || dead.Metadata[reasonKey] != "why" {
		t.Errorf("metadata %v", dead.Metadata)
	}
	for _, gone := range []string{delay.DelayedForKey, delay.DelayedUntilKey, outbox.MetadataKey} {
		if _, there := dead.Metadata[gone]; there {
			t.Errorf("%s is still there", gone)
		}
	}
	if len(msg.Metadata) != 6 {
		t.Error("the message itself was changed")
	}
	if dead.Metadata[serviceKey] != "shop" {
		t.Errorf("metadata %v", dead.Metadata)
	}
}

// TestMiswiredIsNoHotLoop: brokers redeliver a failed message immediately, so wrongly combined middlewares wait before
// they return their advice.
func TestMiswiredIsNoHotLoop(t *testing.T) {
	pub, err := outbox.NewPublisher(unreachable(t), outbox.PublisherConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	stack, err := Stack(pub, StackConfig{Service: "shop"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	publishing := func(*message.Message) ([]*message.Message, error) {
		out := message.NewMessage("1", nil)
		out.SetContext(nameHandler(out))
		return nil, pub.Publish("events", out)
	}
	returning := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	for name, test := range map[string]struct {
		handler message.HandlerFunc
		cure    string
	}{
		"inbox alone":    {stack[2](returning), "add middleware.Tx before middleware.Inbox"},
		"outbox alone":   {stack[3](returning), "add middleware.Tx before middleware.Outbox"},
		"reversed":       {stack[3](stack[2](stack[1](stack[0](returning)))), "the first the outermost"},
		"inbox outside":  {stack[2](stack[0](stack[1](stack[3](returning)))), "the first the outermost"},
		"nothing at all": {publishing, `handler "h" publishes without a transaction: add middleware.Stack`},
	} {
		synctest.Test(t, func(t *testing.T) {
			msg := message.NewMessage("1", nil)
			msg.SetContext(nameHandler(msg))
			begun := time.Now()
			for range 8 {
				if _, err := test.handler(msg); err == nil || !strings.Contains(err.Error(), test.cure) {
					t.Errorf("%s: %v", name, err)
				}
			}
			if took := time.Since(begun); took < 4*time.Second || took > 2*time.Minute {
				t.Errorf("%s: eight deliveries took %s", name, took)
			}
			ctx, cancel := context.WithCancel(msg.Context())
			cancel()
			msg.SetContext(ctx)
			begun = time.Now()
			if _, err := test.handler(msg); err == nil || name != "nothing at all" && time.Since(begun) > 0 {
				t.Errorf("%s: waits for %s although the Router closes", name, time.Since(begun))
			}
		})
	}
}

// TestAFailureIsChargedSinceTheFirstThatCounts: earlier failures only lengthen the wait.
func TestAFailureIsChargedSinceTheFirstThatCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &errorHandler{logger: watermill.NopLogger{}, cfg: ErrorHandlerConfig{MaxAttempts: 2, MinDeadAge: time.Hour}}
		o.cfg.setDefaults()
		fail := func(h *handling) (outbox.Decision, int) {
			msg := message.NewMessage("1", nil)
			_, n := o.count(t.Context(), msg, h)
			return o.decide(h, n, errHandler), n.failures
		}
		for n, test := range []struct {
			after   time.Duration
			calling callback
			want    outbox.Decision
		}{
			{0, noCallback, outbox.Nack}, {2 * time.Hour, noCallback, outbox.Nack},
			{0, inboxKey, outbox.Nack}, {time.Minute, inboxKey, outbox.Nack},
			{time.Hour, noCallback, outbox.Nack}, {0, inboxKey, outbox.DeadLetter},
		} {
			time.Sleep(test.after)
			h := &handling{attemptState: attemptState{calling: test.calling}}
			if got, failures := fail(h); got != test.want || failures != n+1 {
				t.Errorf("failure %d: got %v and %d for the wait", n+1, got, failures)
			}
		}
	})
}

var errHandler = errors.New("the handler failed")

// nameHandler puts a handler's name into the context of a message, as a Router does.
func nameHandler(msg *message.Message) context.Context {
	var key any
	message.HandlerNameFromCtx(keyFinder{msg.Context(), &key})
	return context.WithValue(msg.Context(), key, "h")
}

type keyFinder struct {
	context.Context
	key *any
}

func (f keyFinder) Value(key any) any {
	*f.key = key
	return nil
}
