package dispatch

import (
	"math/bits"
	"slices"
)

// Rows that were read and cannot be kept yet are dropped: they are deferred, and read again when they may continue. The
// dispatcher does not remember their ids, only the lowest id from which to read again: of a key that is blocked, or has
// enough rows in memory (key.low), and of a topic that is closed (topic.deferredFrom, in each lane). A key that has a
// row on a closed topic waits for it, with all later rows on any topic (lane.waits).
//
// Each read catches up with some of them: in some lanes, starting at the lowest ids, it also returns the rows of such
// keys, or all rows for topics that are open again, in the same snapshot as the new rows. Up to the point that it
// reached, all deferred rows have been seen; those that could still not be kept were deferred again.

// topicWait is what a key waits for, and the lowest of its ids that was dropped.
type topicWait struct {
	topic *topic
	low   int64
}

// CatchUp describes what a read should catch up with.
type CatchUp struct {
	From, Limits [Lanes]int64 // by lane; limit 0 = nothing
	All          uint64       // lanes in which all rows are wanted
	Keys         []string     // in the other lanes the rows of these keys

	Upto  [Lanes]int64 // filled in by the caller: how far each lane is read,
	Short uint64       // the lanes in which that is below the cursor

	keys   []*key
	topics []topicInLane
}

type topicInLane struct {
	topic      *topic
	assignment Assignment
}

// None reports whether there is nothing to catch up with.
func (c *CatchUp) None() bool { return c.Limits == [Lanes]int64{} }

const (
	maxKeysInRead = 1024 // keys that one read catches up with
	minRowsPerKey = 8    // rows that it may return for each key, on average
)

// lowIn returns the id from which a topic must be caught up in a lane, or 0.
func (t *topic) lowIn(l *lane) int64 {
	if t.deferredFrom == nil {
		return 0
	}
	return t.deferredFrom[l.assignment.Lane]
}

func (t *topic) setLow(l *lane, id int64) {
	if t.deferredFrom == nil {
		t.deferredFrom = new([Lanes]int64)
	}
	t.deferredFrom[l.assignment.Lane] = id
	if bit := uint64(1) << l.assignment.Lane; id != 0 {
		t.deferredIn |= bit
	} else {
		t.deferredIn &^= bit
	}
}

// mayPublish reports that no deferred or unseen row of a topic has to go before a row.
func (l *lane) mayPublish(t *topic, id int64) bool {
	return !t.closed && t.dueUnseen>>l.assignment.Lane&1 == 0 && !t.isDeferred(l, id)
}

// deferFrom defers the rows of a key from an id on.
func (k *key) deferFrom(id int64) {
	if k.low == 0 {
		k.lane.deferredKeys++
		k.low = id
	}
	k.low = min(k.low, id)
}

// covers reports whether a row of a key will be read again: it is deferred with the key, or with the topic that the key
// waits for.
func (l *lane) covers(name string, id int64) bool {
	if k := l.keys[name]; k != nil && k.low != 0 && k.low <= id {
		return true
	}
	return l.waits[name].covers(l, id)
}

// covers reports whether a row of a waiting key will be read again together with the other rows deferred for the topic.
func (w topicWait) covers(l *lane, id int64) bool {
	return w.topic != nil && w.low <= id && w.topic.isDeferred(l, id)
}

// isDeferred reports whether everything of a topic in a lane is deferred from this id or a lower one.
func (t *topic) isDeferred(l *lane, id int64) bool {
	low := t.lowIn(l)
	return low != 0 && low <= id
}

// deferRow defers a dropped row of a key.
func (d *Dispatcher) deferRow(k *key, r *Row) {
	if l := k.lane; !r.call.due && !l.covers(k.name, r.ID) {
		k.deferFrom(r.ID)
	}
}

