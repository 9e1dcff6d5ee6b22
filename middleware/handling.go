package middleware

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
)

type handlingKey struct{}

// handling is what the middlewares around one delivery of a message tell each other. It lives in the context;
// one goroutine uses it.
type handling struct {
	handler, topic string // where a Router delivered the message to

	begun time.Time
	ended bool
	inTx  bool // a Tx is around

	// What the current attempt came to.
	claim      *claim // nil until Inbox has asked for the message
	duplicate  bool
	rolledBack bool
}

var errPanicked = errors.New("the handler panicked")

// handlingOf returns the handling that a middleware outside began. If there is none it begins one, and
// outermost is true: the caller must end it.
func handlingOf(ctx context.Context) (_ context.Context, h *handling, outermost bool) {
	if h := currentHandling(ctx); h != nil {
		return ctx, h, false
	}
	h = &handling{
		begun: time.Now(), handler: message.HandlerNameFromCtx(ctx), topic: message.SubscribeTopicFromCtx(ctx),
	}
	return context.WithValue(ctx, handlingKey{}, h), h, true
}

// currentHandling returns nil for one that has ended, or is another handler's: its context came along with a
// message that was published within the process. That handler may be at work, so of its handling only what never
// changes is looked at.
func currentHandling(ctx context.Context) *handling {
	h, _ := ctx.Value(handlingKey{}).(*handling)
	if h == nil || h.handler != message.HandlerNameFromCtx(ctx) || h.topic != message.SubscribeTopicFromCtx(ctx) || h.ended {
		return nil
	}
	return h
}

// newAttempt forgets what an attempt that was rolled back came to.
func (h *handling) newAttempt() {
	h.claim, h.duplicate, h.rolledBack = nil, false, false
}

func (h *handling) outcome(err error) Outcome {
	switch {
	case err != nil:
		return Failed
	case h.duplicate:
		return Duplicate
	case h.rolledBack:
		return RolledBack
	}
	return Processed
}

// onItsWayOut says whether the message was read from our own outbox, and so is, unless the
// configuration says otherwise, being forwarded rather than processed.
func onItsWayOut(ctx context.Context, processDelivered bool) bool {
	_, delivered := outbox.DeliveryFromContext(ctx)
	return delivered && !processDelivered
}
