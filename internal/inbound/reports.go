package inbound

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/facts"
	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/observe"
)

// lastReports is how long a closing subscription waits for observers.
const lastReports = 5 * time.Second

// Reports calls observers of partitions in a separate goroutine, so that no reader waits for them. Create it with
// NewReports.
type Reports struct {
	to     []meter.PartitionObserver
	queue  chan meter.PartitionState
	over   chan struct{}
	ended  chan struct{}
	logger watermill.LoggerAdapter

	mu      sync.Mutex
	blocked map[string]facts.Partition // nil after the end; guarded by mu
}

// NewReports uses the observers that are PartitionObservers. Stop must be called.
func NewReports(observers []observe.Observer, logger watermill.LoggerAdapter) *Reports {
	r := &Reports{
		blocked: map[string]facts.Partition{},
		queue:   make(chan meter.PartitionState, 1024),
		over:    make(chan struct{}), ended: make(chan struct{}), logger: logger,
	}
	for _, o := range observers {
		if to, ok := o.(meter.PartitionObserver); ok {
			r.to = append(r.to, to)
		}
	}
	go r.run()
	return r
}

func (r *Reports) run() {
	defer close(r.ended)
	for {
		select {
		case state := <-r.queue:
			r.report(state)
		case <-r.over:
			for {
				select {
				case state := <-r.queue:
					r.report(state)
				default:
					return
				}
			}
		}
	}
}

func (r *Reports) report(state meter.PartitionState) {
	for _, to := range r.to {
		func() {
			defer func() {
				if p := recover(); p != nil {
					// Cause: a bug of an observer.
					// Cure: reading goes on.
					r.logger.Error("observer panicked", core.Panicked(p), watermill.LogFields{
						"observer": fmt.Sprintf("%T", to), "stack": string(debug.Stack()),
					})
				}
			}()
			to.PartitionState(context.Background(), state)
		}()
	}
}

// Wanted reports whether there is an observer.
func (r *Reports) Wanted() bool { return len(r.to) > 0 }

// Post drops a report if too many wait, because the next one follows a second later.
func (r *Reports) Post(state meter.PartitionState) {
	r.record(state)
	if !r.Wanted() {
		return
	}
	select {
	case r.queue <- state:
	default:
	}
}

// Stop returns when all reports are delivered, or after a timeout.
func (r *Reports) Stop() {
	close(r.over)
	r.mu.Lock()
	r.blocked = nil
	r.mu.Unlock()
	timer := time.NewTimer(lastReports)
	defer timer.Stop()
	select {
	case <-r.ended:
	case <-timer.C:
	}
}
