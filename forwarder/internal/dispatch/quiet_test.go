package dispatch_test

import (
	"slices"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

// notQuiet fails if the dispatcher is quiet although this message may be published.
func (d *desk) notQuiet(id int64) {
	d.t.Helper()
	if d.b.Quiet() {
		d.t.Fatalf("it is quiet while row %d is due", id)
	}
}

// TestNotQuietWhileRequeuedRowsAreUnknown: all due rows that a read finds in a lane wait for the first row of another
// key, so a blocked row checks again whether others were requeued with it.
func TestNotQuietWhileRequeuedRowsAreUnknown(t *testing.T) {
	d := newDesk(t, dispatch.Config{Rows: 100}, 0, 1, 2, 3, 4, 5, 6, 7) // room for 6 due rows of a lane
	d.put(0, "y", "a", 1)
	d.put(0, "x", "a", ids(2, 10)...)
	for _, m := range d.table {
		m.attempts, m.due, m.act = 1, d.now.Add(-time.Second), "1"
	}
	d.table[1].due, d.table[1].act = d.now, "2"
	d.table[2].due = d.now.Add(time.Minute)
	d.take(0)
	d.read()
	d.notQuiet(1)
	d.tick(time.Second)
	d.want(d.drain(), 1)
	if !d.b.Quiet() {
		t.Fatal("it is not quiet although all remaining rows wait")
	}
}

// TestNotQuietWhileAKeyHasItsTurn to probe a topic: the retry of a blocked row of the topic is postponed.
func TestNotQuietWhileAKeyHasItsTurn(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "down", 1)
	d.put(0, "y", "down", 2)
	d.read()
	d.returned(d.next(1), dispatch.Retry)
	d.settle()
	d.returned(d.next(2), dispatch.Unavailable)
	d.tick(time.Second)
	d.read()
	c := d.next(2)
	a := d.begin()
	r := d.answer(a) // without due rows of a paused topic
	d.returned(c, dispatch.OK)
	d.settle()
	d.finish(a, r)
	d.notQuiet(1)
	d.act("glance", nil)
	d.notQuiet(1)
	d.want(d.drain(), 1)
}

// TestDueRowsOfAnOpenBreaker that have no key are not read: nothing waits for them. Once it is closed, perhaps by a
// probe during a read that left them out, the next read looks for them, or a drain would miss them.
func TestDueRowsOfAnOpenBreaker(t *testing.T) {
	d := newDesk(t, dispatch.Config{Concurrency: 8})
	d.breaks("a", 1, 5)
	d.put(0, "", "a", 6)
	d.table[6].attempts, d.table[6].due = 1, d.now
	d.tick(time.Second)
	d.rarely = true
	d.read()
	c := d.next()
	a := d.begin()
	d.rarely = false
	r := d.answer(a)
	if slices.Contains(rowIDs(r.Due), 6) {
		t.Error("it is read")
	}
	d.returned(c, dispatch.OK)
	d.settle()
	d.finish(a, r)
	if a = d.begin(); !a.WantDue || !slices.Contains(rowIDs(d.answer(a).Due), 6) {
		t.Error("it is not read after the breaker closed")
	}
}

// TestAReadFollowsAClosedBreaker, because reads left out its due rows: it does not wait for the next poll.
func TestAReadFollowsAClosedBreaker(t *testing.T) {
	d := newDesk(t, dispatch.Config{Concurrency: 8})
	d.put(0, "", "a", ids(1, 5)...)
	d.read()
	for range 5 {
		d.returned(d.next(), dispatch.Retry)
	}
	d.settle()
	d.tick(time.Second)
	d.read()
	for range 5 { // nothing is deferred, because they are retries
		d.returned(d.next(), dispatch.Unknown)
	}
	d.settle()
	d.tick(time.Second)
	d.read()
	d.read()
	c := d.next()
	if d.none(); !c.Probe {
		t.Fatal("the breaker is not open")
	}
	if d.returned(c, dispatch.OK); !d.last.Read {
		t.Fatal("no read follows")
	}
}

