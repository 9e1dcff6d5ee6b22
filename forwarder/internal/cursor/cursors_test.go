package cursor

import (
	"testing"
	"time"
)

// owned returns a response for lanes that were read up to id last, with rows in lane 1.
func owned(seq int64, rows int64, last int64, lanes ...int16) Answer {
	a := Answer{Incarnation: "a", Snapshot: Snapshot{Xmax: 10, NextXid: 10, Seq: seq}, Rewind: -1, Took: time.Millisecond}
	for _, n := range lanes {
		a.Owned[n] = true
	}
	a.Counts[1], a.Last[1] = rows, last
	return a
}

var room = Room{Rows: 8, Bytes: 1 << 40}

func next(w *Cursors) Request { return w.Next(room, true, known(0, 0)) }

func wantMark(t *testing.T, w *Cursors, lane int16, want int64) {
	t.Helper()
	if mark, _ := w.At(lane); mark != want {
		t.Errorf("the cursor of lane %d is %d, want %d", lane, mark, want)
	}
}

func TestCursors(t *testing.T) {
	w := New()
	w.Take(1, 5, "a")
	w.Take(2, 6, "a")
	// At the end of both lanes.
	p := w.Complete(next(w), owned(100, 2, 90, 1, 2))
	if p.More || p.Short || p.Rewound {
		t.Errorf("%+v at the end", p)
	}
	wantMark(t, w, 1, 100)
	wantMark(t, w, 2, 100)

	// Lane 1 was full: its cursor is the last row and no further, because more rows may follow below the sequence.
	w.resting = false
	r := next(w)
	p = w.Complete(r, owned(200, r.Limits[1], 150, 1, 2))
	if !p.More || p.Short {
		t.Errorf("%+v when full", p)
	}
	wantMark(t, w, 1, 150)
	wantMark(t, w, 2, 200)

	// A transaction with bound 120 ended, so lane 1 goes back. It counts as full even if it only returns known rows.
	r = next(w)
	a := owned(300, r.Limits[1]+r.Rewound[1], 130, 1, 2)
	a.Rewind = 120
	if p = w.Complete(r, a); !p.Rewound {
		t.Errorf("%+v after going back", p)
	}
	wantMark(t, w, 1, 130)
	wantMark(t, w, 2, 300)

	// The next read does not exceed its span.
	r = next(w)
	if p = w.Complete(r, owned(1<<20, 0, 0, 1, 2)); !p.Short || !p.More {
		t.Errorf("%+v when short", p)
	}
	wantMark(t, w, 1, 130+firstSpan)
	wantMark(t, w, 2, 300+firstSpan)
}

func TestNoRoom(t *testing.T) {
	w := New()
	w.Take(1, 1, "a")
	w.lanes[1].cursor = 100
	r := w.Next(Room{}, true, known(0, 0))
	a := owned(200, 0, 0, 1)
	a.Rewind = 50
	if p := w.Complete(r, a); !p.More {
		t.Errorf("%+v", p)
	}
	wantMark(t, w, 1, 50) // otherwise rows of the ended transaction would be skipped
}

func TestAnswersOfOtherAssignments(t *testing.T) {
	w := New()
	w.Take(1, 1, "a")
	w.Take(2, 1, "a")
	w.Take(3, 1, "a")
	r := next(w)
	w.Drop(1)
	w.Take(1, 2, "a")
	p := w.Complete(r, owned(100, 0, 0, 1, 2))
	wantMark(t, w, 1, 0)
	wantMark(t, w, 2, 100)
	if !p.More {
		t.Error("no read follows for a lane that was acquired during the last one")
	}
	if _, epoch := w.At(3); epoch != 0 {
		t.Error("a lane of another owner is still read")
	}
}

func TestFailedReadsMoveNothing(t *testing.T) {
	w := New()
	w.Take(1, 1, "a")
	w.Complete(next(w), owned(100, 0, 0, 1))
	w.Failed(true)
	wantMark(t, w, 1, 100)
	if w.tracker.seq != 100 {
		t.Errorf("seq %d", w.tracker.seq)
	}
}

