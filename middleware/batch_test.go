package middleware

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// TestBatchReportsWhatNeverBegan: our own subscribers learn that a message left before its batch began, so that they
// count no attempt.
func TestBatchReportsWhatNeverBegan(t *testing.T) {
	db := unreachable(t)
	synctest.Test(t, func(t *testing.T) {
		handle, err := Batch(db, BatchConfig{
			Service: "shop", Inbox: InboxConfig{Consumer: "test"}, MaxWait: 2 * time.Minute,
		}, func(context.Context, []*message.Message) error { return nil }, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var reported error
		msg := message.NewMessage("1", nil)
		msg.SetContext(core.WithOwnBackoff(ctx, msg, func(_ time.Duration, err error) { reported = err }))
		if err := handle(msg); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if !errors.Is(reported, core.ErrNotBegun) {
			t.Errorf("reported %v", reported)
		}
		time.Sleep(2 * time.Minute) // the batch that it left
	})
}

// expired has a deadline that is over, as a message's context has after a long halving.
type expired struct{ context.Context }

func (expired) Deadline() (time.Time, bool) { return time.Unix(1, 0), true }

// TestBatchWithoutDeadlines: the deadline of a message does not limit its attempt alone after a batch. It would end
// before BEGIN, and the message would fail forever without a counted attempt.
func TestBatchWithoutDeadlines(t *testing.T) {
	handle, err := Batch(unreachable(t), BatchConfig{
		Service: "shop", Inbox: InboxConfig{Consumer: "test"},
		ErrorHandler: ErrorHandlerConfig{Backoff: outbox.Backoff{Initial: -1}},
	}, func(context.Context, []*message.Message) error { return nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	msg := message.NewMessage("1", nil)
	msg.SetContext(expired{t.Context()})
	if err := handle(msg); !errors.Is(err, core.ErrNotBegun) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("BEGIN was not tried: %v", err)
	}
}
