package nats

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

// arrival is a message with the time at which its pull was sent.
type arrival struct {
	msg  *natsgo.Msg
	sent time.Time
}

// reader pulls from a consumer, as its owner or as a standby. One goroutine uses it.
type reader struct {
	*subscription
	conn *natsgo.Conn
	from *source

	term   *term // nil if another process is the owner, or no message has arrived
	gone   error // set when the consumer no longer exists
	in     chan arrival
	pulled chan pull
	// descriptions holds one description at a time.
	descriptions chan description
	results      chan result

	pulling, keeping, describing bool // a request is in flight
	check                        bool // no pulls until the consumer has been described
	requests                     sync.WaitGroup
	life                         context.Context
	end                          context.CancelFunc

	stopping    chan struct{} // closed when nothing more may be delivered
	stopped     bool
	grace       <-chan time.Time
	reported    time.Time
	refused     time.Time // since when pulls fail; zero = the last one succeeded
	describedAt time.Time // end of the last request for the consumer's description
	behind      uint64    // messages not delivered or not acked, according to the last description
}

func newReader(s *subscription, conn *natsgo.Conn, from *source) *reader {
	r := &reader{
		subscription: s, conn: conn, from: from,
		in: make(chan arrival), pulled: make(chan pull), descriptions: make(chan description), results: make(chan result),
		stopping: make(chan struct{}),
	}
	r.life, r.end = context.WithCancel(context.Background())
	return r
}

// run returns when the context and the handlers have ended, or when the consumer no longer exists.
func (r *reader) run() error {
	defer r.requests.Wait()
	defer r.end()
	defer r.leave()
	tick := r.cfg.AckWait / 20
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	due := time.NewTimer(time.Hour)
	defer due.Stop()
	closing := r.subscription.ctx.Done()
	for r.gone == nil && (!r.stopped || r.pulling || r.term != nil && r.term.running > 0) {
		r.pull()
		if t := r.term; t != nil {
			t.start()
			if next, held := t.window.Due(); held && !r.stopped {
				due.Reset(time.Until(next))
			}
		}
		select {
		case a := <-r.in:
			r.take(a)
		case p := <-r.pulled:
			r.ended(p)
		case a := <-r.descriptions:
			r.described(a)
		case res := <-r.results:
			if res.term == r.term {
				r.term.settle(res)
			}
		case <-due.C:
		case <-ticker.C:
			r.onTick()
		case <-closing:
			closing = nil
			r.stopped = true
			close(r.stopping)
			r.grace = time.After(r.cfg.CloseTimeout)
		case <-r.grace:
			if r.term != nil && r.term.running > 0 {
				// Cause: handlers were too slow.
				// Cure: an inbox skips the duplicates.
				r.logger.Error("handlers did not end in time: their messages are delivered again: "+
					"raise CloseTimeout, or make them faster", context.DeadlineExceeded,
					watermill.LogFields{"handlers": r.term.running})
			}
			return nil
		}
	}
	return r.gone
}

// pull requests messages, or only shows that the owner is alive if none fit.
func (r *reader) pull() {
	if r.pulling || r.keeping || r.check {
		return
	}
	t := r.term
	switch {
	case t != nil && (r.stopped || t.whole && t.exhausted):
		r.keeping = true
		wait := r.from.expires
		r.requests.Go(func() { r.keepAlive(wait, t.pin) })
	case !r.stopped:
		r.pulling = true
		pin := ""
		if t != nil {
			pin = t.pin
		}
		batch, wait := r.from.batch, r.from.expires
		r.requests.Go(func() { r.pullMessages(batch, wait, pin) })
	}
}

// take handles an arrived message: the first one of a pin makes this process the owner.
func (r *reader) take(a arrival) {
	meta, err := a.msg.Metadata()
	if err != nil {
		r.logger.Debug("message without JetStream metadata", watermill.LogFields{"err": err.Error()})
		return
	}
	// The server's pin follows any pin set by a producer. A message with a malformed header has no pin.
	pin := ""
	if pins := a.msg.Header.Values(pinHeader); len(pins) > 0 {
		pin = pins[len(pins)-1]
	}
	if r.term != nil && !r.term.owns(pin, meta) {
		r.lose()
	}
	if r.term == nil {
		r.term = newTerm(r, pin)
		r.logger.Debug("this process is the owner of the consumer", nil)
	}
	r.term.renew(a.sent)
	r.term.take(a.msg, meta)
	if !r.term.whole {
		r.describe()
	}
}

