package queue

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// ErrLeaseLost is returned if the lease of a message expired and another owner may have it. It is the cancel cause of a
// detached Handler's context, and middleware.Inbox returns it.
//
// Cure: return when the context ends; raise LeaseTTL if processes pause.
var ErrLeaseLost = core.ErrLeaseLost // queue: lease lost…

// claimed is a message that this process has claimed, until it is settled.
type claimed struct {
	Message
	loop    *loop
	expired bool // it must only be marked dead

	// suspect is true while it has the slot for suspects, because an earlier owner died or let the lease expire; guarded
	// by loop.mu.
	suspect      bool
	suspectTimer *time.Timer // frees that slot

	acking   bool        // acked after its handler returned, result not known yet; guarded by loop.mu
	locked   atomic.Bool // acked in a transaction: the handler's ack there finds out whether the lease was lost
	acked    atomic.Bool // the transaction committed
	ackToken int64       // distinguishes this ack from later ones
	// claimed again here before its handler returned, because its lease expired or it was just given back
	again atomic.Bool

	mu     sync.Mutex
	until  time.Time
	cancel context.CancelCauseFunc // of its context; nil before there is one
	timer  *time.Timer             // ends the context when the lease is lost
	cause  error                   // why the attempt failed
}

var _ core.Work = (*claimed)(nil)

// copy returns a copy for user code, which may change it.
func (m Message) copy() *Message {
	m.Payload, m.Metadata, m.Hash = slices.Clone(m.Payload), maps.Clone(m.Metadata), slices.Clone(m.Hash)
	return &m
}

// context returns a context that ends when the lease is lost or the loop ends.
func (c *claimed) context() context.Context {
	ctx, cancel := context.WithCancelCause(c.loop.work)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cancel = cancel
	c.timer = time.AfterFunc(time.Until(c.until), c.expire)
	return ctx
}

// expire ends the context if the lease is over and no transaction protects the message.
func (c *claimed) expire() {
	if !c.locked.Load() {
		c.end(ErrLeaseLost)
	}
}

func (c *claimed) end(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		c.cancel(cause)
		c.timer.Stop()
		c.cancel, c.timer = nil, nil
	}
}

// extend records that the lease was renewed.
func (c *claimed) extend(until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.until = until; c.timer != nil {
		c.timer.Reset(time.Until(until))
	}
}

// Failed reports whether an attempt failed before.
func (c *claimed) Failed() bool { return c.Attempts > 0 }

// Last reports whether a failure uses up the last attempt.
func (c *claimed) Last() bool {
	most := c.loop.store.cfg.MaxAttempts
	return most > 0 && c.Attempts+1 >= most
}

// exhausted reports whether no attempt is left, because processes died during them or MaxAttempts was lowered.
func (c *claimed) exhausted() bool {
	most := c.loop.store.cfg.MaxAttempts
	return most > 0 && c.Attempts >= most
}

// maxCrashes is how many processes may die with the message before OnDead is no longer called for it.
func (c *claimed) maxCrashes() int {
	most := c.loop.store.cfg.MaxAttempts
	switch {
	case most < 0:
		return defaultMaxAttempts + onDeadCrashes
	case c.exhausted():
		return most + onDeadCrashes
	}
	return math.MaxInt
}

// SetFailure records why an attempt failed.
func (c *claimed) SetFailure(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cause = err
}

// failure returns the error of SetFailure, or nil.
func (c *claimed) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// Ack marks the message done in the transaction of ctx.
func (c *claimed) Ack(ctx context.Context) (bool, error) {
	acked, err := c.AckAll(ctx, nil)
	return len(acked) == 1, err
}

// AckAll marks this message and others of the same owner done, in one statement, and returns those that it changed.
func (c *claimed) AckAll(ctx context.Context, others []core.Work) (acked []core.Work, err error) {
	of := make(map[ID]*claimed, len(others)+1)
	for _, w := range append(others, c) {
		if o, ok := w.(*claimed); ok && o.loop == c.loop {
			o.locked.Store(true) // before the ack: the lease could expire in between
			of[o.ID] = o
		}
	}
	ids := slices.SortedFunc(maps.Keys(of), ID.compare) // all rows are locked in this order
	sources, messageIDs := make([]string, len(ids)), make([]string, len(ids))
	for i, id := range ids {
		sources[i], messageIDs[i] = id.Source, id.MessageID
	}
	s := c.loop.store
	_, err = orAgain(len(ids), func() (n int, err error) {
		err = s.collect(ctx, "Ack", func(rows drive.Rows) error {
			var id ID
			var token int64
			if err := rows.Scan(&token, &id.Source, &id.MessageID); err != nil {
				return err
			}
			o := of[id]
			delete(of, id)
			o.ackToken, n = token, n+1
			acked = append(acked, o)
			return nil
		}, sqltext.AckInTx, c.loop.owner.String(), sources, messageIDs, s.cfg.KeepPayload)
		return n, err
	})
	if err == nil && len(of) > 0 {
		err = s.ifHeld(ctx, "Ack", c.loop.owner, sources, messageIDs, nil)
	}
	for _, o := range of {
		o.unlock()
	}
	if err != nil {
		for _, w := range acked {
			w.(*claimed).unlock()
		}
		return nil, err
	}
	// Without a hook, for example in a transaction of WithPgxTx, they are acked a second time, which changes nothing.
	_ = core.AfterCommit(ctx, func(context.Context) {
		for _, w := range acked {
			w.(*claimed).acked.Store(true)
		}
	})
	return acked, nil
}

