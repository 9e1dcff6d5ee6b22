package queue

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/progress"
)

// world models a table to which transactions add messages of a few topics, some due later, and the rows that
// ClaimTopics sees.
type world struct {
	rand  *rand.Rand
	clock int64 // microseconds
	xid   int64 // of the last transaction
	id    int64
	open  map[int64][]*stored
	ready []*stored // committed and unclaimed
	limit map[string]int
	taken map[string]int
}

type stored struct {
	id, due int64
	topic   string
	size    int
	claimed bool
}

func (w *world) step() {
	w.clock++
	switch n := w.rand.IntN(10); {
	case n < 2 && len(w.open) < 4:
		w.xid++
		w.open[w.xid] = nil
	case n < 8:
		for xid := range w.open {
			w.id++
			m := &stored{id: w.id, topic: fmt.Sprint(w.rand.IntN(6)), size: w.rand.IntN(4)}
			if w.rand.IntN(3) == 0 {
				m.due = w.clock
				w.clock++
			}
			w.open[xid] = append(w.open[xid], m)
			break
		}
	default:
		for xid, messages := range w.open {
			w.ready = append(w.ready, messages...)
			delete(w.open, xid)
			break
		}
	}
}

// done frees slots.
func (w *world) done(all bool) {
	for topic := range w.limit {
		for w.taken[topic] > 0 && (all || w.rand.IntN(3) == 0) {
			w.taken[topic]--
		}
	}
}

// claim runs one statement.
func (w *world) claim(c *claimCursor, limit int) (got []*stored, o claimResult) {
	a := claimRequest{suspects: true}
	for topic := range w.limit {
		a.limits = append(a.limits, room{topic, w.limit[topic] - w.taken[topic]})
	}
	slices.SortFunc(a.limits, func(a, b room) int { return cmp.Compare(a.topic, b.topic) })
	p := c.plan(time.Now(), limit, a, lowest{})
	var found claimedRows
	found.ready = progress.Result{Xmin: w.xid + 1, Number: w.xid + 1, Drawn: progress.Position{ID: w.id}}
	for xid := range w.open {
		found.ready.Xmin = min(found.ready.Xmin, xid)
	}
	found.due = found.ready
	found.due.Drawn = progress.Moment(time.UnixMicro(w.clock))

	locked := map[*stored]bool{}
	total, bytes, taken := 0, 0, map[string]int{}
	fit := 1 << 20 // bytes
	if w.rand.IntN(2) == 0 {
		fit = 1 + w.rand.IntN(6)
	}
	for i, r := range p.reads {
		l, n := r.part, 0
		if l == nil {
			continue // no suspects here
		}
		rows := slices.Clone(w.ready)
		slices.SortFunc(rows, func(a, b *stored) int { return cmp.Or(cmp.Compare(a.due, b.due), cmp.Compare(a.id, b.id)) })
		for _, m := range rows {
			at := progress.Position{At: m.due, ID: m.id}
			j := slices.IndexFunc(p.limits, func(r room) bool { return r.topic == m.topic })
			of := l.topic == m.topic || l.of == ofUnlimited && j < 0 || l.of == ofLimited && j >= 0 && p.common[j]
			if n == r.room || total == p.limit {
				break
			}
			if !of || m.due > 0 != (r.kind == due) || !r.scan.From.Before(at) || locked[m] {
				continue
			}
			n++
			total++
			locked[m] = true
			if found.cut {
				continue
			}
			row := &row{id: m.id, read: i + 1}
			if row.Topic = m.topic; m.due > 0 {
				row.DueAt = time.UnixMicro(m.due)
			}
			if taken[m.topic]++; j >= 0 && taken[m.topic] > p.limits[j].n {
				row.State = "over"
				found.over = append(found.over, row)
				continue
			}
			bytes += m.size
			if found.cut = bytes > fit; found.cut && bytes > m.size {
				continue
			}
			m.claimed = true
			got = append(got, m)
			found.rows = append(found.rows, row)
		}
	}
	w.ready = slices.DeleteFunc(w.ready, func(m *stored) bool { return m.claimed })
	for _, m := range got {
		if w.limit[m.topic] > 0 {
			w.taken[m.topic]++
		}
	}
	return got, c.claimed(time.Now(), p, found)
}

