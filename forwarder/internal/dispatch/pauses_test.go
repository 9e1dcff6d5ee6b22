package dispatch_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

func TestUnavailableTopicPauses(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "down", 1, 2)
	d.put(0, "y", "down", 3)
	d.put(0, "z", "up", 4)
	d.put(0, "", "down", 5)
	d.read()
	c1, c3 := d.next(1), d.next(4)
	d.returned(c1, dispatch.Unavailable)
	d.told(dispatch.TopicPaused)
	d.returned(c3, dispatch.OK)
	d.none()
	d.tick(0) // rows in memory are deferred
	if c := d.b.Counts(); c.Rows != 0 || c.Waiting != 2 {
		t.Fatalf("%+v", c)
	}
	d.settle()
	d.put(0, "z", "up", 6)
	d.put(0, "", "down", 7)
	d.want(d.drain(), 6)
	if d.b.Quiet() {
		t.Fatal("quiet while a topic is paused")
	}

	d.tick(time.Second)
	if _, read := d.b.NextTimes(); read.After(d.now) {
		t.Fatal("the probe is not read")
	}
	d.read()
	probe := d.next()
	d.none()
	d.returned(probe, dispatch.Unavailable) // no attempt is charged
	d.told(dispatch.TopicPaused)
	d.tick(1900 * time.Millisecond)
	d.want(d.drain()) // now it is paused for two seconds
	d.tick(100 * time.Millisecond)
	d.read()
	probe = d.next()
	if probe.Attempt != 1 || !probe.Probe || c1.Probe {
		t.Fatalf("attempt %d, probe %v", probe.Attempt, probe.Probe)
	}
	d.returned(probe, dispatch.OK)
	d.told(dispatch.TopicResumed)
	got := append([]int64{probe.Row.ID}, d.drain()...)
	if i, j := slices.Index(got, 1), slices.Index(got, 2); i > j {
		t.Fatalf("published %v", got)
	}
	slices.Sort(got)
	d.want(got, 1, 2, 3, 5, 7)
	d.read()
	if s := d.b.Sizes(); s != (dispatch.Sizes{Topics: 2}) || !d.b.Quiet() {
		t.Fatalf("%+v", s)
	}
}

func TestPauseIsReportedEachMinute(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "down", 1)
	d.read()
	d.returned(d.next(1), dispatch.Unavailable)
	d.told(dispatch.TopicPaused)
	d.tick(59 * time.Second)
	d.told()
	d.tick(time.Second)
	d.tick(time.Second)
	if !d.reports[0].Repeated || d.reports[0].Err != errBroker {
		t.Fatalf("%+v", d.reports[0])
	}
	d.told(dispatch.TopicPaused)
}

func TestRejectedProbeOpensTheTopic(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "down", 1)
	d.put(0, "y", "down", 2)
	d.read()
	d.returned(d.next(1), dispatch.Unavailable)
	d.tick(time.Second)
	d.read()
	d.returned(d.next(), dispatch.Retry)
	d.told(dispatch.TopicPaused, dispatch.TopicResumed, dispatch.RowRejected)
	d.settle()
	if n := len(d.drain()); n != 1 {
		t.Fatalf("%d published", n)
	}
}

// The retry of a blocked row is its topic's probe, in turn with other keys, and the row stays blocked whatever the
// result.
func TestBlockedRowOnAPausedTopic(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "down", 1, 2)
	d.put(0, "y", "down", 3)
	d.read()
	d.returned(d.next(1), dispatch.Retry)
	d.settle()
	d.returned(d.next(3), dispatch.Unavailable)
	d.tick(time.Second)
	d.read()
	d.returned(d.next(3), dispatch.Unavailable)
	d.tick(2 * time.Second)
	d.read()
	c := d.next(1)
	d.none()
	d.returned(c, dispatch.Unavailable)
	d.tick(3 * time.Second)
	d.read()
	d.returned(d.next(), dispatch.OK)
	got := d.drain()
	if i, j := slices.Index(got, 1), slices.Index(got, 2); i > j {
		t.Fatalf("published %v", got)
	}
}