// TestNotQuietWhileARetryIsOverdue because its topic was slow.
func TestNotQuietWhileARetryIsOverdue(t *testing.T) {
	d := newDesk(t, dispatch.Config{Concurrency: 1, Rows: 16})
	d.put(0, "x", "a", 1)
	d.read()
	d.returned(d.next(1), dispatch.Retry)
	d.settle()
	d.put(0, "", "a", 2, 3)
	d.read()
	c := d.next(2)
	d.tick(2 * time.Second)
	d.read()
	d.returned(c, dispatch.OK)
	d.returned(d.next(3), dispatch.OK)
	d.settle()
	d.act("glance", nil)
	d.notQuiet(1)
	d.want(d.drain(), 1)
}

// TestQuietNamesTheTopicOfABlockedRow that an operator has paused; after it is resumed the blocked row is due
// immediately.
func TestQuietNamesTheTopicOfABlockedRow(t *testing.T) {
	for _, key := range []string{"", "x"} {
		t.Run("key "+key, func(t *testing.T) { quietNamesTheTopicOfABlockedRow(t, key) })
	}
}

func quietNamesTheTopicOfABlockedRow(t *testing.T, key string) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, key, "held", 1)
	d.read()
	d.returned(d.next(1), dispatch.Retry)
	d.settle()
	d.pause("held")
	d.read()
	if quiet, paused := d.b.QuietButPaused(); !quiet || len(paused) > 0 {
		t.Fatalf("quiet %v, topics %q wait, before the blocked row is due", quiet, paused)
	}
	d.tick(time.Minute)
	d.read()
	if quiet, paused := d.b.QuietButPaused(); !quiet || !slices.Equal(paused, []string{"held"}) {
		t.Fatalf("quiet %v, topics %q wait", quiet, paused)
	}
	d.pause()
	d.notQuiet(1)
	d.act("glance", nil)
	d.returned(d.next(1), dispatch.OK)
}

// TestQuietNamesTheTopicOfADueRow that was dropped, or could not be kept, because an operator paused its topic.
func TestQuietNamesTheTopicOfADueRow(t *testing.T) {
	for _, c := range []struct {
		name     string
		key      string
		attempts int
		inMemory bool
	}{
		{"delayed, in memory", "", 0, true},
		{"delayed, being read", "", 0, false},
		{"delayed with a key, being read", "x", 0, false},
		{"failed, in memory", "", 1, true},
		{"failed, being read", "", 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t, dispatch.Config{})
			d.put(0, c.key, "held", 1)
			if d.table[1].due = d.now; c.attempts > 0 {
				d.read()
				d.returned(d.next(1), dispatch.Retry)
				d.settle()
				d.tick(time.Second)
			}
			a := d.begin()
			r := d.answer(a)
			if c.inMemory {
				d.finish(a, r)
				d.pause("held")
				d.tick(0)
			} else {
				d.pause("held")
				d.finish(a, r)
			}
			d.read()
			if quiet, paused := d.b.QuietButPaused(); !quiet || !slices.Equal(paused, []string{"held"}) {
				t.Fatalf("quiet %v, topics %q wait", quiet, paused)
			}
			d.pause()
			d.want(d.drain(), 1)
			if d.read(); !d.b.Quiet() {
				t.Fatal("not quiet in the end")
			}
		})
	}
}

// TestQuietNamesTheTopicOfADueRowBehindALateOne: a read had no room for the payload of the due row before it.
func TestQuietNamesTheTopicOfADueRowBehindALateOne(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.pause("held")
	d.put(0, "", "a", 1)
	d.put(0, "", "held", 2)
	d.table[1].due, d.table[2].due = d.now.Add(-time.Second), d.now
	d.b.ReadAllDue()
	a := d.begin()
	r := d.answer(a)
	r.Due[0].Large = true
	r.RemoveLarge(map[int64]bool{1: true})
	d.finish(a, r)
	d.want(d.drain(), 1)
	if quiet, paused := d.b.QuietButPaused(); !quiet || !slices.Equal(paused, []string{"held"}) {
		t.Fatalf("quiet %v, topics %q wait", quiet, paused)
	}
}

// TestQuietForgetsDueRowsThatAreGone: an operator discarded them while their topic was paused.
func TestQuietForgetsDueRowsThatAreGone(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.pause("held")
	d.put(0, "", "held", 1)
	d.table[1].due = d.now
	read := func(want ...string) {
		t.Helper()
		d.read()
		if quiet, paused := d.b.QuietButPaused(); !quiet || !slices.Equal(paused, want) {
			t.Fatalf("quiet %v, topics %q wait, want %q", quiet, paused, want)
		}
	}
	d.b.ReadAllDue()
	read("held")
	read("held") // without due rows of closed topics
	d.b.ReadAllDue()
	read("held")
	delete(d.table, 1)
	read("held")
	d.b.ReadAllDue()
	read()
}

