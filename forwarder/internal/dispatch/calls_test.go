package dispatch_test

import (
	"slices"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

func TestRowsOfAKeyFollowEachOther(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "k", "a", 1, 2)
	d.put(0, "", "a", 3, 4)
	d.read()
	c := d.next(1)
	d.next(3)
	d.next(4)
	d.none()
	d.returned(c, dispatch.OK)
	d.next(2)
}

func TestCallsAreLimited(t *testing.T) {
	d := newDesk(t, dispatch.Config{Concurrency: 2})
	d.put(0, "", "a", ids(1, 10)...)
	d.put(0, "", "b", ids(11, 20)...)
	d.read()
	if d.last.Publish != 2 {
		t.Fatalf("%d workers are of use, want 2", d.last.Publish)
	}
	d.next(1)
	d.next(11) // topics take turns
	d.none()
	d.tick(time.Second) // both are slow now, and free their slots
	d.next()
	d.next()
	d.none()
	d.tick(time.Second)
	if c := d.next(); c != nil {
		t.Fatalf("topic %s has two slow calls, and row %d is a third", c.Row.Topic, c.Row.ID)
	}
}

func TestCallsOfAnyAgeAreLimited(t *testing.T) {
	d := newDesk(t, dispatch.Config{Concurrency: 1})
	for id := int64(1); id <= 10; id++ {
		d.put(0, "", string(rune('a'+id)), id)
	}
	d.read()
	for range 8 {
		if d.next() == nil {
			t.Fatal("a slow call keeps another topic's from starting")
		}
		d.tick(time.Second)
	}
	d.none()
}

// A hung topic keeps its own slots and nothing else: neither the calls nor the memory of the others.
func TestHungTopicDoesNotStopOthers(t *testing.T) {
	d := newDesk(t, dispatch.Config{Concurrency: 2, Rows: 64, PublishTimeout: 30 * time.Second})
	d.put(0, "", "hung", ids(1, 500)...)
	d.put(0, "", "fine", ids(501, 700)...)
	var hung []*dispatch.Call
	fine := 0
	for range 200 {
		d.read()
		for c := d.next(); c != nil; c = d.next() {
			if c.Row.Topic == "hung" {
				hung = append(hung, c)
			} else {
				d.returned(c, dispatch.OK)
				fine++
			}
		}
		d.settle()
		d.tick(time.Second)
	}
	if fine != 200 || len(hung) != 2 {
		t.Fatalf("%d of 200 published next to a hung topic, %d hang", fine, len(hung))
	}
	d.reports = nil
	d.timesOut(dispatch.Retry)
	d.told(dispatch.RowRejected, dispatch.TopicExhausted, dispatch.RowRejected)
	d.settle()
	if c := d.b.Counts(); c.Rows > 64 || c.Hung != 2 {
		t.Fatalf("%+v", c)
	}
	d.read()
	d.none()
	d.reports = nil
	d.tick(time.Minute)
	d.told(dispatch.TopicExhausted)
	for _, c := range hung {
		d.returned(c, dispatch.OK)
	}
	d.told(dispatch.TopicResumed)
	if n := len(d.drain()); n < 498 {
		t.Fatalf("%d published after the hung calls returned", n)
	}
	if len(d.table) > 0 || !d.b.Quiet() {
		t.Fatalf("%d left", len(d.table))
	}
}

func TestTimedOutCall(t *testing.T) {
	start := func(t *testing.T) (*desk, *dispatch.Call) {
		d := newDesk(t, dispatch.Config{PublishTimeout: 10 * time.Second})
		d.put(0, "k", "a", 1, 2)
		d.read()
		c := d.next(1)
		d.tick(10 * time.Second)
		return d, c
	}
	t.Run("returns before the timeout is reported", func(t *testing.T) {
		d, c := start(t)
		d.returned(c, dispatch.OK)
		d.timesOut(dispatch.Retry)
		d.next(2)
		d.told()
	})
	t.Run("late success", func(t *testing.T) {
		d, c := start(t)
		d.timesOut(dispatch.Retry)
		d.none() // its key is blocked
		d.settle()
		d.returned(c, dispatch.OK)
		d.settle()
		d.want(d.drain(), 2)
	})
	t.Run("late success while the next attempt is read", func(t *testing.T) {
		d, c := start(t)
		d.timesOut(dispatch.Retry)
		d.settle()
		d.tick(2 * time.Second)
		a := d.begin()
		r := d.answer(a)
		d.returned(c, dispatch.OK)
		d.finish(a, r)
		d.none()
		d.settle()
		d.want(d.drain(), 2)
	})
	t.Run("late success before the next attempt begins", func(t *testing.T) {
		d, c := start(t)
		d.timesOut(dispatch.Retry)
		d.settle()
		d.tick(2 * time.Second)
		d.read()
		d.returned(c, dispatch.OK)
		d.settle()
		d.want(d.drain(), 2)
	})
	t.Run("late error", func(t *testing.T) {
		d, c := start(t)
		d.timesOut(dispatch.Retry)
		d.returned(c, dispatch.Retry)
		_, failed := d.b.Results(10)
		if len(failed) != 1 {
			t.Fatalf("charged %d times", len(failed))
		}
		d.write(nil, failed)
		d.tick(2 * time.Second)
		d.want(d.drain(), 1, 2)
	})
	t.Run("late success of a message that waits for a paused topic", func(t *testing.T) {
		d, c := start(t)
		d.timesOut(dispatch.Unavailable)
		d.returned(c, dispatch.OK)
		d.settle()
		d.tick(2 * time.Second)
		d.want(d.drain(), 2)
	})
	t.Run("twice", func(t *testing.T) {
		d, c := start(t)
		d.timesOut(dispatch.Retry)
		d.b.TimedOut(d.now, c, result(dispatch.Retry))
		d.after()
		d.returned(c, dispatch.Retry)
		d.returned(c, dispatch.OK)
		if published, failed := d.b.Results(10); len(published)+len(failed) != 1 {
			t.Fatalf("%d published, %d failed", len(published), len(failed))
		}
	})
}

