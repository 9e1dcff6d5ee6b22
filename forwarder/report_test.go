package forwarder

import (
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

func TestReporterOutlivesWhatItCalls(t *testing.T) {
	log := watermill.NewCaptureLogger()
	r := newReporter(log)
	end := r.start(time.Minute)
	var order []int
	r.post(func() { order = append(order, 1) })
	r.post(func() { panic("no") })
	r.post(func() { runtime.Goexit() })
	r.post(func() { order = append(order, 2) })
	end()
	if len(order) != 2 || order[0] != 1 {
		t.Errorf("%v was reported", order)
	}
	failures := log.Captured()[watermill.ErrorLogLevel]
	if len(failures) != 2 || failures[0].Err.Error() != "panic: no" || !errors.Is(failures[1].Err, errGoexit) {
		t.Errorf("%v was logged", failures)
	}
}

func TestReportsThatHangStopNothingElse(t *testing.T) {
	log := watermill.NewCaptureLogger()
	r := newReporter(log)
	end := r.start(time.Millisecond)
	goOn := make(chan struct{})
	r.post(func() { <-goOn })
	for range 2 * maxReports {
		r.post(func() {})
	}
	end() // does not wait for ever
	close(goOn)
	<-r.done
	if n := len(log.Captured()[watermill.ErrorLogLevel]); n != 1 {
		t.Errorf("that reports were left out was logged %d times", n)
	}
}

func TestGuard(t *testing.T) {
	var failed error
	guard(func() {}, func(err error) { failed = err })
	if failed != nil {
		t.Errorf("%v", failed)
	}
	guard(func() { panic("no") }, func(err error) { failed = err })
	if failed == nil || !strings.Contains(failed.Error(), "no") {
		t.Errorf("%v", failed)
	}
	var wg sync.WaitGroup
	wg.Go(func() { guard(runtime.Goexit, func(err error) { failed = err }) })
	wg.Wait()
	if !errors.Is(failed, errGoexit) {
		t.Errorf("%v", failed)
	}
}
