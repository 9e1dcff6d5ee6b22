package dispatch_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

func TestRejectedMessageHoldsItsKey(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "k", "a", 1, 2)
	d.put(0, "other", "a", 3)
	d.read()
	c := d.next(1)
	d.next(3)
	d.returned(c, dispatch.Retry)
	d.told(dispatch.RowRejected)
	d.none() // from the failure on, not only after it is settled
	d.put(0, "k", "a", 4)
	d.settle()
	d.read()
	d.none()
	d.tick(time.Second)
	d.read()
	c = d.next(1)
	if c.Attempt != 2 {
		t.Fatalf("attempt %d", c.Attempt)
	}
	d.none()
	d.returned(c, dispatch.OK)
	d.settle()
	d.want(d.drain(), 2, 4)
	if s := d.b.Sizes(); s.Keys != 1 || s.Known != 1 || s.Blocked != 0 { // row 3 is in flight
		t.Fatalf("%+v is left", s)
	}
}

// TestReceiverAsksForAWait: the requested wait replaces the backoff, and the key waits as long.
func TestReceiverAsksForAWait(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "k", "a", 1, 2)
	d.read()
	d.answered(d.next(1), dispatch.Result{Verdict: dispatch.Retry, Err: errBroker, Wait: time.Hour})
	d.settle()
	d.tick(time.Hour - time.Second)
	d.want(d.drain())
	d.tick(time.Second)
	d.want(d.drain(), 1, 2)
}

// TestSnoozedMessage: only the attempt that blocked its key is charged, and the message is not reported as rejected.
func TestSnoozedMessage(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "k", "a", 1, 2)
	d.read()
	snooze := dispatch.Result{Verdict: dispatch.Retry, Err: errBroker, Wait: time.Hour, Snooze: true}
	for range 2 {
		d.answered(d.next(1), snooze)
		d.settle()
		if n := d.table[1].attempts; n != 1 {
			t.Fatalf("%d attempts", n)
		}
		d.want(d.drain())
		d.tick(time.Hour)
		d.read()
	}
	d.told()
	d.want(d.drain(), 1, 2)
}

func TestRejectedMessageWithoutKeyIsTriedAgain(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "", "a", 1)
	d.read()
	d.returned(d.next(1), dispatch.Retry)
	d.settle()
	d.want(d.drain())
	d.tick(time.Second)
	d.want(d.drain(), 1)
}

func TestPermanentFailure(t *testing.T) {
	for _, blockKeyOnDead := range []bool{false, true} {
		d := newDesk(t, dispatch.Config{BlockKeyOnDead: blockKeyOnDead})
		d.put(0, "k", "a", 1, 2)
		d.read()
		d.returned(d.next(1), dispatch.Permanent)
		d.none()
		d.settle()
		d.told(dispatch.RowDead)
		if !blockKeyOnDead {
			d.want(d.drain(), 2)
			continue
		}
		d.want(d.drain())
		recheck := func() {
			began := d.now
			d.tick(time.Minute)
			d.b.BlockedSeen(d.now, began.Add(time.Second), d.terms[0], 0, 100, d.blocked(0))
			d.after()
		}
		recheck()
		d.want(d.drain()) // it is still dead
		delete(d.table, 1)
		recheck()
		d.want(d.drain(), 2)
	}
}

func TestOutcomes(t *testing.T) {
	start := func(t *testing.T) (*desk, []dispatch.Failure) {
		d := newDesk(t, dispatch.Config{})
		d.put(0, "k", "a", 1, 2)
		d.read()
		d.returned(d.next(1), dispatch.Retry)
		_, failed := d.b.Results(10)
		return d, failed
	}
	t.Run("gone", func(t *testing.T) {
		d, failed := start(t)
		delete(d.table, 1)
		d.write(nil, failed)
		d.want(d.drain(), 2)
	})
	t.Run("fenced", func(t *testing.T) {
		d, failed := start(t)
		d.b.Settled(d.now, nil, []dispatch.Outcome{{Failure: failed[0], Kind: dispatch.Fenced}})
		d.after()
		d.read()
		d.none()
		if c := d.b.Counts(); c != (dispatch.Counts{}) {
			t.Fatalf("%+v", c)
		}
	})
}

