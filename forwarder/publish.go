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

// call is a publish that is under way.
type call struct {
	row   *row
	stuck bool // it timed out
}

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
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls[c] = struct{}{}
	defer delete(e.calls, c)
	for now := time.Now(); ; {
		if e.stopping || now.After(e.leaseUntil) {
			break
		}
		if c.row = e.board.next(now); c.row == nil {
			break
		}
		e.mu.Unlock()
		err := e.publish(c.row)
		e.mu.Lock()
		begun := now
		now = time.Now()
		e.pace += (now.Sub(begun) - e.pace) / 8
		e.board.done(c.row, e.judge(c, err), now)
		signal(e.settleNow)
		if c.stuck {
			e.stuck--
			e.startWorkers()
			return // another took its place when it timed out
		}
		if e.pace >= quickPublish && e.workers < e.cfg.Concurrency && e.board.runnable.len() > 0 {
			e.startWorkers()
		}
		if e.reader.more && e.hasRoom() || len(e.board.releases) > 0 {
			signal(e.readNow)
		}
	}
	e.workers--
	signal(e.readNow)
	e.offerDrained()
}

func (e *engine) judge(c *call, err error) result {
	res := result{err: err, late: c.stuck}
	if err != nil {
		res.aborted = e.sendCtx.Err() != nil || errors.Is(err, errNotDelivered)
		res.verdict = e.classify(c.row.topic, err)
		if errors.Is(err, errBadMetadata) {
			res.verdict = Permanent
		}
	}
	return res
}

// publish sends one row.
func (e *engine) publish(r *row) (err error) {
	msg := message.NewMessage(r.uuid, r.payload)
	if err := json.Unmarshal(r.metadata, &msg.Metadata); err != nil {
		return fmt.Errorf("%w: %w", errBadMetadata, err)
	}
	if msg.Metadata == nil { // JSON null
		msg.Metadata = message.Metadata{}
	}
	if key := r.keyName(); key != "" && msg.Metadata[outbox.MetadataKey] == "" {
		msg.Metadata[outbox.MetadataKey] = key
	}
	ctx := e.sendCtx
	if e.obs.base != nil {
		ctx = e.obs.base.PublishStart(ctx, msg, r.topic)
		defer func() {
			end := PublishEnd{
				DB: e.obs.db, Scope: e.obs.scope, Topic: r.topic, ID: r.id, UUID: r.uuid, Attempt: r.attempts + 1,
				EnqueuedAt: r.enqueuedAt, Took: time.Since(r.started), Err: err,
			}
			if err != nil {
				end.Verdict = e.classify(r.topic, err)
			}
			e.obs.base.PublishEnd(ctx, end)
		}()
	}
	msg.SetContext(ctx)
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrPublishPanic, p)
			e.logger.Error("Publisher panicked", err, watermill.LogFields{"topic": r.topic, "id": r.id, "stack": string(debug.Stack())})
		}
	}()
	return e.send(ctx, core.Delivery{
		ID: r.id, Topic: r.topic, Key: r.keyName(), Attempt: r.attempts + 1, EnqueuedAt: r.enqueuedAt,
	}, msg)
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
		for c := range e.calls {
			running := now.Sub(c.row.started)
			if running > watchTick && e.pace < quickPublish {
				e.pace = quickPublish
			}
			if e.cfg.PublishTimeout > 0 && running > e.cfg.PublishTimeout && !c.stuck {
				c.stuck = true
				e.stuck++
				e.workers--
				err := fmt.Errorf("%w after %s", ErrPublishTimeout, e.cfg.PublishTimeout)
				e.board.done(c.row, result{err: err, verdict: e.classify(c.row.topic, err)}, now)
				signal(e.settleNow)
				if e.stuck == e.cfg.Concurrency {
					e.logger.Error("As many publishes hang as Concurrency allows; none is started until some return", err, nil)
				}
			}
		}
		if !e.stopping && !now.After(e.leaseUntil) {
			e.startWorkers()
		}
		e.mu.Unlock()
	}
}
