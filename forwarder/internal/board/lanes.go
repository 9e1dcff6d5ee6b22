package board

import (
	"slices"
	"time"
)

// lane is a lane that we own, in one term.
type lane struct {
	term       Term
	keys       map[string]*key
	known      map[int64]*Row // in memory, and settled rows that the last read may still have seen as pending
	heads      map[int64]*head
	retries    retries
	overdue    map[string]int      // per topic, the number of overdue heads: their time has come, and they are postponed
	waits      map[string]deferral // keys that wait for topics
	catching   list[key, *key]     // keys to be caught up
	lows       int                 // keys with deferred rows
	away       int                 // approximate number of deferred rows
	over       int64               // the lowest deferred id whose key does not wait, because too many do; 0 = none
	overflowed time.Time           // when that was last reported
	top        int64               // the highest id that was read
	mark       int64               // up to this id all was read

	rows      int // in memory and not in flight
	bytes     int64
	inFlight  int // calls, without hung ones
	keyless   int // heads without a key
	unsettled int

	dueAgain int  // how many rows the last read of due rows may return again
	manyDue  bool // it hit its limit
	handing  bool // it is being handed back: no more work is done on it, and waiting rows are forgotten
	free     bool // it was reported as free
}

// lane returns the lane of a term, or nil if the term is over.
func (b *Board) lane(t Term) *lane {
	if l := b.lanes[t.Lane]; l != nil && l.term == t {
		return l
	}
	return nil
}

// open returns the lane of a term, or nil if the term is over or the lane is being handed back.
func (b *Board) open(t Term) *lane {
	if l := b.lane(t); l != nil && !l.handing {
		return l
	}
	return nil
}

// inTurn iterates over the lanes, starting with another one at each read.
func (b *Board) inTurn(yield func(*lane) bool) {
	for i := range Lanes {
		if l := b.lanes[(b.turn+i)%Lanes]; l != nil && !yield(l) {
			return
		}
	}
}

// Taken is a newly taken lane with all its heads: loaded after the lane was taken and before its first read. It is made
// without the board, which must not wait for very many heads.
type Taken struct{ lane *lane }

// NewTaken makes a lane from its heads, which all have keys.
func NewTaken(now time.Time, t Term, heads []Head) Taken {
	b := New(Config{})
	b.now = now
	l := &lane{
		term: t, keys: map[string]*key{}, known: map[int64]*Row{}, heads: make(map[int64]*head, len(heads)),
	}
	for _, h := range heads {
		due := now.Add(h.Wait)
		if h.Dead {
			due = now.Add(never)
		}
		b.addHead(l, h.Key, h.ID, h.Topic, due)
	}
	return Taken{l}
}

// LaneTaken starts a term. It must not be called during a read.
func (b *Board) LaneTaken(now time.Time, taken Taken) {
	b.now = now
	l := taken.lane
	if old := b.lanes[l.term.Lane]; old != nil {
		b.LanesLost(old.term)
	}
	b.lanes[l.term.Lane] = l
	if b.stopped {
		b.handBack(l)
		return
	}
	b.retryMoved = true
	b.effects.Read = true
}

// LanesLost ends terms: another forwarder has the lanes, or they were released. Calls in flight count only if they
// succeed.
func (b *Board) LanesLost(terms ...Term) {
	for _, t := range terms {
		if l := b.lane(t); l != nil {
			b.forgetLane(l)
			b.lanes[t.Lane] = nil
		}
	}
}

// HandBack stops work on terms. Effects.Free lists each once nothing of it is in flight or unsettled; LanesLost ends it
// when the lane is free in the database.
func (b *Board) HandBack(terms ...Term) {
	for _, t := range terms {
		if l := b.open(t); l != nil {
			b.handBack(l)
		}
	}
}

func (b *Board) handBack(l *lane) {
	b.forgetLane(l)
	l.handing = true
	for _, calls := range []*list[Call, *Call]{&b.young, &b.slow} {
		for c := calls.front; c != nil; c = c.next {
			if c.Row.Term == l.term {
				b.effects.Recall = append(b.effects.Recall, c)
			}
		}
	}
	b.freeIfDone(l)
}

// Stop hands back all lanes. From now on nothing is asked for and Next returns nil.
func (b *Board) Stop() {
	b.stopped = true
	b.orphans = nil
	for _, l := range b.lanes {
		if l != nil && !l.handing {
			b.handBack(l)
		}
	}
}

// freeIfDone reports a lane as free that is being handed back, once nothing of it is in flight or unsettled.
func (b *Board) freeIfDone(l *lane) {
	if l.handing && !l.free && l.inFlight == 0 && l.unsettled == 0 {
		l.free = true
		b.effects.Free = append(b.effects.Free, l.term)
	}
}

// forgetLane forgets everything that waits in a lane, in memory or deferred: the next owner of the lane reads it again.
// It visits the lane's rows in memory.
func (b *Board) forgetLane(l *lane) {
	rows, bytes := l.rows, l.bytes
	for _, r := range l.known {
		c := &r.call
		if c.state == pending {
			b.unqueue(c)
		} else if c.state != idle {
			continue
		}
		c.state = dropped
		l.moves(r, -1)
	}
	for _, t := range b.topics {
		if t.probe != nil && t.probe.Term == l.term {
			t.probe = nil // its result counts only for itself
		}
		if t.lowIn(l) != 0 {
			t.setLow(l, 0)
		}
		b.update(t)
		b.forgetTopic(t)
	}
	b.rows -= rows
	b.bytes -= bytes
	b.waiting -= len(l.waits)
	b.keyless -= l.keyless
	l.keyless = 0
	l.keys, l.known, l.heads, l.retries, l.waits = nil, nil, nil, nil, nil
	l.catching, l.overdue, l.lows, l.away, l.over = list[key, *key]{}, nil, 0, 0, 0
	b.retryMoved = true
	b.orphans = slices.DeleteFunc(b.orphans, func(s orphan) bool { return s.term == l.term })
}

// knows reports whether an id can be ignored when it is read: its row is in memory, or was settled since the last read
// began, or it is a head.
func (l *lane) knows(id int64) bool { return l.known[id] != nil || l.heads[id] != nil }

// Known counts the rows of a term that a read may return although they are in memory or deferred: those above the mark
// (or slightly more), and all.
func (b *Board) Known(t Term, mark int64) (above, all int) {
	l := b.open(t)
	if l == nil {
		return 0, 0
	}
	if mark < l.top { // the cursor went back
		for id := range l.known {
			if id > mark {
				above++
			}
		}
		above += l.away
	}
	return above, len(l.known) + l.away
}