// When a cursor goes back, a read may return many rows that were deferred, and no longer are. Of these, and of due
// rows, only as many as there is room for are kept; the others are published later, in the order of their keys.
func TestReadReturnsMoreThanThereIsRoomFor(t *testing.T) {
	for _, key := range []string{"k", ""} {
		for _, delayed := range []bool{false, true} {
			const rows, most = 200, 2*10 + 8
			d := newDesk(t, dispatch.Config{Rows: 10})
			for id := int64(1); id <= rows; id++ {
				name := key
				if key != "" {
					name = fmt.Sprint(key, id%50)
				}
				if d.put(0, name, "a", id); delayed {
					d.table[id].due = d.now
				}
			}
			a := d.begin()
			a.Room.Rows, a.Due[0] = rows, rows
			d.finish(a, d.answer(a))
			if n := d.b.Counts().Rows; n < 10 || n > most {
				t.Errorf("key %q, delayed %v: %d rows in memory, with room for 10", key, delayed, n)
			}
			last, sent := map[string]int64{}, d.drain()
			for _, id := range sent {
				if name := fmt.Sprint(key, id%50); key != "" && !delayed && id < last[name] {
					t.Fatalf("row %d of key %s is published after %d", id, name, last[name])
				} else {
					last[name] = id
				}
			}
			if len(sent) != rows {
				t.Fatalf("key %q, delayed %v: %d of %d rows are published", key, delayed, len(sent), rows)
			}
		}
	}
}

func TestRowsOfAKeyAreBounded(t *testing.T) {
	d := newDesk(t, dispatch.Config{KeyRows: 4})
	d.put(0, "k", "a", ids(1, 50)...)
	d.put(0, "", "a", 51)
	d.read()
	if c := d.b.Counts(); c.Rows != 5 {
		t.Fatalf("%+v", c)
	}
	c := d.next(1)
	d.next(51)
	d.returned(c, dispatch.OK)
	d.want(d.drain(), ids(2, 50)...)
}

// A row that is read in one read with deferred rows precedes them if its id is lower.
func TestLowestGoesFirst(t *testing.T) {
	d := newDesk(t, dispatch.Config{KeyRows: 2})
	d.put(0, "k", "a", 1, 2, 6, 7)
	d.read()
	d.returned(d.next(1), dispatch.OK)
	c := d.next(2)
	d.settle()
	d.returned(c, dispatch.OK)
	d.put(0, "k", "a", 5) // it was committed after 6 and 7 were read
	d.marks[0] = 4
	first := d.begin()
	r := d.answer(first)
	if c := first.CatchUp; !slices.Equal(c.Keys, []string{"k"}) || c.From[0] != 6 {
		t.Fatalf("catches up with %+v", c)
	}
	d.finish(first, r) // 6 and 7 arrive, and 7 loses its slot
	d.next(5)
	d.none()
}

func TestSettledRowsAreKnownUntilAReadBegins(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "k", "a", 1)
	d.read()
	d.marks[0] = 0
	a := d.begin()
	r := d.answer(a) // it still sees row 1
	d.returned(d.next(1), dispatch.OK)
	d.settle()
	d.finish(a, r)
	d.none()
	if !d.b.Knows(d.terms[0], 1) {
		t.Fatal("row 1 is forgotten before a read began")
	}
	d.read()
	if d.b.Knows(d.terms[0], 1) {
		t.Fatal("row 1 is not forgotten")
	}
}

func TestBlockedRowsOfATakenLane(t *testing.T) {
	d := newDesk(t, dispatch.Config{}, 1)
	d.put(0, "k", "a", 1, 2)
	d.table[1].attempts, d.table[1].due = 3, d.now.Add(time.Hour)
	d.take(0)
	d.read()
	d.none()
	t.Run("after the recheck found them gone", func(t *testing.T) {
		d.t = t
		delete(d.table, 1)
		began := d.now
		d.now = d.now.Add(time.Second)
		d.b.BlockedSeen(d.now, began, d.terms[0], 5, 100, nil) // another page
		d.b.BlockedSeen(d.now, began.Add(-time.Hour), d.terms[0], 0, 100, nil)
		d.after()
		d.want(d.drain())
		d.b.BlockedSeen(d.now, d.now, d.terms[0], 0, 100, nil)
		d.after()
		d.want(d.drain(), 2)
	})
}

func TestRequeuedRowIsTriedImmediately(t *testing.T) {
	d := newDesk(t, dispatch.Config{}, 1)
	d.put(0, "k", "a", 1, 2)
	d.table[1].attempts, d.table[1].due = 3, d.now.Add(time.Hour)
	d.take(0)
	d.want(d.drain())
	d.table[1].due = d.now
	d.now = d.now.Add(time.Millisecond)
	d.read() // it fell due
	d.want(d.drain(), 1, 2)

	// A row that was unknown blocks its key too.
	d.put(0, "k", "a", 3, 4)
	d.read()
	c := d.next(3)
	d.table[3].attempts = 1 // it is ignored while it is in flight
	d.put(0, "k", "a", 2)
	d.table[2].attempts, d.table[2].due = 1, d.now
	d.read()
	d.returned(c, dispatch.OK)
	d.settle()
	d.none()
	d.now = d.now.Add(time.Second)
	d.want(d.drain(), 2, 4)
}

