package kafka

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/inbound"
	"github.com/millrace-go/watermill-outbox/internal/keyed"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
	"github.com/millrace-go/watermill-outbox/schema"
)

// idleLook is how often the table is looked at while nothing is known to be parked, and how long what reads it stays
// when it is empty. A frozen process may store long after its key has left, and no such row may outlive the inbox's
// memory of the message.
const idleLook = time.Minute

// runToTheEnd is run, but does not wait for a database that hangs: what is left of it ends by itself.
func (l *lot) runToTheEnd() {
	if !inbound.Until(l.ctx, l.subscription.cfg.CloseTimeout+leaveTimeout, l.run) {
		// Cause: the database does not answer while a subscription ends.
		// Cure: none is needed: another process delivers what is parked when the lease of this one has expired.
		l.logger.Error("the database did not answer at the end of the subscription: what is parked is delivered when "+
			"the lease of this process has expired", context.DeadlineExceeded, nil)
	}
}

// run delivers what is parked until the subscription ends. While nothing is, it only looks each minute.
func (l *lot) run() {
	// Cause: the database cannot be reached, or the role may not use the tables of the park.
	// Cure: fix what the error names.
	told := trouble.Log{Logger: l.logger, What: "reading parked messages"}
	ticker := time.NewTicker(idleLook)
	defer ticker.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case <-l.wake:
			err := l.read()
			told.Tell(err)
			if err != nil {
				l.rouse()
				core.Pause(l.ctx, time.Second)
			}
		case <-ticker.C:
			piles, err := l.piles(l.ctx)
			if len(piles) > 0 {
				l.rouse()
			}
			if text.SQLState(err) != undefined { // no partition was claimed yet
				told.Tell(err)
			}
		}
	}
}

// read delivers what is parked until nothing has been for a minute.
func (l *lot) read() error {
	ctx, cancel := context.WithCancel(l.ctx)
	defer cancel()
	all := l.subscription.cfg
	// They may have been made by an older version.
	if _, err := schema.Migrate(ctx, l.db, schema.MigrateConfig{SkipConcurrent: true}); err != nil {
		return err
	}
	sub, err := forwarder.NewSubscriber(l.db, forwarder.SubscriberConfig{
		Name: "parked " + l.scope, Concurrency: keyed.Retries(all.Concurrency), CloseTimeout: all.CloseTimeout,
		Backoff:     outbox.Backoff(all.Backoff),
		MaxAttempts: -1, // middleware.Outcomes alone decides on death, as for all messages
		Retention:   -1,
	}, l.logger)
	if err != nil {
		return err
	}
	defer func() { // it waits for acks, but for no Unmarshaler that hangs
		cancel()
		_ = sub.Close()
	}()
	rows, err := sub.Subscribe(ctx, l.scope)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(idleLook)
	defer ticker.Stop()
	for {
		select {
		case row, open := <-rows:
			if !open {
				return nil
			}
			go l.deliver(row)
		case <-l.ctx.Done():
			return nil
		case <-ticker.C:
			select {
			case <-l.wake: // something was stored
			default:
				if piles, err := l.piles(ctx); err == nil && len(piles) == 0 {
					return nil
				}
			}
		}
	}
}

// deliver hands out one row, as one of the messages that failed before. Its places are for those whose time has come.
func (l *lot) deliver(row *message.Message) {
	rec, err := decode(row.Payload)
	if err != nil {
		if l.lines.Due("parked") {
			// Cause: a row of the park was changed, or was not written by this library.
			// Cure: look at it with outboxctl, and delete it.
			l.logger.Error("parked message could not be read: it is retried", err, watermill.LogFields{"uuid": row.UUID})
		}
		core.NackFor(row, err, 0)
		return
	}
	if wait := rec.waits(row, time.Now()); wait > 0 {
		core.NackFor(row, errAskedFor, wait)
		return
	}
	for _, of := range []chan struct{}{l.retries, l.places} { // in this order: what waits for a place has its permit
		select {
		case of <- struct{}{}:
			defer func() { <-of }()
		case <-l.ctx.Done():
			row.Nack()
			return
		}
	}
	abandoned, done := l.atClose()
	defer done()
	if out := l.hand(rec, l.logger, l.ctx.Done(), abandoned); out.Verdict == inbound.Acked {
		row.Ack()
	} else {
		core.NackFor(row, out.Cause, out.Later) // the cause is what operators see
	}
}

// errAskedFor is the last error of a row until it is first handed out.
//
// Cause: the handler returned outbox.RetryAfter before the message was parked.
// Cure: none is needed: the message is delivered at the time that the handler asked for.
var errAskedFor = errors.New("its handler asked for a later retry before it was parked")

// waits is how long a row must still wait as its handler asked before it was parked. A delay of the row would let the
// others of its key go; a nack blocks them. From the first one on the database knows the time, which operators may
// change.
func (r record) waits(row *message.Message, now time.Time) time.Duration {
	if d, _ := core.DeliveryFrom(row.Context()); d.Attempt > 1 || r.notBefore.IsZero() {
		return 0
	}
	return r.notBefore.Sub(now)
}

// atClose returns what is closed CloseTimeout after the subscription's end.
func (l *lot) atClose() (over <-chan struct{}, done func()) {
	ctx, cancel := context.WithCancel(context.Background())
	stop := context.AfterFunc(l.ctx, func() {
		core.Pause(ctx, l.subscription.cfg.CloseTimeout)
		cancel()
	})
	return ctx.Done(), func() {
		stop()
		cancel()
	}
}
