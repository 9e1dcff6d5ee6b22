package cursor

import (
	"testing"
	"time"
)

func TestStretchAdapts(t *testing.T) {
	const quick, slow = time.Millisecond, time.Second
	for _, c := range []struct {
		name string
		from int64
		took time.Duration
		p    Progress
		want int64
	}{
		{"at the end", firstSpan, slow, Progress{}, firstSpan},
		{"at the end again", 16 * firstSpan, quick, Progress{}, 8 * firstSpan},
		{"at the end after reads that timed out", minSpan, slow, Progress{}, 2 * minSpan},
		{"a large distance in a clean index", firstSpan, quick, Progress{Short: true}, 2 * firstSpan},
		{"a large distance with many rows", firstSpan, slow, Progress{Short: true}, firstSpan / 2},
		{"as many rows as a read should return", firstSpan, 2 * slowRead, Progress{Short: true}, firstSpan},
		{"never too short", minSpan, slow, Progress{Short: true}, minSpan},
		{"never too long", maxSpan, quick, Progress{Short: true}, maxSpan},
		// otherwise cursors go back faster than they advance
		{"going back, however slow", firstSpan, slow, Progress{Short: true, Rewound: true}, 2 * firstSpan},
	} {
		l := limiter{span: c.from}
		l.adapt(c.p, c.took)
		if l.span != c.want {
			t.Errorf("%s: %d, want %d", c.name, l.span, c.want)
		}
	}
}

func TestAfterTimeouts(t *testing.T) {
	l := newLimiter()
	l.rowBytes = 1
	room := Room{Rows: 1000, Bytes: 1 << 30}
	l.timedOut()
	if l.span != firstSpan/4 || l.rows(room) != 500 {
		t.Fatalf("stretch %d, %d rows", l.span, l.rows(room))
	}
	for range 100 {
		l.timedOut()
	}
	if l.span != minSpan || l.rows(room) != 0 {
		t.Fatalf("stretch %d, %d rows", l.span, l.rows(room))
	}
	for range maxCut {
		l.measure(&Answer{})
	}
	if l.rows(room) != 1000 {
		t.Fatalf("%d rows once reads are complete again", l.rows(room))
	}
}

func TestRowsBySize(t *testing.T) {
	l := newLimiter()
	if n := l.rows(Room{Rows: 1000, Bytes: 32 << 20}); n != 64 {
		t.Errorf("%d rows before the first was seen", n)
	}
	l.measure(&Answer{Rows: 10, Bytes: 1000})
	if l.rowBytes != guessedRowBytes/8 {
		t.Errorf("small rows count immediately as %d bytes", l.rowBytes)
	}
	l.measure(&Answer{Rows: 1, Bytes: 1 << 20})
	if l.rowBytes != 1<<20 {
		t.Errorf("a large row counts as %d bytes", l.rowBytes)
	}
	if n := l.rows(Room{Rows: -5, Bytes: -5}); n != 0 {
		t.Errorf("%d rows without room", n)
	}
}

func TestLimits(t *testing.T) {
	w := New()
	w.limiter.rowBytes = 1
	w.Take(1, 1, "a")
	w.Take(2, 1, "a")
	w.lanes[2].full = false
	r := w.Next(Room{Rows: 100, Bytes: 1000}, true, known(7, 10))
	// Half of the room is shared equally, half goes to the lane with more rows; known rows are returned again.
	if r.Limits[1] != 25+50+7 || r.Limits[2] != 25+7 || r.Rewound[1] != 3 || r.Limits[3] != 0 {
		t.Fatalf("limits %v, rewound %v", r.Limits[:4], r.Rewound[:4])
	}
	if r := w.Next(Room{Rows: 1}, true, known(0, 0)); r.Limits[1] != 1 || r.Limits[2] != 1 {
		t.Errorf("limits %v with almost no room: all rows in memory may hang", r.Limits[:3])
	}
	if r := w.Next(Room{}, true, known(0, 0)); r.Limits[1] != 0 || r.Limits[2] != 0 {
		t.Errorf("limits %v when memory is full", r.Limits[:3])
	}
	r = w.Next(Room{Rows: 100, Bytes: 1000}, true, known(0, knownBytes))
	if sum := r.Rewound[1] + r.Rewound[2]; sum < knownBytes-2 || sum > knownBytes {
		t.Errorf("%d rows are read again immediately", sum)
	}
}

func known(above, all int) func(int16, int64) (int, int) {
	return func(int16, int64) (int, int) { return above, all }
}

func TestSizes(t *testing.T) {
	w := New()
	w.Take(1, 1, "a")
	w.Take(2, 1, "a")
	request := func(room Room, again int) Request { return w.Next(room, false, known(again, again)) }
	w.limiter.rowBytes = 200
	if r := request(Room{Rows: 8192, Bytes: 32 << 20}, 0); r.Whole != 8<<10 || r.Bytes != 32<<20 {
		t.Errorf("many small rows: those up to %d bytes come whole, and %d bytes of others", r.Whole, r.Bytes)
	}
	if r := request(Room{Rows: 8192, Bytes: 32 << 20, Others: 8192}, 0); r.Whole != 4<<10 {
		t.Errorf("with other requested rows: %d", r.Whole)
	}
	w.limiter.rowBytes = 20 << 10
	r := request(Room{Rows: 8192, Bytes: 32 << 20}, 0)
	if rows := r.Limits[1] + r.Limits[2]; r.Whole < 40<<10 || r.Whole*rows > 64<<20 {
		t.Errorf("of %d rows of 20 kB those up to %d bytes come whole: twice the usual size does, "+
			"twice the room is the limit", rows, r.Whole)
	}
	if r := request(Room{Rows: 100, Bytes: 1 << 20}, 5000); r.Whole < 40<<10 {
		t.Errorf("known rows leave %d bytes for the others", r.Whole)
	}
	w.limiter.rowBytes = 100 << 20
	if r := request(Room{Rows: 8192, Bytes: 32 << 20}, 0); r.Whole != maxWhole {
		t.Errorf("the largest rows: those up to %d bytes come whole", r.Whole)
	}
	if r := request(Room{Rows: 64, Bytes: 1, Others: 10}, 0); r.Whole != minWhole || r.Bytes != 1 {
		t.Errorf("no room: those up to %d bytes come whole, and %d bytes of others", r.Whole, r.Bytes)
	}
	w.Complete(r, Answer{Incarnation: "a", Owned: [Lanes]bool{1: true, 2: true}, TimedOut: true})
	if r := request(Room{Rows: 8192, Bytes: 32 << 20}, 0); r.Bytes != 16<<20 {
		t.Errorf("%d bytes after payloads timed out", r.Bytes)
	}
}
