package dispatch_test

import (
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

type checking struct {
	began   time.Time
	term    dispatch.Assignment
	from    int64
	page    int // limit of blocked rows
	blocked []dispatch.BlockedRow
}

// maintainer makes a step of the goroutine for background work: one page of the recheck of blocked rows, or of the
// sweep.
func (f *forwarder) maintainer() {
	if f.coordinator.Stopping() {
		return
	}
	switch next := f.scanned; {
	case next != nil && f.m.chance(20): // another goroutine
		f.hold()
		return
	case next != nil:
		f.scanned = nil
		next()
		return
	}
	if c := f.checking; c != nil {
		f.checking = nil
		f.logf("rechecks blocked rows %v in lane %d above %d", c.blocked, c.term.Lane, c.from)
		left := f.coordinator.BlockedSeen(f.m.db.now, c.began, []coordinator.Position{{Assignment: c.term, Cursor: c.from}},
			map[int16][]dispatch.BlockedRow{c.term.Lane: c.blocked}, c.page)
		if f.sweeping[-c.term.Lane-1] = 0; len(left) > 0 {
			f.sweeping[-c.term.Lane-1] = left[0].Cursor
		}
		f.take()
		return
	}
	n := f.m.lanes[f.m.rng.IntN(len(f.m.lanes))]
	if !f.reads(f.term(n)) {
		return
	}
	switch p := f.m.rng.IntN(100); {
	case p < 40:
		f.beginCheck(f.term(n))
	case p < 70:
		f.sweep(f.term(n))
	case p < 80:
		f.hold()
	case !f.m.variant.noFirstsCheck:
		f.checkFirsts(f.term(n))
	}
}

// hold passes the topics that an operator has paused to the dispatcher.
func (f *forwarder) hold() {
	f.paused = slices.Clone(f.m.db.paused)
	f.logf("learns that an operator has paused %v", f.paused)
	f.coordinator.PauseByOperator(f.m.db.now, f.paused)
	f.take()
}

// checkFirsts checks whether the rows that keys wait for are still pending.
func (f *forwarder) checkFirsts(t dispatch.Assignment) {
	ids := f.coordinator.WaitingIDs(t)
	if len(ids) == 0 {
		return
	}
	f.scanned = func() {
		gone := slices.DeleteFunc(ids, func(id int64) bool {
			m := f.m.db.find(id)
			return m != nil && m.pending()
		})
		f.logf("reads which rows are gone that keys wait for in lane %d: %v", t.Lane, gone)
		f.scanned = func() {
			f.logf("learns that rows are gone that keys wait for in lane %d: %v", t.Lane, gone)
			f.coordinator.WaitingGone(f.m.db.now, t, gone)
			f.take()
		}
	}
}

func (f *forwarder) beginCheck(t dispatch.Assignment) {
	if f.m.variant.noRecheck {
		return
	}
	c := &checking{began: f.m.db.now, term: t, from: f.sweeping[-t.Lane-1], page: 1 + f.m.rng.IntN(5)}
	for _, v := range f.m.db.blocked(t.Lane, c.from, c.page) {
		c.blocked = append(c.blocked, f.m.blockedRow(v))
	}
	f.checking = c
}

func (f *forwarder) sweep(t dispatch.Assignment) {
	from := []coordinator.Position{{Assignment: t, Cursor: f.sweeping[t.Lane]}}
	at := f.coordinator.NextSpans(from, int64(1+f.m.rng.IntN(50)))
	if f.sweeping[t.Lane] = 0; len(at) == 0 || f.m.variant.noSweep {
		return
	}
	limit := 1 + f.m.rng.IntN(5)
	ids := f.m.db.sweep(t.Lane, at[0].Cursor, at[0].Upto)
	ids = ids[:min(limit, len(ids))]
	if len(ids) > 0 {
		f.logf("sweeps lane %d: %v", t.Lane, ids)
	}
	f.scanned = func() {
		f.coordinator.Swept(at, map[int16][]dispatch.Orphan{t.Lane: ids}, limit)
		f.take()
		f.sweeping[t.Lane] = at[0].Cursor
	}
}
