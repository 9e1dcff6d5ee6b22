package middleware

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// TestErrorHandlerLeavesTheWaitToTheSubscriber: while a subscriber blocks the message's key, the message must not keep
// its slot, and the wait that its handler requests is passed to the subscriber.
func TestErrorHandlerLeavesTheWaitToTheSubscriber(t *testing.T) {
	failed := errors.New("failed")
	for name, test := range map[string]struct {
		signed bool
		err    error
		wait   time.Duration
		told   []time.Duration
	}{
		"of another subscriber": {false, failed, 20 * time.Millisecond, nil},
		"of ours":               {true, failed, time.Hour, []time.Duration{0}},
		"later":                 {true, outbox.RetryAfter(failed, 2*time.Hour), time.Hour, []time.Duration{2 * time.Hour}},
		"later, after no time":  {true, outbox.RetryAfter(failed, 0), 0, []time.Duration{100 * time.Millisecond}},
		"wired wrongly":         {true, outbox.ErrTxKind, time.Hour, []time.Duration{time.Hour}},
	} {
		mw, err := ErrorHandler(unreachable(t), ErrorHandlerConfig{
			Service: "shop", Backoff: outbox.Backoff{Func: func(int) time.Duration { return test.wait }},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var told []time.Duration
		var why error
		msg := message.NewMessage(name, nil)
		if test.signed {
			msg.SetContext(core.WithOwnBackoff(t.Context(), msg, func(wait time.Duration, err error) {
				told, why = append(told, wait), err
			}))
		}
		_, err = mw(func(*message.Message) ([]*message.Message, error) { return nil, test.err })(msg)
		if !errors.Is(err, test.err) {
			t.Errorf("%s: %v", name, err)
		}
		if !slices.Equal(told, test.told) {
			t.Errorf("%s: requested wait %v, want %v", name, told, test.told)
		}
		if !test.signed && time.Since(began) < test.wait {
			t.Errorf("%s: did not wait", name)
		}
		if test.signed && !errors.Is(why, test.err) {
			t.Errorf("%s: reported %v", name, why)
		}
	}
}

// TestABackoffThatPanics: the message is nacked with its handler's error, and waits for Initial.
func TestABackoffThatPanics(t *testing.T) {
	const wait = 50 * time.Millisecond
	mw, err := ErrorHandler(unreachable(t), ErrorHandlerConfig{Service: "shop", Backoff: outbox.Backoff{
		Initial: wait, Func: func(int) time.Duration { panic("canary") },
	}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("failed")
	began := time.Now()
	_, err = mw(func(*message.Message) ([]*message.Message, error) { return nil, failed })(message.NewMessage("id", nil))
	if !errors.Is(err, failed) {
		t.Error(err)
	}
	if took := time.Since(began); took < wait/2 {
		t.Errorf("nacked after %s", took)
	}
}