// deferForTopic defers a row whose topic is closed, or is being caught up; its key waits for the topic. If too many
// keys wait, this one does not, and its rows on other topics may continue. handedOut means that Next had returned it.
func (d *Dispatcher) deferForTopic(l *lane, t *topic, r *Row, handedOut bool) {
	first := candidate{l.assignment, r.ID, r.Key, r.call.due}
	if r.call.due { // it is read again
		t.dropDue(l)
		t.addCandidate(first, handedOut)
		return
	}
	if low := t.lowIn(l); low == 0 || r.ID < low {
		t.setLow(l, r.ID)
	}
	d.degrade(t)
	if r.Key == "" {
		t.addCandidate(first, handedOut)
		return
	}
	switch w, waits := l.waits[r.Key]; {
	case w.covers(l, r.ID):
		return
	case !waits && !handedOut && d.waiting >= d.cfg.Deferred:
		if l.overflow == 0 || r.ID < l.overflow {
			l.overflow = r.ID
		}
		if d.now.Sub(l.overflowReported) >= reportInterval {
			l.overflowReported = d.now
			d.report(Report{Kind: TooManyWaiting, Lane: l.assignment.Lane, ID: r.ID})
		}
		return
	case !waits:
		d.waiting++
		if l.waits == nil {
			l.waits = map[string]topicWait{}
		}
	}
	l.waits[r.Key] = topicWait{t, r.ID}
	t.addCandidate(first, handedOut)
}

// endTopicWait makes a key catch up although it waits for a closed topic: its first row is out of the way, and the next
// may be on another topic.
func (d *Dispatcher) endTopicWait(l *lane, name string) {
	if w, waits := l.waits[name]; waits {
		delete(l.waits, name)
		d.waiting--
		k := l.keyOf(name)
		k.deferFrom(w.low)
		d.advance(k)
	}
}

// rowDone continues with a key when a row of it is out of the way.
func (d *Dispatcher) rowDone(k *key, id int64) {
	if w, waits := k.lane.waits[k.name]; waits && w.low <= id && w.topic.closed && k.isIdle(w.low) {
		d.endTopicWait(k.lane, k.name)
	} else {
		d.advance(k)
	}
}

// requestCatchUp adds to a what to catch up with, within a room of that many rows, and returns how many rows it may
// bring: half are for keys, and most of the rest for topics that are open again.
func (d *Dispatcher) requestCatchUp(a *Request, room int) (most int) {
	c := &a.CatchUp
	from := func(l *lane, id int64) {
		if at := &c.From[l.assignment.Lane]; *at == 0 || id < *at {
			*at = id
		}
	}
	keys := 0
	for l := range d.inTurn {
		keys += l.toCatchUp.n
	}
	left := max(1, room/2)
	share := max(minRowsPerKey, left/max(1, keys))
	for l := range d.inTurn {
		for left > 0 && len(c.keys) < maxKeysInRead && l.toCatchUp.front != nil {
			k := l.toCatchUp.front
			d.unlist(k)
			if k.low == 0 || k.blocked(k.low) || k.firstIsClosed() || k.inRead {
				continue // it is listed again when that has changed
			}
			n := min(max(1, d.cfg.KeyRows-int(k.n)), share, left)
			left -= n
			k.inRead, k.deadNext = true, false
			c.keys, c.Keys = append(c.keys, k), append(c.Keys, k.name)
			c.Limits[l.assignment.Lane] += int64(n)
			from(l, k.low)
		}
	}
	for _, t := range d.degraded {
		if t.closed {
			continue
		}
		for lanes := t.deferredIn; lanes != 0; lanes &= lanes - 1 {
			l := d.lanes[bits.TrailingZeros64(lanes)]
			c.All |= 1 << l.assignment.Lane
			c.topics = append(c.topics, topicInLane{t, l.assignment})
			from(l, t.lowIn(l))
		}
	}
	topics := (room - max(1, room/2) + left) * 3 / 4
	for lanes := c.All; lanes != 0; lanes &= lanes - 1 {
		c.Limits[bits.TrailingZeros64(lanes)] += int64(max(1, topics/bits.OnesCount64(c.All)))
	}
	for _, n := range c.Limits {
		most += int(n)
	}
	return most
}

// count counts caught-up rows and due rows, before any of them are removed.
func (r *Read) count() {
	if r.counted {
		return
	}
	r.counted = true
	for _, row := range r.Caught {
		at := &r.caught[row.Assignment.Lane]
		at.rows++
		at.last = max(at.last, row.ID)
	}
	for _, row := range r.Due {
		r.fellDue[row.Assignment.Lane]++
	}
}

// toCursor means that a lane was caught up completely.
const toCursor = 1<<63 - 1