// The probe of a topic is the first unsettled message of its key.
func TestProbeIsTheFirstOfItsKey(t *testing.T) {
	d := newDesk(t, dispatch.Config{KeyRows: 1})
	d.put(0, "x", "down", ids(1, 9)...)
	d.read()
	c := d.next(1)
	d.read()
	d.returned(c, dispatch.Unavailable)
	d.tick(time.Second)
	d.read()
	d.next(1)
}

func TestTopicWithoutAnyMessageOpens(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "down", 1)
	d.read()
	d.returned(d.next(1), dispatch.Unavailable)
	delete(d.table, 1)
	d.tick(time.Second)
	d.read()
	d.read()
	d.told(dispatch.TopicPaused, dispatch.TopicResumed)
	if d.read(); !d.b.Quiet() {
		t.Fatal("not quiet")
	}
}

func TestReportsComeInOrder(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "a", 1)
	d.put(0, "y", "b", 2)
	d.put(0, "z", "c", 3)
	d.read()
	cs := []*dispatch.Call{d.next(1), d.next(2), d.next(3)}
	d.b.Returned(d.now, cs[0], result(dispatch.Retry))
	d.b.Returned(d.now, cs[1], result(dispatch.Unavailable))
	d.b.Returned(d.now, cs[2], result(dispatch.Permanent))
	_, failed := d.b.Results(10)
	d.calls = nil
	d.write(nil, failed)
	d.told(dispatch.RowRejected, dispatch.TopicPaused, dispatch.RowDead)
}

func TestManyTopicsAreForgotten(t *testing.T) {
	d := newDesk(t, dispatch.Config{Rows: 10000})
	d.check = false
	for id := int64(1); id <= 5000; id++ {
		d.put(0, "", string(rune(0x4e00+id)), id)
	}
	d.drain()
	if n := d.b.Sizes().Topics; n > 1024 {
		t.Fatalf("%d topics are remembered", n)
	}
}

// A forwarder that has released its lanes does not report forever that a topic is paused.
func TestPauseEndsWithTheLanes(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "down", 1)
	d.read()
	d.returned(d.next(1), dispatch.Unavailable)
	d.b.LanesLost(d.terms[0])
	d.after()
	if tick, _ := d.b.NextTimes(); !tick.Equal(d.now.Add(time.Second)) || !d.b.Quiet() {
		t.Fatalf("tick %v", tick)
	}
	d.tick(time.Second)
	d.told(dispatch.TopicPaused, dispatch.TopicResumed)
}

func TestTopicThatAnOperatorPaused(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "held", 1, 2)
	d.put(0, "", "held", 3)
	d.put(0, "y", "other", 4)
	d.read()
	c := d.next()
	d.pause("held")
	d.told(dispatch.TopicPaused)
	d.tick(0)
	d.returned(c, dispatch.Unavailable) // its broker is unreachable too
	d.told(dispatch.TopicPaused)
	d.tick(time.Hour)
	d.want(d.drain(), 4)
	if d.b.Quiet() {
		t.Fatal("quiet while a topic is paused by an operator")
	}
	if tick, read := d.b.NextTimes(); !read.IsZero() || !tick.After(d.now) {
		t.Fatalf("tick %v, read %v, although no probe is due", tick, read)
	}
	d.reports = nil
	d.pause()
	d.told(dispatch.TopicResumed)
	got := d.drain() // the probe, and then the others
	if i, j := slices.Index(got, 1), slices.Index(got, 2); i > j {
		t.Fatalf("published %v", got)
	}
	slices.Sort(got)
	d.want(got, 1, 2, 3)
}

// A row that a sweep found while a read was about to return it is not an orphan: it waits for its retry like any other
// row.
func TestWhatASweepFoundWasReadMeanwhile(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "", "a", 1)
	a := d.begin()
	d.b.Orphans(d.terms[0], orphans(1))
	d.finish(a, d.answer(a))
	d.returned(d.next(1), dispatch.Retry)
	d.settle()
	d.read()
	d.none()
	if i := slices.IndexFunc(d.reports, func(r dispatch.Report) bool { return r.Kind == dispatch.OrphanFound }); i >= 0 {
		t.Fatalf("an orphan was reported: %+v", d.reports[i])
	}
	d.tick(time.Second)
	d.read()
	d.want(d.drain(), 1)
}

