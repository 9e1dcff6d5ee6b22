package middleware

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/schema"
)

// unreachable is a handle that never gets a connection.
func unreachable(t *testing.T) *outbox.DB {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), "postgres://127.0.0.1:1/none?connect_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return outbox.FromPgx(pool)
}

func TestBadConfigurationFailsEveryMessage(t *testing.T) {
	db := unreachable(t)
	pub, err := outbox.NewPublisher(db, outbox.PublisherConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	bad := schema.Names{Inbox: `x"; drop table y`, Outbox: "1"}
	for name, test := range map[string]struct {
		mw   message.HandlerMiddleware
		want string
	}{
		"Tx nil":             {Tx(nil, TxConfig{}), "no database"},
		"Tx nil pool":        {Tx(outbox.FromPgx(nil), TxConfig{}), "no database"},
		"Tx isolation":       {Tx(db, TxConfig{Isolation: sql.LevelLinearizable}), "Isolation"},
		"Tx timeout":         {Tx(db, TxConfig{Timeout: -5}), "Timeout"},
		"Tx retries":         {Tx(db, TxConfig{Retries: -2}), "Retries"},
		"Tx backoff":         {Tx(db, TxConfig{RetryBackoff: -2}), "RetryBackoff"},
		"Inbox nil":          {Inbox(nil, InboxConfig{}), "no database"},
		"Inbox tables":       {Inbox(db, InboxConfig{Tables: bad}), "bad table name"},
		"Inbox consumer":     {Inbox(db, InboxConfig{Consumer: "a\x00"}), "Consumer"},
		"Outbox nil":         {Outbox(nil, OutboxConfig{}), "nil"},
		"Outcomes nil":       {Outcomes(nil, OutcomesConfig{}), "no database"},
		"Outcomes tables":    {Outcomes(db, OutcomesConfig{Tables: bad}), "bad table name"},
		"Outcomes topic":     {Outcomes(db, OutcomesConfig{DeadLetterTopic: "\xff"}), "DeadLetterTopic"},
		"Outcomes attempts":  {Outcomes(db, OutcomesConfig{MaxAttempts: -1}), "MaxAttempts"},
		"Stack nil db":       {Stack(nil, pub, StackConfig{})[0], "no database"},
		"Stack nil pub":      {Stack(db, nil, StackConfig{})[0], "nil"},
		"Stack other db":     {Stack(unreachable(t), pub, StackConfig{})[0], "another database"},
		"Stack other tables": {Stack(db, pub, StackConfig{Tables: schema.Names{Outbox: "other"}})[0], "Tables"},
		"Inbox without Tx":   {Inbox(db, InboxConfig{Consumer: "c"}), "add middleware.Tx"},
		"Outbox without Tx":  {Outbox(pub, OutboxConfig{}), "add middleware.Tx"},
		"Outcomes inside Tx": {insideTx(Outcomes(db, OutcomesConfig{})), "outside of Tx"},
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
		})
	}
}

// insideTx is what a middleware sees behind a Tx.
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

func TestPoison(t *testing.T) {
	cause := errors.New("cause")
	if err := Poison(cause); !errors.Is(err, ErrPoison) || !errors.Is(err, cause) {
		t.Errorf("Poison loses something: %v", err)
	}
	if Poison(nil) != nil {
		t.Error("Poison(nil) is an error")
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
		{Poison(state("40001")), false},
		{fmt.Errorf("%w: %w", ErrAlreadyProcessed, state("40P01")), false},
	} {
		if got := repeatable(test.err); got != test.want {
			t.Errorf("repeatable(%v) = %v", test.err, got)
		}
	}
}

func TestRetryDelayGrowsAndEnds(t *testing.T) {
	for n, most := range []time.Duration{10, 20, 40, 80, 160, 320, 640, 1000, 1000} {
		most *= time.Millisecond
		for range 100 {
			if d := retryDelay(10*time.Millisecond, n); d < most/2 || d > most {
				t.Fatalf("retryDelay(10ms, %d) = %s, want %s to %s", n, d, most/2, most)
			}
		}
	}
}

