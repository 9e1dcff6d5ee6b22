package forwarder

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// An error returned after the call timed out counts as the timeout, no matter who waits for it. It may be reported
// before the timer reports the timeout.
func TestErrorAfterTheTimeout(t *testing.T) {
	undelivered := delivery{ctx: t.Context(), messages: make(chan *message.Message)}
	unacked := delivery{ctx: t.Context(), messages: make(chan *message.Message, 1)}
	for name, send := range map[string]send{
		"nobody receives": undelivered.send,
		"nobody acks":     unacked.send,
		"publisher": func(call *callContext, _ core.Delivery, msg *message.Message) error {
			<-msg.Context().Done()
			return msg.Context().Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			var judged error
			e := &engine{
				cfg: Config{PublishTimeout: time.Second}, send: send,
				to: newPublishers(nil, Config{Classify: func(err error) Verdict {
					if judged = err; errors.Is(err, context.DeadlineExceeded) {
						return Unavailable
					}
					return Permanent
				}}),
			}
			next := &callContext{base: context.Background()}
			w := &worker{
				e: e, call: &dispatch.Call{Row: &dispatch.Row{Metadata: []byte("{}")}, Tag: next}, next: next,
			}
			w.next.cancel(ErrPublishTimeout)
			w.publish()
			if w.result.Verdict != dispatch.Permanent || judged == nil ||
				judged.Error() != "forwarder: publish timed out after 1s" || !errors.Is(judged, ErrPublishTimeout) {
				t.Errorf("%v: %v", w.result.Verdict, judged)
			}
		})
	}
}

type contextKey struct{}

func TestCallContext(t *testing.T) {
	base := context.WithValue(context.Background(), contextKey{}, "value")
	c := &callContext{base: base}
	if c.Err() != nil || context.Cause(c) != nil || c.Value(contextKey{}) != "value" {
		t.Fatalf("%v %v %v at first", c.Err(), context.Cause(c), c.Value(contextKey{}))
	}
	before := runtime.NumGoroutine()
	derived, cancel := context.WithTimeout(c, time.Hour)
	defer cancel()
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("a derived context started %d goroutines", n-before)
	}
	select {
	case <-c.Done():
		t.Fatal("ended too soon")
	default:
	}
	c.cancel(ErrPublishTimeout)
	c.cancel(context.Canceled)
	for _, ctx := range []context.Context{c, derived} {
		<-ctx.Done()
		if ctx.Err() == nil || !errors.Is(context.Cause(ctx), ErrPublishTimeout) || ctx.Value(contextKey{}) != "value" {
			t.Errorf("%v because of %v", ctx.Err(), context.Cause(ctx))
		}
	}
}

// A later check of the context has the same result.
func TestCallContextThatNobodyWatched(t *testing.T) {
	for _, cause := range []error{context.Canceled, ErrPublishTimeout} {
		c := &callContext{base: context.Background()}
		c.cancel(cause)
		want := context.Canceled
		if cause == ErrPublishTimeout {
			want = context.DeadlineExceeded
		}
		if c.Err() != want || context.Cause(c) != cause {
			t.Errorf("%v because of %v", c.Err(), context.Cause(c))
		}
		<-c.Done()
	}
	if n := testing.AllocsPerRun(100, func() {
		(&callContext{base: context.Background()}).cancel(context.Canceled)
	}); n > 1 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzDecodeMetadata(f *testing.F) {
	for _, text := range []string{
		`{}`, ` { } `, `{"a": "b"}`, `{"a":"b","c":"d"}`, `{ "a" : "b" , "" : "" }`, `{"a": "b"} `, `{"a": "b", "a": "c"}`,
		`{"q": "\"", "u": "\u00e9", "b": "\\"}`, `{"é": "日本"}`, "{\"a\": \"\x7f\"}",
		`null`, ``, `{`, `{"a"}`, `{"a": 1}`, `{"a": "b",}`, `{"a": "b"}}`, `{"a": "b"`, `{"a": {"b": "c"}}`, `[]`, `"a"`,
		"{\"a\": \"\n\"}", "{\"a\": \"\xff\"}",
		"\t{\n\"a\": \"b\"}",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var want message.Metadata
		wantErr := json.Unmarshal(text, &want)
		got, err := decodeMetadata(text)
		if (err == nil) != (wantErr == nil) || err == nil && !maps.Equal(got, want) {
			t.Fatalf("%q: %v, %v, want %v, %v", text, got, err, want, wantErr)
		}
		if got == nil {
			t.Fatalf("%q is not metadata", text)
		}
	})
}

func BenchmarkDecodeMetadata(b *testing.B) {
	text := []byte(`{"outbox_key": "key-1234", "correlation_id": "6ba7b810-9dad-11d1-80b4-00c04fd430c8"}`)
	b.Run("ours", func(b *testing.B) {
		for b.Loop() {
			_, _ = decodeMetadata(text)
		}
	})
	b.Run("json", func(b *testing.B) {
		for b.Loop() {
			var m message.Metadata
			_ = json.Unmarshal(text, &m)
		}
	})
}

// TestResultOfANack: a failure is the last one after MaxAttempts at MinDeadAge, unless it does not count.
func TestResultOfANack(t *testing.T) {
	failed := errors.New("failed")
	young, old := time.Hour-time.Second, time.Hour
	retry := dispatch.Result{Verdict: dispatch.Retry}
	last := dispatch.Result{Verdict: dispatch.Permanent}
	snooze := func(wait time.Duration) dispatch.Result {
		return dispatch.Result{Verdict: dispatch.Retry, Wait: wait, Snooze: true}
	}
	for name, test := range map[string]struct {
		attempt int
		age     time.Duration
		err     error
		want    dispatch.Result
	}{
		"attempts are left": {9, old, nackedBecause(0, failed), retry},
		"too young":         {10, young, nackedBecause(0, failed), retry},
		"the last":          {10, old, nackedBecause(0, failed), last},
		"poison":            {1, old, nackedBecause(0, outbox.Poison(failed)), retry},
		"timed out":         {10, old, ErrPublishTimeout, last},
		"later":             {10, old, nackedBecause(time.Second, failed), snooze(time.Second)},
		"no transaction":    {10, old, nackedBecause(0, errors.Join(core.ErrNotBegun, failed)), snooze(0)},
		"no dead letter":    {10, old, nackedBecause(0, errors.Join(core.ErrNoDeadLetter, failed)), snooze(deadLetterRetry)},
	} {
		now := time.Now()
		e := &engine{cfg: Config{MaxAttempts: 10, MinDeadAge: time.Hour}}
		call := &dispatch.Call{
			Row: &dispatch.Row{CreatedAt: now.Add(-test.age)}, Attempt: test.attempt, Started: now, Tag: &callContext{},
		}
		test.want.Err = test.err
		if got := e.judge(call, test.err); got != test.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