// TestTopicsThatAreBehindPassNothing: in whatever order transactions end and slots become free, all messages are
// claimed once, only the first scan starts at the beginning, and no topic gets more than its free slots.
func TestTopicsThatAreBehindPassNothing(t *testing.T) {
	wasBehind, cameBack := 0, 0
	for seed := range uint64(150) {
		w := &world{
			rand: rand.New(rand.NewPCG(seed, 3)), clock: 1e9, open: map[int64][]*stored{},
			limit: map[string]int{"0": 1, "1": 2, "2": 5, "3": 1}, taken: map[string]int{},
		}
		c := newClaimCursor()
		claimed := map[int64]bool{}
		claim := func() claimResult {
			before := len(c.behind)
			got, o := w.claim(c, 1+w.rand.IntN(8))
			for _, m := range got {
				if claimed[m.id] {
					t.Fatalf("seed %d: message %d was claimed twice", seed, m.id)
				}
				claimed[m.id] = true
			}
			for topic, limit := range w.limit {
				if w.taken[topic] > limit {
					t.Fatalf("seed %d: topic %s has %d messages, its limit is %d", seed, topic, w.taken[topic], limit)
				}
			}
			if n := len(c.behind); n > before {
				wasBehind++
			} else if n < before {
				cameBack++
			}
			return o
		}
		for range 200 {
			switch n := w.rand.IntN(10); {
			case n < 6:
				w.step()
			case n < 8:
				claim()
			default:
				w.done(false)
			}
		}
		for xid, messages := range w.open {
			w.ready = append(w.ready, messages...)
			delete(w.open, xid)
		}
		for i := 0; len(w.ready) > 0; i++ {
			if i > 2000 {
				t.Fatalf("seed %d: %d messages were never found", seed, len(w.ready))
			}
			w.done(true)
			claim()
		}
	}
	if wasBehind < 100 || cameBack < 100 {
		t.Errorf("topics fell behind %d times and caught up %d times: the test is too weak", wasBehind, cameBack)
	}
}

// TestNothingIsBehindAtRest: once all messages are handled, one scan covers all topics, in one part per kind.
func TestNothingIsBehindAtRest(t *testing.T) {
	w := &world{
		rand: rand.New(rand.NewPCG(1, 3)), clock: 1e9, limit: map[string]int{"0": 1, "1": 1}, taken: map[string]int{},
	}
	c := newClaimCursor()
	for id := range int64(20) {
		w.id++
		w.ready = append(w.ready, &stored{id: id + 1, topic: fmt.Sprint(id % 2)})
	}
	most := 0
	for range 50 {
		w.claim(c, 10)
		most = max(most, len(c.behind))
		w.done(true)
	}
	if len(w.ready) > 0 || most != 2 || len(c.behind) != 0 {
		t.Errorf("%d are left, %d topics were behind, %d still are", len(w.ready), most, len(c.behind))
	}
}

// TestManySetsOfTopicsForgetOneAtATime: a Store with more sets of topics than it keeps cursors for forgets one at a
// time.
func TestManySetsOfTopicsForgetOneAtATime(t *testing.T) {
	s := &Store{}
	all := map[string]*claimCursor{}
	for i := range maxClaimCursors + 10 {
		topic := fmt.Sprint(i)
		all[topic] = s.claimCursor([]string{topic})
	}
	kept := 0
	for topic, c := range all {
		if s.cursors[topic] == c {
			kept++
		}
	}
	if kept != maxClaimCursors || len(s.cursors) != maxClaimCursors {
		t.Errorf("%d of %d sets were kept", kept, len(s.cursors))
	}
}

// TestClaimsGoOnAfterOneThatFailed: they start at their cursors, because a scan from the beginning may fail again.
func TestClaimsGoOnAfterOneThatFailed(t *testing.T) {
	c := newClaimCursor()
	began := time.Now().Add(-2 * progress.FullInterval)
	drawn := progress.Position{At: 10_000_000, ID: 10_000}
	full := func(p *plan) (n int) {
		for _, r := range p.reads {
			if r.scan.Full() {
				n++
			}
		}
		return n
	}
	a := claimRequest{suspects: true}
	for range 3 {
		p := c.plan(began, 10, a, lowest{})
		nothing := progress.Result{Xmin: 9, Number: 9, Drawn: drawn}
		c.claimed(began, p, claimedRows{ready: nothing, due: nothing})
	}
	later := time.Now().Add(10 * time.Minute)
	p := c.plan(later, 10, a, lowest{})
	if full(p) != 3 {
		t.Fatalf("%d scans start at the beginning", full(p))
	}
	c.failed(time.Now().Add(-10*time.Minute), p)
	if n := full(c.plan(later, 10, a, lowest{})); n != 0 {
		t.Errorf("after a failure %d scans start at the beginning again", n)
	}
	if scan := c.nextReady(later); scan.Full() {
		t.Error("a scan of ready messages only starts at the beginning too")
	}
}
