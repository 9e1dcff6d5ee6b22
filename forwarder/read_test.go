package forwarder

import (
	"testing"
	"time"
)

func TestSpanAdapts(t *testing.T) {
	const quick, slow = time.Millisecond, time.Second
	for _, c := range []struct {
		name string
		from int64
		took time.Duration
		p    progress
		want int64
	}{
		{"at the end", firstSpan, slow, progress{}, firstSpan},
		{"at the end again", 16 * firstSpan, quick, progress{}, 8 * firstSpan},
		{"far to go through a clean index", firstSpan, quick, progress{short: true}, 2 * firstSpan},
		{"far to go through much", firstSpan, slow, progress{short: true}, firstSpan / 2},
		{"as much as a read should take", firstSpan, 2 * slowRead, progress{short: true}, firstSpan},
		{"never too short", minSpan, slow, progress{short: true}, minSpan},
		{"never too long", maxSpan, quick, progress{short: true}, maxSpan},
		// or the marks go back faster than they move on
		{"sent back, however slow", firstSpan, slow, progress{short: true, rewound: true}, 2 * firstSpan},
	} {
		r := reader{span: c.from}
		r.adaptSpan(c.took, c.p)
		if r.span != c.want {
			t.Errorf("%s: %d, not %d", c.name, r.span, c.want)
		}
	}
}

// Nothing is read any more while twice as many rows as wanted are in memory, and the mark stays.
func TestNoRoom(t *testing.T) {
	b := newBoard(&Config{})
	b.addLane(1, 1, nil, time.Now())
	b.lanes[1].mark = 100
	b.buffered = 20
	req := b.prepare(time.Now(), 10, laneCount, 0, true, nil)
	if req.limits[0] != (limit{}) || req.due != nil {
		t.Fatalf("limits %v, due %v", req.limits, req.due)
	}
	req.span = firstSpan
	p := b.integrate(req, response{snapshot: snapshot{seq: 200}, rewind: 50, owned: map[int16]bool{1: true}}, time.Now())
	if b.lanes[1].mark != 50 || !p.more {
		t.Errorf("mark %d, more %v", b.lanes[1].mark, p.more)
	}
}