func TestSlowTopicKeepsLittleInMemory(t *testing.T) {
	d := newDesk(t, dispatch.Config{Concurrency: 1, Rows: 160})
	d.put(0, "", "slow", ids(1, 100)...)
	d.read()
	c := d.next(1)
	d.tick(time.Second)
	if n := d.b.Counts().Rows; n > 11 {
		t.Fatalf("%d rows of a slow topic in memory", n)
	}
	d.returned(c, dispatch.OK)
	d.settle()
	if got := d.drain(); len(got) != 99 {
		t.Fatalf("%d published", len(got))
	}
}

func TestDue(t *testing.T) {
	d := newDesk(t, dispatch.Config{PublishTimeout: 10 * time.Second})
	due := func(tick, read time.Duration) {
		t.Helper()
		gotTick, gotRead := d.b.NextTimes()
		for _, x := range []struct {
			got  time.Time
			want time.Duration
		}{{gotTick, tick}, {gotRead, read}} {
			if want := time.Unix(1e9, 0).Add(x.want); x.want < 0 && !x.got.IsZero() || x.want >= 0 && !x.got.Equal(want) {
				t.Fatalf("tick %v, read %v", gotTick, gotRead)
			}
		}
	}
	due(-1, -1)
	d.put(0, "x", "a", 1)
	d.put(0, "y", "b", 2)
	d.put(0, "z", "c", 3)
	d.read()
	due(-1, -1)
	d.now = d.now.Add(time.Millisecond)
	c1 := d.next(1)
	due(1001*time.Millisecond, -1)
	d.now = d.now.Add(time.Second)
	d.next(2)
	d.b.Tick(d.now)
	d.after()
	due(2001*time.Millisecond, -1) // 2 becomes slow
	d.tick(time.Second)
	due(10001*time.Millisecond, -1) // 1 expires
	d.returned(c1, dispatch.Retry)
	d.settle()
	due(11001*time.Millisecond, 3001*time.Millisecond) // 2 expires; 1 is due for a retry
	d.returned(d.next(3), dispatch.Unavailable)
	due(11001*time.Millisecond, 3001*time.Millisecond)
	d.now = d.now.Add(time.Second)
	d.read()
	d.next(1)
}

// TestRowsThatWaitedTakeTurns: many that recover together delay the others of their topic by one call each.
func TestRowsThatWaitedTakeTurns(t *testing.T) {
	d := newDesk(t, dispatch.Config{Concurrency: 1})
	d.put(0, "", "a", 1, 2, 3)
	d.read()
	for range 3 {
		d.returned(d.next(), dispatch.Retry)
	}
	d.settle()
	d.tick(time.Second)
	d.read()
	d.put(0, "", "a", 4, 5, 6)
	d.read()
	d.want(d.drain(), 4, 1, 5, 2, 6, 3)
}

// A topic whose calls all hang is named, even if so few of its rows are in memory that it is not closed.
func TestExhaustedTopicIsNotPublishedTo(t *testing.T) {
	d := newDesk(t, dispatch.Config{Concurrency: 1, PublishTimeout: time.Minute})
	d.put(0, "", "hung", 1)
	d.read()
	c := d.next(1)
	d.tick(time.Minute)
	d.timesOut(dispatch.Retry)
	if topics := d.b.NotPublished(); !slices.Equal(topics, []string{"hung"}) || d.b.IsClosed("hung") {
		t.Fatalf("not published to %q, closed %v", topics, d.b.IsClosed("hung"))
	}
	d.returned(c, dispatch.Retry)
	if topics := d.b.NotPublished(); len(topics) > 0 {
		t.Fatalf("not published to %q once the call returned", topics)
	}
}