// unlock makes the lease count again. It may have expired meanwhile.
func (c *claimed) unlock() {
	c.locked.Store(false)
	c.mu.Lock()
	over := !time.Now().Before(c.until)
	c.mu.Unlock()
	if over {
		c.end(ErrLeaseLost)
	}
}

// Unack reverts the ack of a message, which returns to its owner.
func (c *claimed) Unack(ctx context.Context) error {
	s := c.loop.store
	metadata, err := encode(c.Metadata)
	if err == nil {
		_, err = s.exec(core.OutsideTx(ctx), "undo an ack", sqltext.UnackMessage, c.Source, c.MessageID,
			c.loop.owner.String(),
			c.loop.cfg.lease.Seconds(), c.Payload, metadata, c.ackToken)
	}
	c.locked.Store(false)
	return err
}

// Dead marks the message dead in the transaction of ctx.
func (c *claimed) Dead(ctx context.Context, reason string) (bool, error) {
	n, err := c.loop.store.Fail(ctx, c.loop.owner, reason, c.ID)
	return n == 1, err
}

// fields returns the log fields of the message.
func (c *claimed) fields() watermill.LogFields {
	return c.Message.fields().Add(watermill.LogFields{"attempt": c.Attempts + 1})
}

// ack queues the message to be acked with others.
func (c *claimed) ack() {
	c.loop.step(func() { c.acking = true })
	c.loop.acks.batcher.add(c)
}

// abandon counts the attempt, unless it was counted before: when the lease expired, or by this statement if its reply
// was lost. It returns the number of messages changed.
func (c *claimed) abandon(err error) int {
	return c.insist("abandon", func(ctx context.Context) (int, error) {
		return c.loop.store.abandon(ctx, c.loop.owner, text.OfError(err), 0, c.Attempts, c.ID)
	})
}

// diedOf reports whether this attempt made the message dead in a statement whose reply was lost.
func (c *claimed) diedOf(err error) bool {
	ctx, cancel := context.WithTimeout(c.loop.base, queryTimeout)
	defer cancel()
	msg, failed := c.loop.store.Get(ctx, c.ID)
	return failed == nil && msg.State == Dead && msg.Attempts == c.Attempts+1 && msg.LastError == reason(text.OfError(err))
}

// release gives the message back without counting an attempt.
func (c *claimed) release(delay time.Duration, why string) {
	c.insist("release", func(ctx context.Context) (int, error) {
		return c.loop.store.postpone(ctx, c.loop.owner, delay, why, c.ID)
	})
}

// insist retries a statement until it succeeds or the lease is over, when the message is free or has another owner. It
// returns the number of messages changed.
func (c *claimed) insist(what string, fn func(ctx context.Context) (int, error)) int {
	c.mu.Lock()
	until := c.until
	c.mu.Unlock()
	ctx, cancel := context.WithDeadline(c.loop.base, later(until, time.Now().Add(queryTimeout)))
	defer cancel()
	n := 0
	err := retryStatement(ctx, func(ctx context.Context) (err error) {
		n, err = fn(ctx)
		return err
	})
	refused, err := refusedOf(err)
	switch {
	case len(refused.ids) > 0: // its lease ends, and reaping gives it back unless that is refused too
		c.loop.store.refused(what, queueRow{ID: c.ID, topic: c.Topic}, refused.first)
	case err != nil:
		// Cause: the database.
		// Cure: effects outside the transaction are repeated.
		c.loop.logger.Error("could not record the result of a message: it is redelivered when its lease expires", err,
			c.fields().Add(watermill.LogFields{"what": what}))
	case n == 0:
		c.loop.logger.Debug("lease lost: nothing changed", c.fields().Add(watermill.LogFields{"what": what}))
	}
	return n
}

// errGoexit is the error of user code that called runtime.Goexit.
// Cause: the handler ended its goroutine.
// Cure: return an error instead.
var errGoexit = errors.New("the handler called runtime.Goexit")

// suspects is the single slot of this process for messages that may have killed a process: if two ran concurrently,
// both would be blamed. A message keeps it until its result is recorded, for at most LeaseTTL.
var suspects = make(slot, 1)

type slot chan struct{}

func (s slot) take() bool {
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s slot) free() bool { return len(s) == 0 }
func (s slot) release()   { <-s }
