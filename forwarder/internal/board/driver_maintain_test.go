package board_test

import (
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
)

type checking struct {
	began time.Time
	term  board.Term
	from  int64
	to    int64
	heads []board.Head
}

// maintainer makes a step of the goroutine for what is in no hurry: a page of the recheck of heads, or of the sweep.
func (f *forwarder) maintainer() {
	if f.stopping {
		return
	}
	if c := f.checking; c != nil {
		f.checking = nil
		f.logf("rechecks heads %v in lane %d, ids %d to %d", c.heads, c.term.Lane, c.from, c.to)
		f.board.HeadsSeen(f.m.db.now, c.began, c.term, c.from, c.to, c.heads)
		f.take()
		return
	}
	n := f.m.lanes[f.m.rng.IntN(len(f.m.lanes))]
	h := f.held[n]
	if h == nil || h.handing {
		return
	}
	switch p := f.m.rng.IntN(100); {
	case p < 40:
		f.beginCheck(f.term(n))
	case p < 70:
		f.sweep(f.term(n))
	case p < 80:
		f.hold()
	case !f.m.variant.noLook:
		f.lookAtFirsts(f.term(n))
	}
}

// hold tells the board which topics an operator has paused.
func (f *forwarder) hold() {
	f.paused = slices.Clone(f.m.db.paused)
	f.logf("hears that an operator has paused %v", f.paused)
	f.board.PauseByOperator(f.m.db.now, f.paused)
	f.take()
}

// lookAtFirsts looks whether what keys wait for is still pending.
func (f *forwarder) lookAtFirsts(t board.Term) {
	var gone []int64
	for _, id := range f.board.Firsts(t) {
		if m := f.m.db.find(id); m == nil || !m.pending() {
			gone = append(gone, id)
		}
	}
	if len(gone) > 0 {
		f.logf("finds what keys wait for gone in lane %d: %v", t.Lane, gone)
		f.board.FirstsGone(f.m.db.now, t, gone)
		f.take()
	}
}

func (f *forwarder) beginCheck(t board.Term) {
	if f.m.variant.noRecheck {
		return
	}
	c := &checking{began: f.m.db.now, term: t, from: f.sweeping[-t.Lane-1], to: 1 << 62}
	page := 1 + f.m.rng.IntN(5)
	for _, v := range f.m.db.heads(t.Lane, c.from, page) {
		c.heads = append(c.heads, f.m.head(v))
	}
	if len(c.heads) == page {
		c.to = c.heads[page-1].ID
		f.sweeping[-t.Lane-1] = c.to
	} else {
		f.sweeping[-t.Lane-1] = 0
	}
	f.checking = c
}

func (f *forwarder) sweep(t board.Term) {
	mark, _ := f.window.Mark(t.Lane)
	from := f.sweeping[t.Lane]
	to := min(mark, from+int64(1+f.m.rng.IntN(50)))
	f.sweeping[t.Lane] = to
	if to >= mark {
		f.sweeping[t.Lane] = 0
	}
	if f.m.variant.noSweep {
		return
	}
	if ids := f.m.db.sweep(t.Lane, from, to); len(ids) > 0 {
		f.logf("sweeps lane %d: %v", t.Lane, ids)
		f.board.Strays(t, ids)
		f.take()
	}
}
