package forwarder

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

const (
	maxReports = 1024 // that wait; further ones are only counted
	// reportTimeout is how long Run waits at its end for an observer or a logger that hangs.
	reportTimeout = 5 * time.Second
)

// reporter calls the observer and the logger, in order, on a goroutine of its own: what they do, hanging, panicking and
// runtime.Goexit included, delays and ends nothing but reports.
type reporter struct {
	queue  chan func()
	lost   atomic.Int64
	logger watermill.LoggerAdapter // the user's
}

func newReporter(logger watermill.LoggerAdapter) *reporter {
	return &reporter{queue: make(chan func(), maxReports), logger: logger}
}

// tell queues a report. It never waits.
func (r *reporter) tell(report func()) {
	select {
	case r.queue <- report:
	default:
		r.lost.Add(1)
	}
}

// start begins to make reports. What it returns makes those that are left and ends it.
func (r *reporter) start() (stop func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	go r.work(over, ended)
	return sync.OnceFunc(func() {
		close(over)
		select {
		case <-ended:
		case <-time.After(reportTimeout):
		}
	})
}

func (r *reporter) work(over <-chan struct{}, ended chan<- struct{}) {
	returned := false
	defer func() {
		if !returned { // a report called runtime.Goexit
			go r.work(over, ended)
			return
		}
		close(ended)
	}()
	for {
		select {
		case report := <-r.queue:
			r.make(report)
		case <-over:
			for len(r.queue) > 0 {
				r.make(<-r.queue)
			}
			returned = true
			return
		}
	}
}

func (r *reporter) make(report func()) {
	if n := r.lost.Swap(0); n > 0 {
		r.guard("logger", func() {
			r.logger.Info("Reports were left out, as the observer or the logger is slow", watermill.LogFields{"reports": n})
		})
	}
	r.guard("observer or logger", report)
}

// guard calls user code that has nothing to say about messages, and logs its panic.
func (r *reporter) guard(what string, call func()) {
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		defer func() { _ = recover() }() // the logger's own
		r.logger.Error("User code panicked", fmt.Errorf("%s: %v", what, p), nil)
	}()
	call()
}

// reportedLogger is the user's logger behind a reporter.
type reportedLogger struct {
	to  watermill.LoggerAdapter
	via *reporter
}

func (l reportedLogger) Error(msg string, err error, fields watermill.LogFields) {
	l.via.tell(func() { l.to.Error(msg, err, fields) })
}
func (l reportedLogger) Info(msg string, fields watermill.LogFields) {
	l.via.tell(func() { l.to.Info(msg, fields) })
}
func (l reportedLogger) Debug(msg string, fields watermill.LogFields) {
	l.via.tell(func() { l.to.Debug(msg, fields) })
}
func (l reportedLogger) Trace(msg string, fields watermill.LogFields) {
	l.via.tell(func() { l.to.Trace(msg, fields) })
}
func (l reportedLogger) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return reportedLogger{l.to.With(fields), l.via}
}