func TestLives(t *testing.T) {
	w := New()
	w.Take(1, 1, "a")
	if p := w.Complete(next(w), owned(100, 0, 0, 1)); p.Changed {
		t.Error("the first incarnation is a change")
	}
	other := owned(150, 0, 0, 1)
	other.Incarnation = "b"
	for name, a := range map[string]Answer{"another incarnation": other, "a sequence that went back": owned(99, 0, 0, 1)} {
		if p := w.Complete(next(w), a); !p.Changed {
			t.Errorf("%s is not noticed", name)
		}
		wantMark(t, w, 1, 100)
	}
	w.Reset()
	if r := next(w); r.Epochs != [Lanes]int64{} || len(r.Xids)+len(r.Los) > 0 {
		t.Errorf("after a reset, %+v", r)
	}
	w.Take(1, 2, "b")
	r := next(w)
	old := r.Incarnation(&other)
	if p := w.Complete(next(w), other); p.Changed {
		t.Error("the first incarnation after a reset is a change")
	}
	if name, seq := w.Incarnation(); name != old || seq != 150 || ServerIncarnation(name) != "b" {
		t.Errorf("incarnation %q, sequence %d", name, seq)
	}
	w.Reset()
	w.Take(1, 3, "b")
	w.Complete(next(w), other)
	if name, _ := w.Incarnation(); name == old || ServerIncarnation(name) != "b" {
		t.Errorf("incarnation %q after a reset, %q before", name, old)
	}
}

func TestSingle(t *testing.T) {
	w := New()
	w.Take(1, 1, "a")
	w.Take(2, 1, "a")
	if next(w).Single {
		t.Fatal("the first read uses a single range")
	}
	w.Complete(next(w), owned(100000, 0, 0, 1, 2)) // short of the end
	for next(w).Cursors[1] < 100000 {
		w.Complete(next(w), owned(100000, 0, 0, 1, 2))
	}
	w.Complete(next(w), owned(100010, 0, 0, 1, 2))
	r := next(w)
	if !r.Single || r.Span != singleSpan {
		t.Fatalf("at rest, %+v", r)
	}
	if lanes := w.Next(room, false, known(0, 0)); lanes.Single || lanes.Span != firstSpan {
		t.Errorf("by lane, %+v", lanes)
	}
	// All lanes share its limit, and the cursor that remains if it is full.
	a := owned(100100, r.Limits[1], 100050, 1, 2)
	a.Counts[2], a.Last[2] = r.Limits[2], 100060
	if p := w.Complete(r, a); !p.More {
		t.Errorf("%+v", p)
	}
	wantMark(t, w, 1, 100060)
	wantMark(t, w, 2, 100060)
	if next(w).Single {
		t.Error("a large distance is read as a single range")
	}
	w.Complete(next(w), owned(100100, 0, 0, 1, 2))
	if !next(w).Single {
		t.Error("at rest again, but no single range")
	}
	// A lane that exceeds its own limit is not full if the others left their parts unused.
	r = next(w)
	if p := w.Complete(r, owned(100120, r.Limits[1], 100110, 1, 2)); p.More {
		t.Errorf("%+v", p)
	}
	wantMark(t, w, 1, 100120)
	// A lane that was lost in the meantime has no rows, and its limit does not count.
	r = next(w)
	a = owned(100130, r.Limits[1], 100125, 1)
	if p := w.Complete(r, a); !p.More {
		t.Errorf("%+v", p)
	}
	wantMark(t, w, 1, 100125)
	// A span that does not reach the end is not read as a single range.
	w.Complete(next(w), owned(100130, 0, 0, 1))
	r = next(w)
	if p := w.Complete(r, owned(100130+2*singleSpan, 0, 0, 1)); !r.Single || !p.Short || next(w).Single {
		t.Errorf("%v %+v", r.Single, p)
	}
	if w.limiter.span != firstSpan {
		t.Errorf("span %d was set by a single range", w.limiter.span)
	}
}

func TestSingleNeedsOneStart(t *testing.T) {
	w := New()
	w.Take(1, 1, "a")
	w.Complete(next(w), owned(100, 0, 0, 1))
	if !next(w).Single {
		t.Fatal("at rest, but no single range")
	}
	if w.Next(Room{}, true, known(0, 0)).Single {
		t.Error("single without room")
	}
	w.Take(2, 1, "a")
	if next(w).Single {
		t.Error("single with two cursors")
	}
}