func TestOrphans(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "k", "a", 1, 5)
	d.read()
	d.put(0, "k", "a", 3)
	d.put(0, "x", "a", 4, 9)
	d.b.Orphans(d.terms[0], orphans(1, 3, 4, 5, 9))
	d.after()
	if !d.last.Read || d.b.Quiet() {
		t.Fatal("rows are read that must not be")
	}
	a := d.begin()
	if !slices.Equal(a.IDs, []int64{3, 4, 9}) {
		t.Fatalf("requested %v", a.IDs)
	}
	d.b.ReadFailed(d.now, a)
	d.after()
	a = d.begin()
	r := d.answer(a)
	r.Ready = nil
	r.Lanes[0].Cursor = 5 // 9 lies above
	d.finish(a, r)
	d.told(dispatch.OrphanFound, dispatch.OrphanFound)
	d.next(1)
	d.next(4)
	d.none()
}

// A row whose payload seemed unnecessary when it was read needs it when the read is used.
func TestRowWithoutPayloadIsAskedFor(t *testing.T) {
	for _, key := range []string{"k", ""} {
		d := newDesk(t, dispatch.Config{})
		d.put(0, key, "a", 1, 2)
		a := d.begin()
		r := d.answer(a)
		r.Ready[0].Large = true
		d.finish(a, r)
		if key != "" {
			d.none()
		}
		if a = d.begin(); a.CatchUp.From[0] != 1 {
			t.Fatalf("catches up with %+v", a.CatchUp)
		}
		d.finish(a, d.answer(a))
		got := d.drain()
		slices.Sort(got)
		d.want(got, 1, 2)
	}
}

func TestFailedReadIsAskedAgain(t *testing.T) {
	d := newDesk(t, dispatch.Config{KeyRows: 1})
	d.put(0, "k", "a", 1, 2, 3)
	d.put(0, "held", "a", 4)
	d.put(0, "waits", "b", 5)
	d.read()
	d.returned(d.next(), dispatch.OK)
	d.returned(d.next(5), dispatch.Unavailable)
	d.returned(d.next(4), dispatch.Retry)
	d.settle()
	d.tick(time.Second)
	a := d.begin()
	want := []int64{4, 5}
	if !slices.Equal(a.IDs, want) || !slices.Equal(a.CatchUp.Keys, []string{"k"}) {
		t.Fatalf("requested %v, want %v", a.IDs, want)
	}
	d.b.ReadFailed(d.now, a)
	d.after()
	if a = d.begin(); !slices.Equal(a.IDs, want) || !slices.Equal(a.CatchUp.Keys, []string{"k"}) {
		t.Fatalf("requested %v after it failed, want %v", a.IDs, want)
	}
}

func TestAbortedCallIsMadeAgain(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "k", "a", 1, 2)
	d.put(0, "", "a", 3)
	d.read()
	c1, c3 := d.next(1), d.next(3)
	d.returned(c1, dispatch.Aborted)
	d.returned(c3, dispatch.Aborted)
	d.told()
	got := d.drain()
	slices.Sort(got)
	d.want(got, 1, 2, 3)
}

// TestRetryWithoutAKeyIsReadByID when it is due: a search for all due rows may cost much more.
func TestRetryWithoutAKeyIsReadByID(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.rarely = true
	d.put(0, "", "a", 1)
	d.read()
	d.returned(d.next(1), dispatch.Retry)
	d.settle()
	d.read()
	d.none()
	if _, read := d.b.NextTimes(); !read.Equal(d.now.Add(time.Second)) {
		t.Fatalf("it is read at %v, %v from now", read, read.Sub(d.now))
	}
	if n := d.b.BlockedKeys(); n != 0 {
		t.Fatalf("%d keys are blocked", n)
	}
	d.tick(time.Second)
	if d.b.Quiet() {
		t.Fatal("quiet while a retry is due")
	}
	a := d.begin()
	if a.WantDue || !slices.Equal(a.IDs, []int64{1}) {
		t.Fatalf("reads rows %d, due rows: %v", a.IDs, a.WantDue)
	}
	d.finish(a, d.answer(a))
	d.returned(d.next(1), dispatch.OK)
	d.settle()
	d.read()
	if !d.b.Quiet() {
		t.Fatal("not quiet in the end")
	}
}

