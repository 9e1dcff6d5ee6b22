package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/observe"
)

var (
	// Cause: ExpiresAt passed first.
	// Cure: set a later time, or handle messages sooner.
	errExpired = errors.New("expired")
	// Cause: the process died or lost its lease in the last attempt, or MaxAttempts was lowered.
	// Cure: the logs show why; then requeue.
	errExhausted = errors.New("no attempt is left")
)

// exhaustedBy returns why a message without attempts left is dead.
func exhaustedBy(msg *Message) error {
	if msg.LastError == "" {
		return errExhausted
	}
	return fmt.Errorf("%w: %s", errExhausted, msg.LastError)
}

const (
	// onDeadRetryWait is how long a message waits after OnDead failed for it, or its dead letter could not be written.
	onDeadRetryWait = time.Minute
	// onDeadCrashes is how many processes may die with a message that has no attempts left before OnDead is assumed to
	// kill them. If attempts are unlimited, the default number of attempts applies.
	onDeadCrashes = 3
)

// markDead calls OnDead and marks a message dead, both or neither. counted reports whether this attempt counts.
//
// OnDead may be slow, so it runs first: once the transaction has marked the message dead, calls that store a duplicate
// wait for it, and so do calls whose items share a statement with that duplicate.
func (d *Dispatcher) markDead(c *claimed, cause error, counted bool) observe.Outcome {
	ctx, cancel := context.WithTimeout(c.loop.base, max(queryTimeout, defaultHandlerTimeout))
	defer cancel()
	err := errGoexit
	defer func() { // OnDead may end the goroutine
		if err != nil && !errors.Is(err, ErrLeaseLost) {
			if c.loop.work.Err() != nil {
				// Cause: OnDead took longer.
				// Cure: raise it.
				d.logger.Error("message not marked dead at the end of CloseTimeout: it is released", err, c.fields())
				c.release(0, text.OfError(err))
				return
			}
			// Cause: the database, or DispatcherConfig.OnDead failed.
			// Cure: fix the cause that the error names.
			d.logger.Error("could not mark message dead: it is retried in a minute", err, c.fields())
			c.release(onDeadRetryWait, text.OfError(err))
		}
	}()
	err = core.InTx(ctx, d.store.db, core.TxOptions{}, func(ctx context.Context) error {
		if err := d.onDead(ctx, c, cause); err != nil {
			return err
		}
		n, err := d.store.fail(ctx, c.loop.owner, text.OfError(cause), counted, c.ID)
		if err == nil && n == 0 && d.cfg.OnDead == nil { // otherwise OnDead itself settled it in another way
			err = ErrLeaseLost
		}
		return err
	})
	switch {
	case err == nil:
		// Cause: MaxAttempts is reached, it expired, or the handler returned Poison.
		// Cure: see outboxctl errors --in queue; then queue requeue or discard.
		d.logger.Error("message died", cause, c.fields())
		return observe.Dead
	case errors.Is(err, ErrLeaseLost):
		return observe.Duplicate
	}
	return observe.Failed
}

// onDead calls DispatcherConfig.OnDead while no other process can do so for the message. The context of the call ends
// with the contexts of handlers.
func (d *Dispatcher) onDead(ctx context.Context, c *claimed, cause error) error {
	if d.cfg.OnDead == nil {
		return nil
	}
	ours, crashes, err := d.store.hold(ctx, c.loop.owner, c.ID)
	switch {
	case err != nil:
		return err
	case !ours:
		return ErrLeaseLost
	case crashes >= c.maxCrashes():
		// Cause: OnDead exits, panics in another goroutine, or needs too much memory.
		// Cure: the logs show what ended them.
		d.logger.Error("gave up on OnDead: it crashed its processes: the message is marked dead without "+
			"it", cause, c.fields())
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.loop.work, func() { cancel(context.Cause(c.loop.work)) })()
	if err := guarded(func() error { return d.cfg.OnDead(ctx, c.copy(), cause) }); err != nil {
		return fmt.Errorf("OnDead: %w", err)
	}
	return nil
}

// markDeadUnhandled marks a message dead whose handler is not called. Observers see it as a failed message.
func (d *Dispatcher) markDeadUnhandled(c *claimed, cause error, counted bool) {
	_, ended := d.store.started(c.loop.work, d.cfg.Service, &c.Message)
	outcome := observe.Failed
	defer func() { ended(outcome, 0, cause) }() // even if OnDead ends the goroutine
	outcome = d.markDead(c, cause, counted)
}

// takeExpired starts to mark expired messages dead, as many as there are free slots, and reports whether there may be
// more because the slots ran out.
func (d *Dispatcher) takeExpired(ctx context.Context) (more bool, err error) {
	l := d.loop
	l.claiming.Lock()
	defer l.claiming.Unlock()
	room, bytes := 0, 0
	l.step(func() { room, bytes = l.schedule.free(), l.schedule.bytesFree() })
	if room == 0 {
		return true, nil
	}
	begun := time.Now()
	msgs, more, err := d.store.claimExpired(ctx, Claim{
		Owner: l.owner, LeaseTTL: l.cfg.lease, Limit: room, MaxBytes: bytes, Topics: d.cfg.topics(),
	})
	l.step(func() {
		if err != nil {
			l.lostClaims.mayExist(time.Now(), l.cfg.lease)
			return
		}
		for _, msg := range msgs {
			if l.stopping {
				l.lostClaims.maybeOurs = append(l.lostClaims.maybeOurs, msg.ID)
				continue
			}
			if l.runs(msg.ID, begun.Add(l.cfg.lease)) {
				continue // it is marked dead later, if its handler does not settle it
			}
			l.start(&claimed{Message: msg, loop: l, expired: true}, begun.Add(l.cfg.lease))
		}
	})
	return more, err
}
