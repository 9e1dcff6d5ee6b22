package middleware

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/observe"
)

type handlingKey struct{}

// handling is the state that the middlewares around one delivery of a message share. It lives in the context; one
// goroutine uses it.
type handling struct {
	tree     core.Tree
	uuid     string
	delivery *core.Delivery // nil unless the message comes from the outbox
	work     core.Work      // nil unless the message is claimed from the durable queue
	// later tells the subscriber why the message failed and how long to delay it; nil if the subscriber does not wait
	// after a nack.
	later func(wait time.Duration, err error)

	started  time.Time
	ended    atomic.Bool
	inTx     bool // inside a Tx
	attempts int  // by Tx

	attemptState
}

// attemptState is the state of one attempt, cleared by Tx before each.
type attemptState struct {
	claim      *claim // nil until Inbox has looked the message up
	acked      bool   // the message was marked done in the transaction
	duplicate  bool
	rolledBack bool
	unfinished error    // the error of Tx when the handler panicked
	begun      bool     // TxConfig.OnBegin returned nil
	calling    callback // the callback that is running or failed before the handler
}

// callback is a configured function that runs before the handler.
type callback int

const (
	noCallback callback = iota
	onBegin             // TxConfig.OnBegin, which may also have spoiled the transaction for Inbox
	inboxKey            // InboxConfig.Key
	onMismatch          // InboxConfig.OnMismatch
)

// Cause: the stack is in the log.
// Cure: fix the handler.
var errPanicked = errors.New("the handler panicked")

// panicked returns the error that represents a panic.
func (h *handling) panicked() error {
	if errors.Is(h.unfinished, outbox.ErrTxEnded) {
		return fmt.Errorf("%w: %w", errPanicked, outbox.ErrTxEnded)
	}
	return errPanicked
}

// isLast reports whether another failure makes a message of the outbox or the queue dead.
func (h *handling) isLast() bool {
	return h.work != nil && h.work.Last() || h.delivery != nil && h.delivery.Last
}

// setFailure gives our own subscriber the error of the attempt and the time to wait, or 0 if the attempt counts. A nack
// follows.
func (h *handling) setFailure(wait time.Duration, err error) {
	switch {
	case h.work != nil:
		h.work.SetFailure(asLater(err, wait))
	case h.later != nil:
		h.later(wait, err)
	}
}

// handlingOf returns the handling of an outer middleware, and the context to continue with. If there is no outer one,
// it begins a handling and returns outermost = true: the caller must end it.
func handlingOf(msg *message.Message) (_ context.Context, h *handling, outermost bool) {
	if h := currentHandling(msg); h != nil {
		return msg.Context(), h, false
	}
	h = &handling{started: time.Now(), uuid: msg.UUID, later: core.OwnBackoff(msg)}
	h.delivery = core.DeliveryOf(msg)
	core.DropHeaders(msg) // an external message must not command a broker, wherever the handler copies its metadata
	ctx, work := core.TakeWork(msg)
	h.work = work
	ctx, h.tree = core.TreeOf(core.BindDelivery(ctx, msg))
	return context.WithValue(ctx, handlingKey{}, h), h, true
}

// currentHandling returns nil if the handling has ended or belongs to another message: an in-process Pub/Sub passes the
// context of a handled message on with what is published. The other handler may still be running, so only immutable
// fields are read. A middleware may have copied the message, so it is recognised by its UUID.
func currentHandling(msg *message.Message) *handling {
	h, _ := msg.Context().Value(handlingKey{}).(*handling)
	if h == nil || h.uuid != msg.UUID || !h.tree.Has(msg.Context()) || h.ended.Load() {
		return nil
	}
	return h
}

func (h *handling) outcome(err error) observe.Outcome {
	switch later := new(core.RetryAfterError); {
	case uncharged(err) && errors.As(err, &later):
		return observe.Postponed
	case err != nil:
		return observe.Failed
	case h.duplicate:
		return observe.Duplicate
	case h.rolledBack:
		return observe.RolledBack
	}
	return observe.Processed
}

// isDelivered reports whether our own Subscriber delivered the message to this handler.
func isDelivered(msg *message.Message) bool {
	if h := currentHandling(msg); h != nil {
		return h.delivery != nil
	}
	return core.DeliveryOf(msg) != nil
}
