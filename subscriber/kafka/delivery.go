package kafka

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// verdict says how a delivery ended.
type verdict int

const (
	withdrawn verdict = iota // the partition was taken away
	acked
	nacked
)

// result is what became of a delivery.
type result struct {
	item    *item
	again   bool // it failed before
	verdict verdict
	later   time.Duration // how long the handler wants its key to wait; 0 = it did not say
	stored  string        // the key that was parked
}

// deliver hands one message out and waits for its ack.
func (p *partition) deliver(it *item, rec record, again bool) {
	r := result{item: it, again: again}
	r.verdict, r.later, _ = p.hand(rec, p.logger, p.stopping, p.abandoned)
	select {
	case p.results <- r:
	case <-p.abandoned:
		p.free(again)
	}
}

// free gives a place back, and the permit of a message that failed before.
func (p *partition) free(again bool) {
	<-p.places
	if again {
		<-p.retries
	}
}

// hand makes a new message for each delivery, so that nothing which a handler did to it is delivered again. Of a nack
// it also returns why, if that is known.
func (s *subscription) hand(
	rec record, logger watermill.LoggerAdapter, stopping, abandoned <-chan struct{},
) (v verdict, later time.Duration, cause error) {
	if rec.unkey != nil {
		if _, err := keyOf(s.cfg.Key, rec.msg); err != nil {
			s.unreadable(logger, "key", err, rec, func(err error, fields watermill.LogFields) {
				// Cause: a bug of SubscriberConfig.Key.
				logger.Error("panic in Key: the message has no known order, "+
					"so it blocks its Kafka key and is retried: fix Key", err, fields)
			})
			return nacked, 0, err
		}
	}
	copied := cloned(rec.msg)
	msg, err := s.cfg.unmarshal(copied)
	if err != nil {
		s.unreadable(logger, "message", err, rec, func(err error, fields watermill.LogFields) {
			// Cause: the message was written by another producer, or in another format, than the Unmarshaler reads.
			logger.Error("message could not be unmarshalled: its key is blocked and it is retried: "+
				"fix the Unmarshaler, or let it return what the handler can declare poison", err, fields)
		})
		return nacked, 0, err
	}
	ctx, cancel := context.WithCancel(recordContext{s.ctx, copied})
	defer cancel()
	type failure struct {
		later time.Duration
		cause error
	}
	var failed atomic.Pointer[failure]
	failed.Store(&failure{})
	msg.SetContext(core.WithOwnBackoff(ctx, msg, func(wait time.Duration, err error) {
		failed.Store(&failure{wait, err})
	}))
	if !s.offer(msg, stopping) {
		return withdrawn, 0, nil
	}
	select {
	case <-msg.Acked():
		return acked, 0, nil
	case <-msg.Nacked():
		f := failed.Load()
		return nacked, f.later, f.cause
	case <-abandoned:
		return withdrawn, 0, nil
	}
}

// offer waits until somebody takes the message, and says whether somebody did. Nobody may when the partition is being
// taken away, which may have come while the Unmarshaler was at work, nor when the subscription ends, of which a
// partition that hangs in SubscriberConfig.Key does not learn.
func (s *subscription) offer(msg *message.Message, stopping <-chan struct{}) bool {
	if !s.begin() {
		return false
	}
	defer s.offering.Done()
	select {
	case <-stopping:
		return false
	default:
	}
	select {
	case s.messages <- msg:
		return true
	case <-stopping:
	case <-s.ctx.Done():
	}
	return false
}

// unreadable tells of a message that reaches no handler. An error of a decoder may quote what it read.
func (s *subscription) unreadable(
	logger watermill.LoggerAdapter, what string, err error, rec record, tell func(error, watermill.LogFields),
) {
	err = errors.New(text.WithoutQuotes(err))
	fields := watermill.LogFields{"offset": rec.msg.Offset}
	if s.lines.Due(what) {
		tell(err, fields)
		return
	}
	logger.Debug("message still cannot be read", fields.Add(watermill.LogFields{"what": what, "err": err.Error()}))
}