// TestRetryWithoutAKeyIsNotAnOrphan: a sweep that began before its failure was settled found it pending.
func TestRetryWithoutAKeyIsNotAnOrphan(t *testing.T) {
	d := newDesk(t, dispatch.Config{})
	d.put(0, "", "a", 1)
	d.read()
	d.returned(d.next(1), dispatch.Retry)
	d.settle()
	d.read()
	d.b.Orphans(d.terms[0], orphans(1))
	d.after()
	d.read()
	d.none()
	d.told(dispatch.RowRejected)
}

// TestForgottenRetryWithoutAKeyIsNotAnOrphan: the same while more messages wait for another attempt than are
// remembered.
func TestForgottenRetryWithoutAKeyIsNotAnOrphan(t *testing.T) {
	d := newDesk(t, dispatch.Config{Deferred: 1})
	const rows = 5
	for id := range int64(rows) {
		d.put(0, "", "a", id+1)
	}
	d.read()
	for id := range int64(rows) {
		d.returned(d.next(id+1), dispatch.Retry)
	}
	d.settle()
	d.read()
	if n := d.b.Sizes().Keyless; n >= rows {
		t.Fatalf("all %d are remembered", n)
	}
	d.b.Orphans(d.terms[0], orphans(rows))
	d.after()
	d.read()
	for _, r := range d.reports {
		if r.Kind == dispatch.OrphanFound {
			t.Errorf("row %d is reported as an orphan", r.ID)
		}
	}
}

// TestDeadRetryWithoutAKeyIsForgotten: it blocks nothing, whether an operator gave it up or its last attempt failed.
func TestDeadRetryWithoutAKeyIsForgotten(t *testing.T) {
	for _, byOperator := range []bool{true, false} {
		d := newDesk(t, dispatch.Config{BlockKeyOnDead: true})
		d.put(0, "", "a", 1)
		d.read()
		d.returned(d.next(1), dispatch.Retry)
		d.settle()
		d.table[1].dead = byOperator
		d.tick(time.Second)
		d.read()
		if !byOperator {
			d.returned(d.next(1), dispatch.Permanent)
			d.settle()
		}
		if s := d.b.Sizes(); s.Blocked != 0 {
			t.Fatalf("dead by an operator: %v: %+v is left", byOperator, s)
		}
	}
}

// TestRetriesLeaveRoomForNewRows: more retries are overdue than their receiver can reject. Rows on other topics are
// published meanwhile, as many as retries.
func TestRetriesLeaveRoomForNewRows(t *testing.T) {
	for _, keys := range []bool{false, true} {
		d := newDesk(t, dispatch.Config{Rows: 40})
		d.check = false // it would take seconds
		for _, id := range ids(1, 400) {
			key := ""
			if keys {
				key = fmt.Sprint(id)
			}
			d.put(0, key, "refuses", id)
		}
		counts := map[string]int{}
		publish := func() {
			for c := d.next(); c != nil; c = d.next() {
				counts[c.Row.Topic]++
				if c.Row.Topic == "up" {
					d.returned(c, dispatch.OK)
					continue
				}
				d.answered(c, dispatch.Result{Verdict: dispatch.Retry, Err: errBroker, Wait: time.Minute})
				return // it takes as long as all others together
			}
		}
		for d.read(); counts["refuses"] < 400; d.read() {
			publish()
			d.settle()
		}
		d.tick(time.Minute)
		d.put(0, "", "up", ids(401, 1000)...)
		clear(counts)
		for counts["refuses"] < 300 {
			for _, at := d.b.NextTimes(); (d.b.HasRoom() || !at.After(d.now)) && d.read().Added > 0; _, at = d.b.NextTimes() {
			}
			publish()
			d.settle()
		}
		if n := counts["up"]; n < 250 {
			t.Errorf("with keys %v: %d rows of another topic are published during %d retries", keys, n, counts["refuses"])
		}
	}
}

// A read returns due rows of a key up to its limit, and one above the cursor: the rows for which its queue had no room
// are read again when it has.
func TestDueRowAboveTheCursorHidesNoOthers(t *testing.T) {
	d := newDesk(t, dispatch.Config{KeyRows: 4})
	d.put(0, "k", "a", 1, 2, 3, 4, 5, 6, 9)
	for _, m := range d.table {
		m.due = d.now
	}
	a := d.begin()
	r := d.answer(a)
	r.Lanes[0].Cursor = 7
	d.finish(a, r)
	d.rarely, d.marks[0] = true, 7
	for id := range int64(6) {
		d.returned(d.next(id+1), dispatch.OK)
		d.settle()
		d.read()
	}
}