// TestQuietNamesThePausedTopicsOfATakenLane with due rows, which its previous owner may have seen.
func TestQuietNamesThePausedTopicsOfATakenLane(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.pause("held")
	d.read()
	d.put(0, "", "held", 1)
	d.table[1].due = d.now
	d.take(0)
	d.read()
	if quiet, paused := d.b.QuietButPaused(); !quiet || !slices.Equal(paused, []string{"held"}) {
		t.Fatalf("quiet %v, topics %q wait", quiet, paused)
	}
}

// TestQuietNamesATopicThatIsPausedLater, after a drain has read its due row: that was not kept because its key was
// blocked, or was forgotten when the topic was resumed.
func TestQuietNamesATopicThatIsPausedLater(t *testing.T) {
	names := func(d *desk) {
		t.Helper()
		d.read()
		d.read()
		if quiet, paused := d.b.QuietButPaused(); !quiet || !slices.Equal(paused, []string{"held"}) {
			t.Fatalf("quiet %v, topics %q wait", quiet, paused)
		}
	}
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "a", 1)
	d.read()
	d.returned(d.next(1), dispatch.Retry)
	d.settle()
	d.put(0, "x", "held", 2)
	d.table[2].due = d.now
	d.b.ReadAllDue()
	d.read()
	d.pause("held")
	d.tick(time.Minute)
	d.read()
	d.returned(d.next(1), dispatch.OK)
	d.settle()
	names(d)
	d.pause()
	d.pause("held")
	names(d)
}

// TestNotQuietBehindABlockedRowOfAPausedTopic: a blocked row of a paused topic is due while the blocked row of another
// key is published, so that key's next row may be published.
func TestNotQuietBehindABlockedRowOfAPausedTopic(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "x", "held", 1)
	d.put(0, "y", "a", 2, 3)
	for _, m := range d.table {
		m.attempts, m.due, m.act = 1, d.now, "1"
	}
	d.table[1].due = d.now.Add(time.Second)
	d.take(0)
	d.read()
	d.tick(50 * time.Millisecond) // the lane has been read
	d.read()
	c := d.next(2)
	d.b.PauseByOperator(d.now, []string{"held"})
	a := d.begin()
	r := d.answer(a)
	d.tick(2 * time.Second)
	d.returned(c, dispatch.OK)
	d.settle()
	d.finish(a, r)
	d.notQuiet(3)
	d.want(d.drain(), 3)
}

// TestNotQuietWhileWhatWasSettledComesAgain: a read returns a message that an operator has requeued, and the dispatcher
// mistakes it for the one being settled.
func TestNotQuietWhileWhatWasSettledComesAgain(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "", "a", 1)
	d.read()
	d.returned(d.next(1), dispatch.OK)
	published, _ := d.b.Results(10) // the database has settled it, and its response is on the way
	d.table[1].attempts, d.table[1].due, d.table[1].act = 1, d.now, "1"
	a := d.begin()
	r := d.answer(a)
	d.write(published, nil)
	d.finish(a, r)
	d.notQuiet(1)
	d.want(d.drain(), 1)
}

// TestNotQuietWithoutThePayloadOfWhatFellDue: the payload was not needed while the row waited for another one, which is
// gone.
func TestNotQuietWithoutThePayloadOfWhatFellDue(t *testing.T) {
	for _, key := range []string{"k", ""} {
		d := newDesk(t, dispatch.Config{KeyRows: 1})
		d.pause("a")
		d.put(0, key, "a", 1)
		d.read()
		d.pause()
		a := d.begin()
		delete(d.table, 1)
		d.put(0, key, "a", 2)
		d.table[2].due = d.now
		r := d.answer(a)
		r.Due[0].Large = true
		if key != "" && len(d.b.WantedPayloads(a, &r)) > 0 {
			t.Fatal("the payload is wanted although the row waits for another one")
		}
		d.finish(a, r)
		d.notQuiet(2)
		d.want(d.drain(), 2)
	}
}
