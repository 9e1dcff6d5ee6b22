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

// maxReports is how many reports may wait; further ones are counted and dropped.
const maxReports = 1024

// reporter calls the logger and the observers in its own goroutine. They are user code: they may be slow, hang or
// panic, and that must not stop anything else.
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

// post queues a report. It never blocks.
func (r *reporter) post(report func()) {
	select {
	case r.queue <- report:
	default:
		r.dropped.Add(1)
	}
}

// run reports until it is stopped and the queue is empty. If a report ends this goroutine, a new one takes over.
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
		// It may be the logger that panics.
		stack := watermill.LogFields{"stack": string(debug.Stack())}
		// Cause: a bug of the logger or observer; see the field stack.
		// Cure: publishing goes on.
		guard(func() { r.logger.Error("logger or observer panicked", err, stack) }, func(error) {})
	})
	if n := r.dropped.Swap(0); n > 0 {
		guard(func() {
			// Cause: they are slower than publishing.
			// Cure: until they are faster, counts are too low.
			r.logger.Error("logger or observer too slow: reports dropped", errTooSlow, watermill.LogFields{"reports": n})
		}, func(error) {})
	}
}

// start starts reporting. The returned function waits until everything is reported, up to atMost.
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

// guard runs user code. If it panics, failed is called and the panic goes no further; the same happens if it ends its
// goroutine, for which the caller's own deferred functions must be prepared.
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

// queuedLogger is a logger that never blocks.
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
