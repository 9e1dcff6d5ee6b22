package nats

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	natsgo "github.com/nats-io/nats.go"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// verdict says how a delivery ended.
type verdict int

const (
	withdrawn verdict = iota // it was not handed out
	acked
	nacked
)

// result is what became of a delivery.
type result struct {
	term    *term
	item    *item
	again   bool // it failed before
	verdict verdict
	later   time.Duration // how long the handler wants its key to wait; 0 = it did not say
}

// deliver hands one message out and waits for its ack.
func (t *term) deliver(it *item, rec record, again bool) {
	defer t.delivering.Done()
	r := result{term: t, item: it, again: again}
	r.verdict, r.later = t.hand(rec, it.Pos)
	select {
	case t.results <- r:
	case <-t.abandoned:
	case <-t.life.Done():
	}
}

// hand makes a new message for each delivery, so that nothing which a handler did to it is delivered again.
func (t *term) hand(rec record, pos int64) (verdict, time.Duration) {
	if rec.unkey != nil {
		if _, err := t.cfg.keyOf(rec.msg); err != nil {
			t.unreadable("key", err, pos, func(err error, fields watermill.LogFields) {
				// Cause: a bug of SubscriberConfig.Key.
				t.logger.Error("panic in Key: the message has no known order, so it blocks its subject and is retried: "+
					"fix Key", err, fields)
			})
			return nacked, 0
		}
	}
	msg, err := t.cfg.unmarshal(cloned(rec.msg))
	if err != nil {
		t.unreadable("message", err, pos, func(err error, fields watermill.LogFields) {
			// Cause: the message was written by another producer, or in another format, than the Unmarshaler reads.
			t.logger.Error("message could not be unmarshalled: its key is blocked and it is retried: "+
				"fix the Unmarshaler, or let it return what the handler can declare poison", err, fields)
		})
		return nacked, 0
	}
	ctx, cancel := context.WithCancel(t.subscription.ctx)
	defer cancel()
	var later atomic.Int64
	msg.SetContext(core.WithOwnBackoff(ctx, msg, func(wait time.Duration, _ error) { later.Store(int64(wait)) }))
	select {
	case t.messages <- msg:
	case <-t.stopping:
		return withdrawn, 0
	case <-t.abandoned:
		return withdrawn, 0
	}
	select {
	case <-msg.Acked():
		return acked, 0
	case <-msg.Nacked():
		return nacked, time.Duration(later.Load())
	case <-t.abandoned:
		return withdrawn, 0
	}
}

// unreadable tells of a message that reaches no handler. An error of a decoder may quote what it read.
func (t *term) unreadable(what string, err error, pos int64, tell func(error, watermill.LogFields)) {
	err = errors.New(text.WithoutQuotes(err))
	fields := watermill.LogFields{"stream_seq": pos}
	if t.lines.Due(what) {
		tell(err, fields)
		return
	}
	t.logger.Debug("message still cannot be read", fields.Add(watermill.LogFields{"what": what, "err": err.Error()}))
}

func cloned(msg *natsgo.Msg) *natsgo.Msg {
	c := natsgo.NewMsg(msg.Subject)
	c.Data = slices.Clone(msg.Data)
	for name, values := range msg.Header {
		c.Header[name] = slices.Clone(values)
	}
	return c
}
