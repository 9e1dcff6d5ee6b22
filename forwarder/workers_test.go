package forwarder

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// An error that comes after the call's context ended for its time-out is that of the time-out, whoever waits for the
// call. It may be told before the timer has told of it.
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
			w := &worker{
				e: e, call: &board.Call{Row: &board.Row{Metadata: []byte("{}")}}, next: &callContext{base: context.Background()},
			}
			w.next.over(ErrPublishTimeout)
			w.publish()
			if w.result.Verdict != board.Permanent || judged == nil ||
				judged.Error() != "forwarder: publish timed out after 1s" || !errors.Is(judged, ErrPublishTimeout) {
				t.Errorf("%v: %v", w.result.Verdict, judged)
			}
		})
	}
}