// reached returns the id up to which a read has caught up in each lane.
func (a *Request) reached(r *Read) (to [Lanes]int64) {
	r.count()
	for n, limit := range a.CatchUp.Limits {
		switch cut := r.CaughtCut[n]; {
		case cut > 0:
			to[n] = cut - 1
		case r.caught[n].rows >= limit:
			to[n] = r.caught[n].last
		case a.CatchUp.Short>>n&1 != 0:
			to[n] = a.CatchUp.Upto[n]
		default:
			to[n] = toCursor
		}
	}
	return to
}

// caughtUp handles the rows with which a read has caught up.
func (d *Dispatcher) caughtUp(a Request, r Read) {
	c := &a.CatchUp
	if c.None() {
		return
	}
	to := a.reached(&r)
	next := func(l *lane, low int64) int64 {
		switch n := l.assignment.Lane; {
		case low == 0 || low < c.From[n]: // a lower row was deferred in the meantime
			return low
		case to[n] == toCursor:
			return 0
		default:
			return max(low, to[n]+1)
		}
	}
	for _, k := range c.keys {
		if l := d.activeLane(k.lane.assignment); l == nil {
			continue
		} else if k.low = next(l, k.low); k.low == 0 {
			l.deferredKeys--
		}
	}
	for _, in := range c.topics {
		t, l := in.topic, d.activeLane(in.assignment)
		if l == nil || t.closed || t.dueUnseen>>in.assignment.Lane&1 != 0 {
			continue
		}
		if t.setLow(l, next(l, t.lowIn(l))); t.lowIn(l) == 0 {
			d.endTopicWaits(t, l)
		}
	}
	dead := d.deadNext(a, r, to)
	for _, row := range r.Caught {
		if l := d.activeLane(row.Assignment); l != nil {
			if id, is := dead[l.keys[row.Key]]; is && row.ID > id {
				continue // deferred from there on
			}
			row.call.waited = true
			if d.accept(l, row, false) {
				l.deferredRows = max(0, l.deferredRows-1)
			}
		}
	}
	d.endCatchUp(a)
}

// deadNext looks for rows of keys that were asked for and declared dead after they were deferred. Such a row blocks its
// key as soon as no lower one is pending. Until then the key stays deferred from that row on: these ids are returned.
func (d *Dispatcher) deadNext(a Request, r Read, to [Lanes]int64) (from map[*key]int64) {
	lowest := map[string]*Row{}
	for id, f := range r.ByID {
		if is := lowest[f.Row.Key]; f.Dead && id <= to[f.Row.Assignment.Lane] && (is == nil || id < is.ID) {
			lowest[f.Row.Key] = f.Row
		}
	}
	if len(lowest) == 0 {
		return nil
	}
	from = map[*key]int64{}
	for _, k := range a.CatchUp.keys {
		row, l := lowest[k.name], d.activeLane(k.lane.assignment)
		switch {
		case row == nil || l != k.lane || l.knows(row.ID):
		case k.isIdle(row.ID) && !slices.ContainsFunc(r.Caught, func(o *Row) bool {
			return o.Key == k.name && o.ID < row.ID
		}):
			d.addBlocked(l, k.name, row.ID, row.Topic, d.now.Add(never))
		default:
			k.deferFrom(row.ID)
			k.deadNext, from[k] = true, row.ID
		}
	}
	return from
}

// endCatchUp ends catching up with keys.
func (d *Dispatcher) endCatchUp(a Request) {
	for _, k := range a.CatchUp.keys {
		if k.inRead && d.activeLane(k.lane.assignment) == k.lane {
			k.inRead = false
			d.advance(k)
		}
	}
}

// endTopicWaits forgets which keys of a lane wait for a topic.
func (d *Dispatcher) endTopicWaits(t *topic, l *lane) {
	others := slices.ContainsFunc(d.degraded, func(o *topic) bool { return o != t && o.lowIn(l) != 0 })
	if !others {
		d.waiting -= len(l.waits)
		l.waits, l.overflow = nil, 0
		return
	}
	for name, w := range l.waits {
		if w.topic == t {
			delete(l.waits, name)
			d.waiting--
		}
	}
}

// resetDeferredRows corrects the number of deferred rows in lanes in which nothing is deferred.
func (d *Dispatcher) resetDeferredRows() {
	var lanes uint64
	for _, t := range d.degraded {
		lanes |= t.deferredIn
	}
	for n, l := range d.lanes {
		if l != nil && l.deferredKeys == 0 && lanes>>n&1 == 0 {
			l.deferredRows = 0
		}
	}
}