func TestLifetime(t *testing.T) {
	type key struct{}
	parent, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, "v"))
	cancel()
	ctx, stop := (&transactor{cfg: TxConfig{Timeout: -1}}).lifetime(parent)
	if ctx.Err() != nil || ctx.Value(key{}) != "v" {
		t.Error("the context is cancelled with the message's, or has lost its values")
	}
	if _, ok := ctx.Deadline(); ok {
		t.Error("a deadline out of nowhere")
	}
	if stop(); ctx.Err() == nil {
		t.Error("the context outlives the attempt")
	}

	soon := time.Now().Add(time.Minute)
	parent, cancel = context.WithDeadline(context.Background(), soon)
	defer cancel()
	for _, timeout := range []time.Duration{-1, time.Hour} {
		ctx, stop = (&transactor{cfg: TxConfig{Timeout: timeout}}).lifetime(parent)
		defer stop()
		if d, _ := ctx.Deadline(); !d.Equal(soon) {
			t.Errorf("timeout %s: deadline %s, want the message's %s", timeout, d, soon)
		}
	}
	ctx, stop = (&transactor{cfg: TxConfig{Timeout: time.Second}}).lifetime(parent)
	defer stop()
	if d, _ := ctx.Deadline(); !d.Before(soon) {
		t.Error("the timeout does not shorten the message's deadline")
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
		t.Error("a message passed on caused itself")
	}
	relate(nil, "cause", "")
}

func TestErrorTextCanBeStored(t *testing.T) {
	for _, text := range []string{
		"plain", "", "nul \x00 in it", "bad \xff utf-8", strings.Repeat("x", 5000), strings.Repeat("ä", 5000), strings.Repeat("\x00", 5000),
	} {
		got := errorText(errors.New(text))
		if len(got) > 1024 || !utf8.ValidString(got) || strings.Contains(got, "\x00") {
			t.Errorf("%.20q became %d bytes, %.40q", text, len(got), got)
		}
		if len(text) > 1024 && len(got) < 1000 {
			t.Errorf("%.20q was cut to %d bytes", text, len(got))
		}
	}
	if got := errorText(errors.New("plain")); got != "plain" {
		t.Errorf("a plain text became %q", got)
	}
}

func TestDeadLetterIsStorable(t *testing.T) {
	msg := message.NewMessage("", []byte("payload"))
	msg.Metadata = message.Metadata{
		"good": "ü", "bad": "a\x00b\xff", "k\xff": "v",
		delay.DelayedForKey: "never mind", delay.DelayedUntilKey: "tomorrow",
		outbox.MetadataKey: strings.Repeat("k", 5000),
	}
	letter := deadLetter(context.Background(), msg, errors.New("why"))
	if letter.UUID == "" || string(letter.Payload) != "payload" {
		t.Errorf("got %q %q", letter.UUID, letter.Payload)
	}
	for k, v := range letter.Metadata {
		if !schema.Storable(k) || !schema.Storable(v) {
			t.Errorf("metadata %q = %q", k, v)
		}
	}
	if letter.Metadata["good"] != "ü" || letter.Metadata[MetadataReason] != "why" {
		t.Errorf("metadata %v", letter.Metadata)
	}
	for _, gone := range []string{delay.DelayedForKey, delay.DelayedUntilKey, outbox.MetadataKey} {
		if _, there := letter.Metadata[gone]; there {
			t.Errorf("%s is still there", gone)
		}
	}
	if len(msg.Metadata) != 6 {
		t.Error("the message itself was changed")
	}
	if same := deadLetter(context.Background(), message.NewMessage("id", nil), errors.New("why")); same.UUID != "id" {
		t.Errorf("the UUID became %q", same.UUID)
	}
}

func TestOutcomeNames(t *testing.T) {
	seen := map[string]bool{}
	for o := Failed; o <= Mismatch; o++ {
		if s := o.String(); s == "unknown" || seen[s] {
			t.Errorf("outcome %d is called %q", o, s)
		} else {
			seen[s] = true
		}
	}
}

func TestCleanerConfiguration(t *testing.T) {
	db := unreachable(t)
	for want, cfg := range map[string]CleanerConfig{
		"Retention": {Retention: -2}, "Interval": {Interval: -1}, "Batch": {Batch: -1}, "Tables": {Tables: schema.Names{Inbox: "a b"}},
	} {
		if _, err := NewCleaner(db, cfg, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	if _, err := NewCleaner(nil, CleanerConfig{}, nil); !errors.Is(err, outbox.ErrNoDB) {
		t.Errorf("nil db: %v", err)
	}
}

func TestCleanerLifecycle(t *testing.T) {
	newCleaner := func() *Cleaner {
		c, err := NewCleaner(unreachable(t), CleanerConfig{Retention: -1}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := newCleaner()
	ended := make(chan error)
	go func() { ended <- c.Run(context.Background()) }()
	<-c.Running()
	if err := c.Run(context.Background()); err == nil {
		t.Error("a second Run is allowed")
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}

	c = newCleaner()
	ctx, cancel := context.WithCancel(context.Background())
	go func() { ended <- c.Run(ctx) }()
	<-c.Running()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}

	c = newCleaner()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := c.Run(context.Background()); err == nil {
		t.Error("Run after Close is allowed")
	}
}
