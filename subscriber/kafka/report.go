package kafka

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/observe"
)

// reports tells observers of partitions, in a goroutine of its own, so that a partition waits for none.
type reports struct {
	to     []observe.PartitionObserver
	queue  chan observe.PartitionState
	over   chan struct{}
	ended  chan struct{}
	logger watermill.LoggerAdapter
}

func newReports(observers []observe.Observer, logger watermill.LoggerAdapter) *reports {
	r := &reports{
		queue: make(chan observe.PartitionState, 1024), over: make(chan struct{}), ended: make(chan struct{}), logger: logger,
	}
	for _, o := range observers {
		if to, ok := o.(observe.PartitionObserver); ok {
			r.to = append(r.to, to)
		}
	}
	go r.run()
	return r
}

func (r *reports) run() {
	defer close(r.ended)
	for {
		select {
		case state := <-r.queue:
			r.tell(state)
		case <-r.over:
			for {
				select {
				case state := <-r.queue:
					r.tell(state)
				default:
					return
				}
			}
		}
	}
}

func (r *reports) tell(state observe.PartitionState) {
	for _, to := range r.to {
		func() {
			defer func() {
				if p := recover(); p != nil {
					// Cause: an observer that was given to the subscriber panicked.
					// Cure: fix it; the stack is in the line. The subscriber goes on.
					r.logger.Error("observer panicked", core.Panicked(p), watermill.LogFields{
						"observer": fmt.Sprintf("%T", to), "stack": string(debug.Stack()),
					})
				}
			}()
			to.PartitionState(context.Background(), state)
		}()
	}
}

// post leaves a report out if too many wait: the next one comes a second later.
func (r *reports) post(state observe.PartitionState) {
	if len(r.to) == 0 {
		return
	}
	select {
	case r.queue <- state:
	default:
	}
}

// stop returns when all was told, but does not wait for ever.
func (r *reports) stop() {
	close(r.over)
	timer := time.NewTimer(leaveTimeout)
	defer timer.Stop()
	select {
	case <-r.ended:
	case <-timer.C:
	}
}

// report tells how the partition is.
func (p *partition) report(owned bool) {
	failing, since := p.window.Failing()
	if owned && !p.paused.IsZero() {
		p.tellPaused(since)
	}
	state := observe.PartitionState{
		Group: p.cfg.ConsumerGroup, Topic: p.claim.Topic(), Partition: p.claim.Partition(), Owned: owned,
	}
	if owned {
		state.Lag = max(0, p.claim.HighWaterMarkOffset()-max(p.window.Watermark(), 0))
		state.Ahead, state.Pending, state.Running = p.window.Records(), p.window.Undone(), p.running
		state.BlockedKeys = failing
		if failing > 0 {
			state.OldestBlocked = time.Since(since)
		}
		if !p.paused.IsZero() {
			state.Paused, state.PausedFor = p.reason(), time.Since(p.paused)
		}
	}
	p.reports.post(state)
}
