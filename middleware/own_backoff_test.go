package middleware

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// TestOutcomesLeavesTheWaitToTheSubscriber: while a subscriber holds the key of a message back, the message must not
// keep its place, and what its handler asks for goes to that subscriber.
func TestOutcomesLeavesTheWaitToTheSubscriber(t *testing.T) {
	failed := errors.New("failed")
	waits := 0
	mw, err := Outcomes(unreachable(t), OutcomesConfig{
		Service: "shop", Backoff: outbox.Backoff{Func: func(int) time.Duration { waits++; return time.Nanosecond }},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		signed      bool
		err         error
		waits, told int
	}{
		"of another subscriber": {false, failed, 1, 0},
		"of ours":               {true, failed, 0, 1},
		"later":                 {true, outbox.RetryAfter(failed, time.Hour), 0, 1},
		"wired wrongly":         {true, outbox.ErrTxKind, 1, 1}, // the wait that is told
	} {
		waits = 0
		var told []time.Duration
		var why error
		msg := message.NewMessage(name, nil)
		if test.signed {
			msg.SetContext(core.WithOwnBackoff(t.Context(), msg, func(wait time.Duration, err error) {
				told, why = append(told, wait), err
			}))
		}
		_, err := mw(func(*message.Message) ([]*message.Message, error) { return nil, test.err })(msg)
		if !errors.Is(err, test.err) {
			t.Errorf("%s: %v", name, err)
		}
		if waits != test.waits || len(told) != test.told {
			t.Errorf("%s: waited %d times, want %d; told %v, want %d", name, waits, test.waits, told, test.told)
		}
		if test.signed && !errors.Is(why, test.err) {
			t.Errorf("%s: told of %v", name, why)
		}
		if name == "of ours" && len(told) == 1 && told[0] != 0 {
			t.Errorf("told to wait %s, which the handler did not ask for", told[0])
		}
		if name == "later" && len(told) == 1 && told[0] != time.Hour {
			t.Errorf("told to wait %s", told[0])
		}
	}
}
