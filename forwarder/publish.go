package forwarder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

const (
	quickPublish = 20 * time.Microsecond
	watchTick    = 5 * time.Millisecond
)

// fewWorkers publish while publishing takes less than quickPublish: more would only wait for each other.
var fewWorkers = min(4, runtime.GOMAXPROCS(0))

// startWorkers starts publishing goroutines for the rows that may be published now. It is called under mu.
func (e *engine) startWorkers() {
	if e.stopping {
		return // their end is being waited for
	}
	most := e.cfg.Concurrency
	if e.pace < quickPublish {
		most = min(most, fewWorkers)
	}
	for n := e.board.runnable.len(); n > 0 && e.workers < most; n-- {
		if e.stuck >= e.cfg.Concurrency {
			return // as many goroutines again hang in the publisher
		}
		e.workers++
		e.publishing.Add(1)
		go e.work()
	}
}

// work publishes until nothing may be published now.
func (e *engine) work() {
	defer e.publishing.Done()
	c := &call{}
	returned := false
	defer func() {
		if !returned { // the publisher, or an observer, called runtime.Goexit
			e.returned(c, result{err: fmt.Errorf("%w: it ended its goroutine", ErrPublishPanic)})
		}
	}()
	for res := (*result)(nil); e.turn(c, res); {
		outcome := e.attempt(c)
		res = &outcome
	}
	returned = true
}

// turn tells the board what became of a publish, if there was one, and takes the next row.
func (e *engine) turn(c *call, res *result) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	if res != nil && !e.tell(c, *res, now) {
		return false // another took its place when it timed out
	}
	if e.stopping || now.After(e.leaseUntil) {
		e.endWorker(c)
		return false
	}
	if c.row = e.board.next(now); c.row == nil {
		e.endWorker(c)
		return false
	}
	e.calls[c] = struct{}{}
	c.ctx = &callContext{Context: e.values}
	if e.cfg.PublishTimeout > 0 {
		c.ctx.deadline = now.Add(e.cfg.PublishTimeout)
	}
	if e.recallable {
		c.recalled = make(chan struct{})
	}
	return true
}

// returned is turn for a worker that has ended.
func (e *engine) returned(c *call, res result) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.tell(c, res, time.Now()) {
		e.endWorker(c)
		e.startWorkers()
	}
}

// tell tells the board what became of a publish, and says whether the worker goes on.
func (e *engine) tell(c *call, res result, now time.Time) bool {
	e.pace += (now.Sub(c.row.started) - e.pace) / 8
	res.late = c.charged
	e.board.done(c.row, res, now)
	signal(e.settleNow)
	c.row = nil
	if c.expired {
		e.stuck--
		delete(e.calls, c)
		e.offerDrained()
		e.startWorkers()
		return false
	}
	if e.pace >= quickPublish && e.workers < e.cfg.Concurrency && e.board.runnable.len() > 0 {
		e.startWorkers()
	}
	if e.reader.more && e.hasRoom() || len(e.board.releases) > 0 {
		signal(e.readNow)
	}
	return true
}

func (e *engine) endWorker(c *call) {
	delete(e.calls, c)
	e.workers--
	signal(e.readNow)
	e.offerDrained()
}

// attempt publishes a row. All that it calls may be the user's code.
func (e *engine) attempt(c *call) result {
	r := c.row
	msg, err := newMessage(r)
	ctx := context.Context(c.ctx)
	if e.obs.base != nil {
		e.reports.guard("observer", func() { ctx = e.obs.base.PublishStart(ctx, msg, r.topic) })
	}
	if err == nil {
		msg.SetContext(ctx)
		err = e.publish(ctx, c.recalled, r, msg)
	}
	res := result{err: err}
	if err != nil {
		res.aborted = e.gaveUp.Load() || err == errNotDelivered
		res.verdict = e.verdict(r.topic, err)
	}
	if e.obs.base != nil {
		e.reports.guard("observer", func() {
			e.obs.base.PublishEnd(ctx, PublishEnd{
				DB: e.obs.db, Scope: e.obs.scope, Topic: r.topic, ID: r.id, UUID: r.uuid, Attempt: r.attempts + 1,
				EnqueuedAt: r.enqueuedAt, Took: time.Since(r.started), Err: err, Verdict: res.verdict,
			})
		})
	}
	return res
}

