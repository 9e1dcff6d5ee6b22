package forwarder

import (
	"context"
	"runtime/debug"
	"runtime/pprof"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

// maxReports is how many reports may wait; more are counted, and not waited for.
const maxReports = 1024

// reporter calls the logger and the observers in a goroutine of its own. They are code of the user's: they may take
// their time, hang or panic, and that must stop nothing else.
type reporter struct {
	queue   chan func()
	dropped atomic.Int64
	stop    chan struct{}
	done    chan struct{}
	logger  watermill.LoggerAdapter
	labels  context.Context // of its goroutine
}

func newReporter(logger watermill.LoggerAdapter) *reporter {
	return &reporter{
		queue: make(chan func(), maxReports), stop: make(chan struct{}), done: make(chan struct{}), logger: logger,
		labels: context.Background(),
	}
}

// post queues a report. It never waits.
func (r *reporter) post(report func()) {
	select {
	case r.queue <- report:
	default:
		r.dropped.Add(1)
	}
}

// run reports until it is to stop and nothing waits. A report that ends this goroutine gets it a successor.
func (r *reporter) run() {
	pprof.SetGoroutineLabels(r.labels)
	ended := true
	defer func() {
		if ended {
			go r.run()
		} else {
			close(r.done)
		}
	}()
	for {
		select {
		case report := <-r.queue:
			r.call(report)
			continue
		default:
		}
		select {
		case report := <-r.queue:
			r.call(report)
		case <-r.stop:
			if len(r.queue) == 0 {
				ended = false
				return
			}
		}
	}
}

func (r *reporter) call(report func()) {
	guard(report, func(err error) {
		// The logger itself may be what panics.
		stack := watermill.LogFields{"stack": string(debug.Stack())}
		// Cause: a bug of the logger or observer; see the field stack.
		// Cure: fix it; publishing goes on.
		guard(func() { r.logger.Error("logger or observer panicked", err, stack) }, func(error) {})
	})
	if n := r.dropped.Swap(0); n > 0 {
		guard(func() {
			// Cause: the logger or an observer is slower than publishing.
			// Cure: make it faster; until then counts are too low.
			r.logger.Error("logger or observer too slow: reports dropped", errTooSlow, watermill.LogFields{"reports": n})
		}, func(error) {})
	}
}

// start begins to report. The function returned waits until everything is reported, but not for ever.
func (r *reporter) start(atMost time.Duration) (end func()) {
	go r.run()
	return func() {
		close(r.stop)
		timer := time.NewTimer(atMost)
		defer timer.Stop()
		select {
		case <-r.done:
		case <-timer.C:
		}
	}
}

// guard runs code of the user's, and calls failed if that panics, which ends nothing else, or ends its goroutine, which
// the caller's own deferred functions must expect.
func guard(fn func(), failed func(error)) {
	returned := false
	defer func() {
		if returned {
			return
		}
		if p := recover(); p != nil {
			failed(core.Panicked(p))
		} else {
			failed(errGoexit)
		}
	}()
	fn()
	returned = true
}

// queuedLogger is a logger that never waits.
type queuedLogger struct {
	to      watermill.LoggerAdapter
	reports *reporter
}

func (l queuedLogger) Error(msg string, err error, fields watermill.LogFields) {
	l.reports.post(func() { l.to.Error(msg, err, fields) })
}

func (l queuedLogger) Info(msg string, fields watermill.LogFields) {
	l.reports.post(func() { l.to.Info(msg, fields) })
}

func (l queuedLogger) Debug(msg string, fields watermill.LogFields) {
	l.reports.post(func() { l.to.Debug(msg, fields) })
}

func (l queuedLogger) Trace(msg string, fields watermill.LogFields) {
	l.reports.post(func() { l.to.Trace(msg, fields) })
}

func (l queuedLogger) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return queuedLogger{l.to.With(fields), l.reports}
}