// TestDelayedMessagesProbeTheirTopic: while only messages that fell due wait for a paused topic, it is not opened
// between two probes, and the pause grows.
func TestDelayedMessagesProbeTheirTopic(t *testing.T) {
	for _, key := range []string{"", "k"} {
		for _, attempts := range []int{0, 1} {
			t.Run(fmt.Sprintf("key %q attempts %d", key, attempts), func(t *testing.T) {
				d := newDesk(t, dispatch.Config{})
				d.put(0, key, "down", 1)
				d.table[1].due, d.table[1].attempts = d.now, attempts
				d.read()
				d.read()
				d.returned(d.next(1), dispatch.Unavailable)
				d.told(dispatch.TopicPaused)
				for pause := range 3 {
					d.tick(time.Duration(pause+1) * time.Second)
					d.read()
					d.read()
					call := d.next(1)
					if !call.Probe {
						t.Fatal("it is no probe")
					}
					d.returned(call, dispatch.Unavailable)
					d.told(dispatch.TopicPaused)
				}
			})
		}
	}
}

// TestProbeCandidatesAreDifferent: failed rows without a key that several drains read are no further candidates, so a
// good row soon probes their topic.
func TestProbeCandidatesAreDifferent(t *testing.T) {
	d := newDesk(t, dispatch.Config{Concurrency: 8})
	d.breaks("a", 1, 6)
	d.put(0, "", "a", 7)
	d.read() // it is deferred
	d.put(0, "", "a", 91, 92, 93, 94)
	for id := int64(91); id <= 94; id++ {
		d.table[id].attempts, d.table[id].due = 1, d.now
	}
	for range 12 {
		for range 3 {
			d.b.ReadAllDue()
			d.read()
		}
		c := d.tried()
		if c.Row.ID == 7 {
			return
		}
		d.returned(c, dispatch.Unknown)
	}
	t.Fatal("the good row does not probe its topic")
}

// TestRetryWithoutAKeyProbesItsTopic: the first read after a pause brings a probe, however many retries are overdue,
// and the others wait for the topic.
func TestRetryWithoutAKeyProbesItsTopic(t *testing.T) {
	for _, rows := range []int{2, 13} { // more than a read requests
		d := newDesk(t, dispatch.Config{Concurrency: 20, Rows: 40})
		d.rarely = true
		d.put(0, "", "down", ids(1, int64(rows))...)
		d.read()
		for c := d.next(); c != nil; c = d.next() {
			wait := 1500 * time.Millisecond
			if c.Row.ID == 1 {
				wait = time.Second
			}
			d.answered(c, dispatch.Result{Verdict: dispatch.Retry, Err: errBroker, Wait: wait})
		}
		d.settle()
		d.tick(time.Second)
		d.read()
		d.returned(d.next(1), dispatch.Unavailable)
		for failures := range 3 {
			d.tick(500 * time.Millisecond) // all are overdue
			d.read()
			d.none()
			d.tick(time.Duration(failures+1)*time.Second - 500*time.Millisecond)
			d.read()
			c := d.next()
			if c == nil || !c.Probe {
				t.Fatalf("%d rows: no probe is sent after %d failures", rows, failures+1)
			}
			d.none()
			d.returned(c, dispatch.Unavailable)
			if n := d.b.Sizes().Keyless; n != rows {
				t.Fatalf("%d of %d rows wait for another attempt", n, rows)
			}
		}
		d.tick(4 * time.Second)
		d.read()
		d.returned(d.next(), dispatch.OK)
		if got := d.drain(); len(got) != rows-1 {
			t.Fatalf("%d rows: %v published", rows, got)
		}
		if d.read(); !d.b.Quiet() {
			t.Fatal("not quiet in the end")
		}
	}
}

