package inbound

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// Verdict is how a delivery ended.
type Verdict int

const (
	Withdrawn Verdict = iota // it was not handed out, or its ack is no longer awaited
	Acked
	Nacked
)

// Deliverer is the channel of a subscription: it hands out messages and waits for their outcomes. It is safe for
// concurrent use. Make it with NewDeliverer.
type Deliverer[R any] struct {
	Codec[R]
	ctx      context.Context // of the subscription
	source   *core.Source
	messages chan *message.Message
	lines    trouble.RateLimit

	mu       sync.Mutex
	closed   bool
	offering sync.WaitGroup // senders to messages
}

// NewDeliverer makes the channel of a subscription, which ends with ctx. Its messages carry the source.
func NewDeliverer[R any](
	ctx context.Context, source *core.Source, key func(R) []byte, unmarshal func(R) (*message.Message, error),
) *Deliverer[R] {
	return &Deliverer[R]{Codec: Codec[R]{key, unmarshal}, ctx: ctx, source: source, messages: make(chan *message.Message)}
}

// Messages is the channel.
func (o *Deliverer[R]) Messages() chan *message.Message { return o.messages }

// Delivery is a delivery of a record.
type Delivery[R any] struct {
	Record   R               // a copy, so that changes by a handler are not delivered again
	Unkeyed  bool            // Key panicked
	Context  context.Context // of the message
	Logger   watermill.LoggerAdapter
	From     core.Consumed
	Position watermill.LogFields
	// Stopping is closed when nothing more is handed out, Abandoned when acks are no longer awaited. Nil means never.
	Stopping, Abandoned <-chan struct{}
}

// Outcome is the outcome of a delivery.
type Outcome struct {
	Verdict Verdict
	Later   time.Duration // time for which the handler wants its key to wait after a nack; 0 = unspecified
	Cause   error         // of a nack, if known
}

// Deliver hands a message out and waits for its ack.
func (o *Deliverer[R]) Deliver(d Delivery[R]) Outcome {
	if d.Unkeyed {
		if _, err := o.KeyOf(d.Record); err != nil {
			o.unreadable(d, "key", err, func(err error, fields watermill.LogFields) {
				// Cause: a bug of SubscriberConfig.Key.
				d.Logger.Error("panic in Key: the message has no known order, "+
					"so it blocks its Kafka key or its subject and is retried: fix Key", err, fields)
			})
			return Outcome{Verdict: Nacked, Cause: err}
		}
	}
	msg, err := o.message(d.Record)
	if err != nil {
		o.unreadable(d, "message", err, func(err error, fields watermill.LogFields) {
			// Cause: another producer, or another format.
			d.Logger.Error("message could not be unmarshalled: its key is blocked and it is retried: "+
				"fix the Unmarshaler, or let it return a message that the handler can declare poison", err, fields)
		})
		return Outcome{Verdict: Nacked, Cause: err}
	}
	ctx, cancel := context.WithCancel(core.WithConsumed(core.WithSource(d.Context, o.source), d.From))
	defer cancel()
	var nacked atomic.Pointer[Outcome]
	nacked.Store(&Outcome{Verdict: Nacked})
	msg.SetContext(core.WithOwnBackoff(ctx, msg, func(wait time.Duration, err error) {
		nacked.Store(&Outcome{Nacked, wait, err})
	}))
	if !o.offer(msg, d.Stopping) {
		return Outcome{}
	}
	select {
	case <-msg.Acked():
		return Outcome{Verdict: Acked}
	case <-msg.Nacked():
		return *nacked.Load()
	case <-d.Abandoned:
		return Outcome{}
	}
}

// offer waits until a handler takes the message, and says whether one did. None may after stopping, which may
// have come while the Unmarshaler was at work, nor when the subscription ends, of which a reader that hangs in Key does
// not learn.
func (o *Deliverer[R]) offer(msg *message.Message, stopping <-chan struct{}) bool {
	if !o.begin() {
		return false
	}
	defer o.offering.Done()
	select {
	case <-stopping:
		return false
	default:
	}
	select {
	case o.messages <- msg:
		return true
	case <-stopping:
	case <-o.ctx.Done():
	}
	return false
}

// begin says whether a message may be offered; then offering.Done is to be called at the end of that. It is not
// for the whole of a delivery: one that hangs in the Unmarshaler would hang Close.
func (o *Deliverer[R]) begin() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.offering.Add(1)
	}
	return !o.closed
}

// Close closes the channel when there is no sender any more. The subscription is over.
func (o *Deliverer[R]) Close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.offering.Wait()
	close(o.messages)
}

// unreadable reports a message that reaches no handler. A decoder's error may quote the input.
func (o *Deliverer[R]) unreadable(d Delivery[R], what string, err error, tell func(error, watermill.LogFields)) {
	err = errors.New(text.WithoutQuotes(err))
	if o.lines.Allow(what) {
		tell(err, d.Position)
		return
	}
	d.Logger.Debug("message still cannot be read",
		d.Position.Add(watermill.LogFields{"what": what, "err": err.Error()}))
}
