package dispatch

import (
	"slices"
	"time"
)

// lane is a lane that we own, in one assignment.
type lane struct {
	assignment       Assignment
	keys             map[string]*key
	known            map[int64]*Row // in memory, and settled rows that the last read may still have seen as pending
	blocked          map[int64]*blockedRow
	retries          retries
	overdue          map[string]int       // per topic, the number of overdue blocked rows
	waits            map[string]topicWait // keys that wait for topics
	toCatchUp        list[key, *key]      // keys to be caught up
	deferredKeys     int                  // keys with deferred rows
	deferredRows     int                  // approximate number of deferred rows
	overflow         int64                // the lowest deferred id whose key does not wait, because too many do; 0 = none
	overflowReported time.Time            // when that was last reported
	top              int64                // the highest id that was read
	cursor           int64                // up to this id all was read

	inFlight  int // calls, without hung ones
	keyless   int // blocked rows without a key
	unsettled int

	dueAgain  int  // how many rows the last read of due rows may return again
	manyDue   bool // it hit its limit
	releasing bool // it is being released: no more work is done on it, and waiting rows are forgotten
	free      bool // it was reported as free
}

// lane returns the lane of an assignment, or nil if the assignment is over.
func (d *Dispatcher) lane(t Assignment) *lane {
	if l := d.lanes[t.Lane]; l != nil && l.assignment == t {
		return l
	}
	return nil
}

// activeLane returns the lane of an assignment, or nil if the assignment is over or the lane is being released.
func (d *Dispatcher) activeLane(t Assignment) *lane {
	if l := d.lane(t); l != nil && !l.releasing {
		return l
	}
	return nil
}

// inTurn iterates over the lanes, starting with another one at each read.
func (d *Dispatcher) inTurn(yield func(*lane) bool) {
	for i := range Lanes {
		if l := d.lanes[(d.turn+i)%Lanes]; l != nil && !yield(l) {
			return
		}
	}
}

// TakenLane is a newly taken lane with all its blocked rows: loaded after the lane was taken and before its first read.
// It is made without the dispatcher, which must not wait for very many blocked rows.
type TakenLane struct{ lane *lane }

// NewTakenLane makes a lane from its blocked rows, which all have keys.
func NewTakenLane(now time.Time, t Assignment, blocked []BlockedRow) TakenLane {
	d := New(Config{})
	d.now = now
	l := &lane{
		assignment: t, keys: map[string]*key{}, known: map[int64]*Row{}, blocked: make(map[int64]*blockedRow, len(blocked)),
	}
	for _, b := range blocked {
		due := now.Add(b.Wait)
		if b.Dead {
			due = now.Add(never)
		}
		d.addBlocked(l, b.Key, b.ID, b.Topic, due)
	}
	return TakenLane{l}
}

// LaneTaken starts an assignment. It must not be called during a read.
func (d *Dispatcher) LaneTaken(now time.Time, taken TakenLane) {
	d.now = now
	l := taken.lane
	if old := d.lanes[l.assignment.Lane]; old != nil {
		d.LanesLost(old.assignment)
	}
	d.lanes[l.assignment.Lane] = l
	if d.stopped {
		d.release(l)
		return
	}
	d.ReadAllDue() // the lane's previous owner may have seen some
	d.retryMoved = true
	d.effects.Read = true
}

// LanesLost ends assignments: another forwarder has the lanes, or they were released. Calls in flight count only if
// they succeed.
func (d *Dispatcher) LanesLost(list ...Assignment) {
	for _, t := range list {
		if l := d.lane(t); l != nil {
			d.forgetLane(l)
			d.lanes[t.Lane] = nil
		}
	}
}

// Release stops work on assignments. Effects.Free lists each once nothing of it is in flight or unsettled; LanesLost
// ends it when the lane is free in the database.
func (d *Dispatcher) Release(list ...Assignment) {
	for _, t := range list {
		if l := d.activeLane(t); l != nil {
			d.release(l)
		}
	}
}

func (d *Dispatcher) release(l *lane) {
	d.forgetLane(l)
	l.releasing = true
	for _, calls := range []*list[Call, *Call]{&d.young, &d.slow} {
		for c := calls.front; c != nil; c = c.next {
			if c.Row.Assignment == l.assignment {
				d.effects.Recall = append(d.effects.Recall, c)
			}
		}
	}
	d.freeIfDone(l)
}

// Stop releases all lanes. From now on nothing is asked for and Next returns nil.
func (d *Dispatcher) Stop() {
	d.stopped = true
	d.orphans = nil
	for _, l := range d.lanes {
		if l != nil && !l.releasing {
			d.release(l)
		}
	}
}

// freeIfDone reports a lane as free that is being released, once nothing of it is in flight or unsettled.
func (d *Dispatcher) freeIfDone(l *lane) {
	if l.releasing && !l.free && l.inFlight == 0 && l.unsettled == 0 {
		l.free = true
		d.effects.Free = append(d.effects.Free, l.assignment)
	}
}

// forgetLane forgets everything that waits in a lane, in memory or deferred: the next owner of the lane reads it again.
// It visits the lane's rows in memory.
func (d *Dispatcher) forgetLane(l *lane) {
	for _, r := range l.known {
		c := &r.call
		if c.state == pending {
			d.unqueue(c)
		} else if c.state != idle {
			continue
		}
		c.state = dropped
		c.topic.count(r, -1)
		d.rows--
		d.bytes -= r.size()
	}
	for _, t := range d.topics {
		if t.probe != nil && t.probe.Assignment == l.assignment {
			t.probe = nil // its result counts only for itself
		}
		if t.lowIn(l) != 0 {
			t.setLow(l, 0)
		}
		t.dueDropped &^= 1 << l.assignment.Lane
		d.update(t)
		d.forgetTopic(t)
	}
	d.waiting -= len(l.waits)
	d.keyless -= l.keyless
	l.keyless = 0
	l.keys, l.known, l.blocked, l.retries, l.waits = nil, nil, nil, nil, nil
	l.toCatchUp, l.overdue, l.deferredKeys, l.deferredRows, l.overflow = list[key, *key]{}, nil, 0, 0, 0
	d.retryMoved = true
	d.orphans = slices.DeleteFunc(d.orphans, func(f fetch) bool { return f.assignment == l.assignment })
}

// knows reports whether an id can be ignored when it is read: its row is in memory, or was settled since the last read
// began, or it is a blocked row.
func (l *lane) knows(id int64) bool { return l.known[id] != nil || l.blocked[id] != nil }

// KnownRows counts the rows of an assignment that a read may return although they are in memory or deferred: those
// above the cursor (or slightly more), and all.
func (d *Dispatcher) KnownRows(t Assignment, cursor int64) (above, all int) {
	l := d.activeLane(t)
	if l == nil {
		return 0, 0
	}
	if cursor < l.top { // the cursor went back
		for id := range l.known {
			if id > cursor {
				above++
			}
		}
		above += l.deferredRows
	}
	return above, len(l.known) + l.deferredRows
}