// TestRetryProbesItsTopicBehindOtherRetries: earlier retries of another topic are all that a read requests. The topic
// is not opened between two probes, and the pause grows.
func TestRetryProbesItsTopicBehindOtherRetries(t *testing.T) {
	for _, key := range []string{"", "k"} {
		t.Run("key "+key, func(t *testing.T) {
			d := newDesk(t, dispatch.Config{Concurrency: 20, Rows: 4}) // a read requests 2 retries
			d.put(0, key, "down", 1)
			d.read()
			d.returned(d.next(1), dispatch.Retry)
			d.settle()
			d.put(0, "", "refuses", ids(2, 5)...)
			d.read()
			for c := d.next(); c != nil; c = d.next() {
				d.returned(c, dispatch.Retry)
			}
			d.settle()
			d.tick(time.Second)
			d.read()
			c := d.next()
			for ; c.Row.ID != 1; c = d.next() {
				d.returned(c, dispatch.Retry)
			}
			d.reports = nil
			d.returned(c, dispatch.Unavailable)
			d.told(dispatch.TopicPaused)
			for pause := range 3 {
				d.tick(time.Duration(pause+1) * time.Second)
				d.read()
				for c = d.next(); c != nil && c.Row.ID != 1; c = d.next() {
					d.answered(c, dispatch.Result{Verdict: dispatch.Retry, Err: errBroker, Wait: time.Millisecond})
				}
				if c == nil || !c.Probe {
					t.Fatalf("no probe is sent after %d failures: %+v", pause+1, d.reports)
				}
				d.settle()
				d.reports = nil
				d.returned(c, dispatch.Unavailable)
				d.told(dispatch.TopicPaused)
			}
		})
	}
}

// TestWaitingRetryIsNoProbe: a row that was a candidate before it was rejected waits for its backoff.
func TestWaitingRetryIsNoProbe(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "", "down", 1, 2)
	d.read()
	c1, c2 := d.next(1), d.next(2)
	d.returned(c2, dispatch.Unavailable)
	d.returned(c1, dispatch.Unavailable)
	d.tick(time.Second)
	d.read()
	probe := d.next()
	d.returned(probe, dispatch.OK)
	d.settle()
	d.put(0, "", "down", 3)
	d.read()
	first, second := d.next(), d.next()
	if first == nil || second == nil {
		t.Fatal("the topic is not open")
	}
	rejected := first.Row.ID
	d.answered(first, dispatch.Result{Verdict: dispatch.Retry, Err: errBroker, Wait: time.Hour})
	d.settle()
	d.returned(second, dispatch.Unavailable)
	for range 5 {
		d.tick(time.Minute)
		d.read()
		if c := d.next(); c != nil && c.Row.ID == rejected {
			t.Fatal("it is sent before its time")
		} else if c != nil {
			d.returned(c, dispatch.Unavailable)
		}
	}
}

// TestDeadCandidateWithoutAKey: it is gone, so its topic opens.
func TestDeadCandidateWithoutAKey(t *testing.T) {
	d := newDesk(t, dispatch.Config{BlockKeyOnDead: true})
	d.put(0, "", "down", 1)
	d.read()
	d.returned(d.next(1), dispatch.Unavailable)
	d.table[1].dead = true
	d.tick(time.Second)
	for range 3 {
		d.read()
	}
	d.none()
	d.told(dispatch.TopicPaused, dispatch.TopicResumed)
	if !d.b.Quiet() {
		t.Fatal("it is not quiet")
	}
}

// The probe of a topic succeeds, and an operator pauses the topic before its keys are caught up: the next row of the
// probe's key, on another topic, waits for nothing.
func TestPausedAfterItsProbe(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "down", 1)
	d.put(0, "x", "other", 2)
	d.read()
	d.returned(d.next(1), dispatch.Unavailable)
	d.tick(time.Second)
	d.read()
	d.returned(d.next(1), dispatch.OK)
	d.pause("down")
	d.settle()
	d.read()
	d.next(2)
}