func TestDense(t *testing.T) {
	// full completes a read of two lanes that were both full, with this number of ids from the first row to the last.
	full := func(r Request, first, ids int64) Answer {
		a := owned(1<<30, r.Limits[1], first+ids/2, 1, 2)
		a.Counts[2], a.Last[2], a.First = r.Limits[2], first+ids-1, first
		return a
	}
	start := func() (*Cursors, Request, int64) {
		w := New()
		w.limiter.rowBytes = 1
		w.Take(1, 1, "a")
		w.Take(2, 1, "a")
		r := w.Next(Room{Rows: 1000, Bytes: 1 << 40}, true, known(0, 0))
		return w, r, r.Limits[1] + r.Limits[2]
	}
	const first = 1 << 20 // rows published long ago are skipped

	// Most rows are ours: both lanes continue from the lower cursor, as one range that is long enough to be full.
	w, r, rows := start()
	w.Complete(r, full(r, first, 2*rows))
	wantMark(t, w, 1, first+rows)
	wantMark(t, w, 2, first+rows)
	r = w.Next(Room{Rows: 1000, Bytes: 1 << 40}, true, known(7, 7))
	if !r.Single || r.Span != sparse*(r.Limits[1]+r.Limits[2]) || r.Limits[1] != 507 {
		t.Fatalf("in a backlog, %+v", r)
	}
	// This continues as long as the range is dense.
	w.Complete(r, full(r, first+rows, 2*rows))
	wantMark(t, w, 1, first+3*rows-1)
	if r = next(w); !r.Single {
		t.Error("further on in a backlog, by lane")
	}
	w.Complete(r, full(r, first+4*rows, sparse*rows))
	if next(w).Single {
		t.Error("a range of mostly foreign rows is read whole")
	}

	// Most rows are published or belong to others.
	w, r, rows = start()
	w.Complete(r, full(r, first, sparse*rows+2))
	wantMark(t, w, 1, first+(sparse*rows+2)/2)
	if next(w).Single {
		t.Error("a range of mostly foreign rows is read whole")
	}

	// A lane that is far behind, such as one just acquired, does not take the others back.
	w, r, rows = start()
	w.Take(3, 1, "a")
	w.Complete(r, full(r, first, 2*rows))
	wantMark(t, w, 2, first+2*rows-1)

	// If one range is not allowed, the cursors stay where they are.
	w, _, rows = start()
	r = w.Next(Room{Rows: 1000, Bytes: 1 << 40}, false, known(0, 0))
	w.Complete(r, full(r, first, 2*rows))
	wantMark(t, w, 2, first+2*rows-1)

	// After a timeout the next read is by lane again.
	w, r, rows = start()
	w.Complete(r, full(r, first, 2*rows))
	w.Failed(true)
	if next(w).Single {
		t.Error("as one range after a timeout")
	}
}

// A lane with no room for a row is read up to that row, and the others as far as without it.
func TestNoRoomForARow(t *testing.T) {
	for _, ranges := range []bool{false, true} {
		w := New()
		w.Take(1, 1, "a")
		w.Take(2, 1, "a")
		a := Answer{
			Incarnation: "a", Snapshot: Snapshot{Xmax: 10, NextXid: 10, Seq: 100}, Rewind: -1,
			Owned: [Lanes]bool{1: true, 2: true},
		}
		room := Room{Rows: 1000, Bytes: 1 << 40}
		w.Complete(w.Next(room, ranges, known(0, 0)), a)
		a.Snapshot.Seq = 200
		a.Counts[1], a.Last[1], a.Counts[2], a.Last[2], a.First = 10, 150, 10, 151, 140
		a.Cut[1] = 145
		r := w.Next(room, ranges, known(0, 0))
		if r.Single != ranges {
			t.Fatalf("as one range: %v", r.Single)
		}
		if p := w.Complete(r, a); !p.More {
			t.Error("no further read is planned")
		}
		wantMark(t, w, 1, 144)
		wantMark(t, w, 2, 200)
		if w.Next(room, ranges, known(0, 0)).Single {
			t.Error("the other lane is read from there again")
		}
	}
}

// TestFirstReadInAnotherIncarnation: blocked rows were loaded before the server crashed, and may be lost with it.
func TestFirstReadInAnotherIncarnation(t *testing.T) {
	w := New()
	w.Take(1, 1, "before")
	w.Take(2, 1, "a")
	if p := w.Complete(next(w), owned(100, 0, 0, 1)); !p.Changed {
		t.Error("state of another incarnation is used")
	}
	w.Reset()
	w.Take(1, 2, "a")
	if p := w.Complete(next(w), owned(100, 0, 0, 1)); p.Changed {
		t.Error("the new incarnation counts as a change again")
	}
}
