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
	uuid     string         // of the message
	delivery *core.Delivery // the message comes from the outbox, else nil
	relay    bool           // to a handler that passes messages on
	work     core.Work      // the message is claimed from the durable queue, else nil
	// later reports to the subscriber why the message failed and how long to delay it; nil = the subscriber does not wait
	// after a nack.
	later func(wait time.Duration, err error)

	started  time.Time
	ended    atomic.Bool
	inTx     bool // a Tx is around
	attempts int  // started by Tx

	attemptState // of the current attempt
}

// attemptState is the state of one attempt, which Tx clears before each.
type attemptState struct {
	claim      *claim // nil until Inbox has looked the message up
	acked      bool   // the message was marked done in the transaction
	duplicate  bool
	rolledBack bool
	unfinished error    // the error of Tx when the handler panicked
	begun      bool     // TxConfig.OnBegin has returned nil
	calling    callback // what is being called, or has failed, before the handler
}

// callback is a function of the configuration that is called before the handler.
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

// isLast reports whether a failure is the last one of a message with a row in the outbox or the queue.
func (h *handling) isLast() bool {
	return h.work != nil && h.work.Last() || h.delivery != nil && h.delivery.Last
}

// note reports to our own subscriber why the message failed, and the wait if no attempt counts, else 0. A nack follows.
func (h *handling) note(wait time.Duration, err error) {
	switch {
	case h.work != nil:
		h.work.Note(asLater(err, wait))
	case h.later != nil:
		h.later(wait, err)
	}
}

// handlingOf returns the handling of an outer middleware, and the context to continue with. If no handling exists it
// begins one, and outermost is true: the caller must end it.
func handlingOf(msg *message.Message) (_ context.Context, h *handling, outermost bool) {
	if h := currentHandling(msg); h != nil {
		return msg.Context(), h, false
	}
	h = &handling{started: time.Now(), uuid: msg.UUID, later: core.OwnBackoff(msg)}
	if h.delivery, h.relay = core.DeliveryOf(msg); !h.relay {
		core.DropHeaders(msg) // a message from outside must not command a broker, wherever the handler copies it
	}
	ctx, work := core.TakeWork(msg)
	h.work = work
	ctx, h.tree = core.TreeOf(core.BindDelivery(ctx, msg))
	return context.WithValue(ctx, handlingKey{}, h), h, true
}

// currentHandling returns nil if the handling has ended, or belongs to another message, whose context was passed on
// when it was published within the process, to another handler or to this one. That handler may still be running, so
// only immutable fields are read. A middleware may have copied the message, so it is recognised by its UUID.
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

// isDelivered reports whether our own Subscriber delivered the message to this handler, and whether for a relay.
func isDelivered(msg *message.Message) (delivered, relay bool) {
	if h := currentHandling(msg); h != nil {
		return h.delivery != nil, h.relay
	}
	delivery, relay := core.DeliveryOf(msg)
	return delivery != nil, relay
}
