package forwarder

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/observe"
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
	end() // does not wait forever
	close(goOn)
	<-r.done
	if n := len(log.Captured()[watermill.ErrorLogLevel]); n != 1 {
		t.Errorf("the dropped reports were logged %d times", n)
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

// lastAge is an observer that remembers the age of the last message.
type lastAge struct{ age time.Duration }

func (*lastAge) PublishStart(ctx context.Context, _ observe.PublishStart) context.Context { return ctx }
func (l *lastAge) PublishEnd(_ context.Context, end observe.PublishEnd)                   { l.age = end.Age }

// TestAgeIsOfTheDatabasesClock: a message's age does not depend on the clock of the machine that publishes it.
func TestAgeIsOfTheDatabasesClock(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour} {
		eye := &lastAge{}
		o := observers{publishes: []observe.PublishObserver{eye}}
		asked := time.Now()
		there := asked.Add(ahead)
		o.clock(there, asked)
		o.publishEnd(t.Context(), &dispatch.Call{Row: &dispatch.Row{CreatedAt: there.Add(-time.Minute)}, Started: asked},
			dispatch.Result{})
		if off := eye.age - time.Minute; off < 0 || off > 50*time.Second {
			t.Errorf("with a clock %s ahead, a message one minute old is %s old", ahead, eye.age)
		}
		o.publishEnd(t.Context(), &dispatch.Call{Row: &dispatch.Row{CreatedAt: there.Add(time.Hour)}, Started: asked},
			dispatch.Result{})
		if eye.age != 0 {
			t.Errorf("a message from the future is %s old", eye.age)
		}
	}
}
