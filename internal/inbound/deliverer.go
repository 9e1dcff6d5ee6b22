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

// Verdict is the result of a delivery.
type Verdict int

const (
	Withdrawn Verdict = iota // not delivered, or abandoned before its ack
	Acked
	Nacked
)

// Deliverer is the channel of a subscription: it delivers messages and waits for their outcomes. It is safe for
// concurrent use. Create it with NewDeliverer.
type Deliverer[R any] struct {
	Codec[R]
	ctx      context.Context // of the subscription
	source   *core.Source
	messages chan *message.Message
	lines    trouble.RateLimit

	mu       sync.Mutex
	closed   bool
	offering sync.WaitGroup // goroutines that send to messages
}

// NewDeliverer creates the channel of a subscription, which ends with ctx. Its messages carry the source.
func NewDeliverer[R any](
	ctx context.Context, source *core.Source, key func(R) []byte, unmarshal func(R) (*message.Message, error),
) *Deliverer[R] {
	return &Deliverer[R]{Codec: Codec[R]{key, unmarshal}, ctx: ctx, source: source, messages: make(chan *message.Message)}
}

// Messages returns the channel.
func (o *Deliverer[R]) Messages() chan *message.Message { return o.messages }

// Delivery is a delivery of a record.
type Delivery[R any] struct {
	Record   R               // a copy, so that a handler's changes are not delivered again
	Unkeyed  bool            // Key panicked
	Context  context.Context // of the message
	Logger   watermill.LoggerAdapter
	From     core.Consumed
	Position watermill.LogFields
	// Stopping is closed when nothing more may be delivered, Abandoned when acks are no longer awaited. nil means never.
	Stopping, Abandoned <-chan struct{}
}

// Outcome is the outcome of a delivery.
type Outcome struct {
	Verdict Verdict
	Later   time.Duration // wait of the key that the handler requested after a nack; 0 = none
	Cause   error         // reason of a nack, if known
}

// Deliver delivers a message and waits for its ack.
func (o *Deliverer[R]) Deliver(d Delivery[R]) Outcome {
	if d.Unkeyed {
		if _, err := o.KeyOf(d.Record); err != nil {
			return o.unreadable(d, "key", err, func(err error, fields watermill.LogFields) {
				// Cause: a bug of SubscriberConfig.Key.
				d.Logger.Error("panic in Key: the message has no known order, "+
					"so it blocks its Kafka key or its subject and is retried: fix Key", err, fields)
			})
		}
	}
	msg, err := o.message(d.Record)
	if err != nil {
		return o.unreadable(d, "message", err, func(err error, fields watermill.LogFields) {
			// Cause: another producer, or another format.
			d.Logger.Error("message could not be unmarshalled: its key is blocked and it is retried: "+
				"fix the Unmarshaler, or let it return a message that the handler can declare poison", err, fields)
		})
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

// offer waits until a handler takes the message, and reports whether one did. No handler may take it after stopping is
// closed, even while the Unmarshaler is running, or after the end of the subscription, which a reader that hangs in Key
// does not notice.
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

// begin reports whether a message may be offered; then offering.Done must be called after the offer. It does not cover
// the whole delivery: otherwise an Unmarshaler that hangs would hang Close.
func (o *Deliverer[R]) begin() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.offering.Add(1)
	}
	return !o.closed
}

// Close closes the channel after its senders have ended. The subscription must have ended.
func (o *Deliverer[R]) Close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.offering.Wait()
	close(o.messages)
}

// unreadable logs a message that reaches no handler, and returns its outcome. A decoder's error may quote the input.
func (o *Deliverer[R]) unreadable(
	d Delivery[R], what string, err error, log func(error, watermill.LogFields),
) Outcome {
	err = errors.New(text.WithoutQuotes(err))
	if o.lines.Allow(what) {
		log(err, d.Position)
	} else {
		d.Logger.Debug("message still cannot be read",
			d.Position.Add(watermill.LogFields{"what": what, "err": err.Error()}))
	}
	return Outcome{Verdict: Nacked, Cause: err}
}