// ended handles the end of a pull. A pull without an error has reached the server, and extends the lease from the time
// it was sent.
func (r *reader) ended(p pull) {
	if p.keep {
		r.keeping = false
	} else {
		r.pulling = false
	}
	switch {
	case errors.Is(p.err, jetstream.ErrPinIDMismatch):
		r.lose()
	case p.err != nil && !r.stopped:
		r.logger.Debug("a pull failed", watermill.LogFields{"err": text.OfError(p.err)})
		r.failed(p)
		r.describe() // the consumer may have been deleted or have new limits
	case p.err == nil:
		if r.refused = (time.Time{}); r.term != nil {
			r.term.renew(p.sent)
		}
	}
	if r.term != nil && !r.term.whole && !r.stopped {
		r.check = true
		r.describe()
	}
}

// failed logs, at most once a minute, that nothing is read because no pull has succeeded for an AckWait.
func (r *reader) failed(p pull) {
	if r.refused.IsZero() {
		r.refused = p.sent
	}
	if time.Since(r.refused) < r.cfg.AckWait || !r.lines.Allow("pull") {
		return
	}
	// Cause: a limit such as MaxWaiting, or the server does not respond.
	// Cure: raise it with nats consumer edit.
	r.logger.Error("pulls from the consumer fail, and nothing is read: raise the limit of the consumer that the error "+
		"names, or check the server", p.err, watermill.LogFields{"failing_since": r.refused})
}

// described handles a description of the consumer.
func (r *reader) described(a description) {
	r.describing, r.describedAt = false, time.Now()
	r.stall.result(a.requestedAt, a.err)
	if errors.Is(a.err, jetstream.ErrConsumerNotFound) || errors.Is(a.err, jetstream.ErrStreamNotFound) ||
		errors.Is(a.err, jetstream.ErrConsumerDeleted) {
		r.gone = a.err
		return
	}
	if a.err != nil {
		if r.check = r.check && !a.idle; r.check {
			r.describe()
		}
		r.told.Report(a.err)
		return
	}
	if r.gone = usable(a.info.Config, r.from.want); r.gone != nil {
		r.gone = fmt.Errorf("consumer %s: %w", r.durable, r.gone)
		return
	}
	r.from.bound(a.info.Config, r.cfg.pullWait())
	r.told.Report(nil)
	r.behind = a.info.NumPending + uint64(max(a.info.NumAckPending, 0))
	if t := r.term; t != nil && !t.whole {
		t.compare(a.info)
	}
	if r.check = r.check && !a.idle; r.check {
		r.describe()
	}
}

// onTick does periodic work.
func (r *reader) onTick() {
	t := r.term
	if t != nil {
		t.ackAgain()
		t.touch()
		if !t.whole {
			r.describe()
		}
	}
	now := time.Now()
	if now.Sub(r.describedAt) >= r.cfg.AckWait/2 { // an operator may have changed the consumer
		r.describe()
	}
	if now.Sub(r.reported) >= time.Second {
		r.reported = now
		r.report()
		if t != nil && (r.reports.Wanted() || !t.pause.Since.IsZero()) {
			r.describe()
		}
	}
}

// lose discards everything in memory, because another process owns the consumer, or may own it, and gets the messages.
func (r *reader) lose() {
	if r.term == nil {
		return
	}
	r.logger.Info("the consumer is no longer owned by this process: messages in memory are left to the next owner",
		watermill.LogFields{"messages": len(r.term.held)})
	close(r.term.abandoned)
	r.term = nil
	r.check = false
	r.reportGone()
}

// leave returns messages that no handler has, waits for the server to confirm the acks, and lets a standby take over
// immediately.
func (r *reader) leave() {
	t := r.term
	if t == nil {
		return
	}
	close(t.abandoned)
	r.term = nil
	r.reportGone()
	if r.gone != nil || !t.valid() {
		return
	}
	t.ackAgain()
	t.handBack()
	ctx, cancel := context.WithTimeout(context.Background(), consumerTimeout)
	defer cancel()
	if err := r.conn.FlushWithContext(ctx); err != nil {
		r.logger.Debug("the server did not confirm acks", watermill.LogFields{"err": err.Error()})
		return
	}
	info, err := r.from.consumer.Info(ctx)
	if err != nil || pinned(info) != t.pin {
		return
	}
	if err := r.from.stream.UnpinConsumer(ctx, r.durable, group); err != nil {
		r.logger.Debug("the consumer was not handed over", watermill.LogFields{"err": err.Error()})
	}
}

// pinned returns the owner's id.
func pinned(info *jetstream.ConsumerInfo) string {
	for _, g := range info.PriorityGroups {
		if g.Group == group {
			return g.PinnedClientID
		}
	}
	return ""
}