func newMessage(r *row) (*message.Message, error) {
	msg := message.NewMessage(r.uuid, r.payload)
	if err := json.Unmarshal(r.metadata, &msg.Metadata); err != nil {
		return msg, fmt.Errorf("%w: %w", errBadMetadata, err)
	}
	if msg.Metadata == nil { // JSON null
		msg.Metadata = message.Metadata{}
	}
	if key := r.keyName(); key != "" && msg.Metadata[outbox.MetadataKey] == "" {
		msg.Metadata[outbox.MetadataKey] = key
	}
	return msg, nil
}

func (e *engine) publish(ctx context.Context, recalled <-chan struct{}, r *row, msg *message.Message) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrPublishPanic, p)
			e.logger.Error("Publisher panicked", err, watermill.LogFields{"topic": r.topic, "id": r.id, "stack": string(debug.Stack())})
		}
	}()
	return e.send(ctx, recalled, core.Delivery{
		ID: r.id, Topic: r.topic, Key: r.keyName(), Attempt: r.attempts + 1, EnqueuedAt: r.enqueuedAt,
	}, msg)
}

// verdict asks the user's code for its verdict on an error.
func (e *engine) verdict(topic string, err error) (v Verdict) {
	e.reports.guard("Classify", func() {
		if v = Permanent; !errors.Is(err, errBadMetadata) {
			v = Rejected // if Classify panics
			v = e.classify(topic, err)
		}
	})
	return v
}

// watchCalls fails publishes that take too long, and sees to it that slow ones do not keep the number of
// workers down.
func (e *engine) watchCalls(ctx context.Context) {
	ticker := time.NewTicker(watchTick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		e.mu.Lock()
		now := time.Now()
		var expired []*call
		for c := range e.calls {
			running := now.Sub(c.row.started)
			if running > watchTick && e.pace < quickPublish {
				e.pace = quickPublish
			}
			if e.cfg.PublishTimeout > 0 && running > e.cfg.PublishTimeout && !c.expired {
				c.expired = true
				e.stuck++
				e.workers--
				c.end(context.DeadlineExceeded)
				expired = append(expired, c)
				if e.stuck == e.cfg.Concurrency {
					e.logger.Error("As many publishes hang as Concurrency allows; none is started until some return", ErrPublishTimeout, nil)
				}
			}
		}
		if len(expired) > 0 {
			e.publishing.Add(1)
			go e.charge(expired)
		}
		if !e.stopping && !now.After(e.leaseUntil) {
			e.startWorkers()
		}
		e.mu.Unlock()
	}
}

// charge tells the board of publishes that timed out, unless they have returned meanwhile. It is a goroutine of its own, as
// Classify may hang.
func (e *engine) charge(expired []*call) {
	defer e.publishing.Done()
	err := fmt.Errorf("%w after %s", ErrPublishTimeout, e.cfg.PublishTimeout)
	for _, c := range expired {
		e.mu.Lock()
		r := c.row
		e.mu.Unlock()
		if r == nil {
			continue
		}
		v := e.verdict(r.topic, err)
		e.mu.Lock()
		if c.row != nil {
			c.charged = true
			e.board.done(r, result{err: err, verdict: v}, time.Now())
			e.startWorkers()
		}
		e.mu.Unlock()
		signal(e.settleNow)
	}
}

// recall takes back what lies in lanes that are to be given back and was not received by anybody yet. It is called under mu.
func (e *engine) recall() {
	for c := range e.calls {
		if c.recalled != nil && !c.recall && c.row.lane.draining {
			c.recall = true
			close(c.recalled)
		}
	}
}
