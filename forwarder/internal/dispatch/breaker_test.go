package dispatch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

func (d *desk) charged() (ids []int64) {
	d.t.Helper()
	_, failed := d.b.Results(0)
	if len(failed) > 0 {
		d.t.Fatal("unrequested failures")
	}
	published, failed := d.b.Results(1000)
	for _, f := range failed {
		ids = append(ids, f.Row.ID)
	}
	d.write(published, failed)
	return ids
}

func TestAMessageThatFailsAloneIsCharged(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "a", 1, 2)
	d.read()
	for i := range 5 {
		c := d.next(1)
		if c.Attempt != i+1 {
			t.Fatalf("attempt %d", c.Attempt)
		}
		d.returned(c, dispatch.Unknown)
		d.want(d.charged(), 1)
		d.tick(time.Minute)
		d.read()
	}
}

// tried waits for a probe.
func (d *desk) tried() *dispatch.Call {
	d.t.Helper()
	for range 100 {
		d.read()
		if c := d.next(); c != nil {
			return c
		}
		_, read := d.b.NextTimes()
		d.tick(max(0, read.Sub(d.now)))
	}
	d.t.Fatal("it reads and reads")
	return nil
}

func TestBlockedRowsWaitForTheirTopicsPause(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "a", 1)
	d.put(0, "y", "b", 2)
	d.put(0, "z", "b", 3)
	d.read()
	c1, c2 := d.next(1), d.next(2)
	d.returned(c1, dispatch.Retry)
	d.settle()
	d.returned(c2, dispatch.Unavailable)
	d.tick(time.Second)
	for range 60 {
		d.returned(d.tried(), dispatch.Unavailable)
	}
	for range 3 { // one of b, one of a, and the other one of b
		d.returned(d.tried(), dispatch.OK)
		d.drain()
		if len(d.table) == 0 {
			return
		}
	}
	t.Fatalf("%d rows are left", len(d.table))
}

func TestFewFailuresAreCharged(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "a", 1, 2)
	d.put(0, "y", "a", 3)
	d.read()
	c1, c3 := d.next(1), d.next(3)
	d.returned(c1, dispatch.Unknown)
	d.want(d.charged(), 1)
	d.told(dispatch.RowRejected)
	d.none() // row 2 waits for row 1
	d.returned(c3, dispatch.OK)
	d.tick(time.Second)
	d.read()
	d.returned(d.next(1), dispatch.OK)
	d.want(d.drain(), 2)
}

// Four failing messages without a success in between are charged however often they fail; a fifth one pauses the topic.
func TestFourMessagesThatFailInTurnsAreCharged(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	for id := range int64(4) {
		d.put(0, fmt.Sprint(id), "a", id+1)
	}
	for range 5 {
		d.tick(time.Minute)
		d.read()
		var calls []*dispatch.Call
		for id := range int64(4) {
			calls = append(calls, d.next(id+1))
		}
		for _, c := range calls {
			d.returned(c, dispatch.Unknown)
		}
		d.want(d.charged(), 1, 2, 3, 4)
	}
	d.want(d.breaks("a", 5, 1))
}

// breaks makes messages of a topic fail, one per key, and returns which were charged.
func (d *desk) breaks(topic string, first, n int64) (charged []int64) {
	d.t.Helper()
	for id := first; id < first+n; id++ {
		d.put(0, fmt.Sprint(id), topic, id)
	}
	d.read()
	var calls []*dispatch.Call
	for id := first; id < first+n; id++ {
		calls = append(calls, d.next(id))
	}
	for _, c := range calls {
		d.returned(c, dispatch.Unknown)
	}
	return d.charged()
}

func TestTheFifthFailureInARowPausesTheTopic(t *testing.T) {
	d := newDesk(t, dispatch.Config{Concurrency: 64})
	d.want(d.breaks("a", 1, 64), 1, 2, 3, 4)
	paused := 0
	for _, r := range d.reports {
		if r.Kind == dispatch.TopicPaused {
			paused++
			if !r.Unclassified || r.Err != errBroker {
				t.Fatalf("%+v", r)
			}
		}
	}
	if c := d.b.Counts(); paused != 1 || c.Waiting != 60 {
		t.Fatalf("paused %d times, %+v", paused, c)
	}
	for range 5 { // the probes are not charged
		d.tick(time.Minute)
		d.read()
		d.returned(d.next(), dispatch.Unknown)
		d.none()
	}
	d.want(d.charged())
	d.tick(time.Minute)
	d.read()
	d.returned(d.next(), dispatch.OK)
	d.tick(time.Minute)
	if d.drain(); len(d.table) != 0 {
		t.Fatalf("%d rows are left", len(d.table))
	}
}

// Topics with one message each together show that their publisher's broker is down, and not another publisher's.
func TestTopicsOfAPublisherFailTogether(t *testing.T) {
	for _, same := range []bool{true, false} {
		d := newDesk(t, dispatch.Config{Concurrency: 64, Broker: func(topic string) int {
			if topic == "b" && !same {
				return 1
			}
			return 0
		}})
		d.want(d.breaks("a", 1, 10), 1, 2, 3, 4)
		if same {
			d.want(d.breaks("b", 11, 1))
		} else {
			d.want(d.breaks("b", 11, 1), 11)
		}
	}
}

func TestASuccessStartsTheCountAgain(t *testing.T) {
	d := newDesk(t, dispatch.Config{Concurrency: 64})
	d.want(d.breaks("a", 1, 4), 1, 2, 3, 4)
	d.put(0, "x", "a", 5)
	d.read()
	d.returned(d.next(5), dispatch.OK)
	d.settle()
	d.want(d.breaks("a", 6, 5), 6, 7, 8, 9)
}

// The newest message that waits for a topic is the next probe, even if it is one of many failing messages in memory.
func TestTheNewestMessageIsTheNextProbe(t *testing.T) {
	d := newDesk(t, dispatch.Config{Concurrency: 5})
	const newest = 106
	for id := int64(1); id < newest; id++ {
		d.put(0, fmt.Sprint(id), "a", id)
	}
	d.put(0, "", "a", newest)
	d.read()
	var calls []*dispatch.Call
	for id := int64(1); id <= 5; id++ {
		calls = append(calls, d.next(id))
	}
	for _, c := range calls {
		d.returned(c, dispatch.Unknown)
	}
	d.charged()
	for range 4 { // every second turn goes to messages that failed before
		c := d.tried()
		if c.Row.ID == newest {
			return
		}
		d.returned(c, dispatch.Unknown)
	}
	t.Fatal("others are tried first")
}
