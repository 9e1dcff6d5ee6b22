package dispatch

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// never is the due time of a blocked row that is dead, or not the first of its key. A read of due rows sees when a dead
// one was requeued, and BlockedSeen when it is gone; the other's turn comes when those before it are finished.
const never = 10000 * time.Hour

// blockedRow is a row that waits for another attempt. It blocks its key. Without a key it may be forgotten: it is
// read with other due rows.
type blockedRow struct {
	id              int64
	key             *key // nil without a key
	topic           string
	generation      string // of its requeue: lower messages of the key that were requeued with it are blocked rows too
	due             time.Time
	changed         time.Time
	index           int  // index in its lane's heap; -1 = its attempt, or the settling of that, is in flight
	waitsForBlocked bool // its time has come, and it waits for the lower blocked rows of its key
	overdue         bool // its time has come, and it is postponed
	waitsForRows    bool // its time has come, and it waits for rows of its key that have lower ids
}

// retryIsDue reports whether a retry of the lane is due. A read in flight may have begun before that.
func (d *Dispatcher) retryIsDue(l *lane) bool {
	return len(l.retries) > 0 && !l.retries[0].due.After(d.now)
}

// addBlocked records a row that waits for another attempt; its key is blocked from now on.
func (d *Dispatcher) addBlocked(l *lane, name string, id int64, topic string, due time.Time) {
	b := d.newBlocked(l, name, id, topic)
	if name == "" && d.keyless > d.cfg.Deferred {
		d.removeBlocked(l, b)
		return
	}
	d.schedule(l, b, due)
}

// newBlocked adds a blocked row, unless it is known, and blocks its key.
func (d *Dispatcher) newBlocked(l *lane, name string, id int64, topic string) *blockedRow {
	b := l.blocked[id]
	if b == nil {
		b = &blockedRow{id: id, topic: topic, index: -1}
		l.blocked[id] = b
		if name == "" {
			d.keyless++
			l.keyless++
		} else {
			b.key = l.keyOf(name)
			b.key.blockedIDs.insert(id)
			d.deferQueue(b.key)
		}
	}
	if b.changed = d.now; b.key != nil {
		d.advance(b.key) // rows with lower ids continue
	}
	return b
}

// removeBlocked removes a blocked row that is settled for good.
func (d *Dispatcher) removeBlocked(l *lane, b *blockedRow) {
	d.unschedule(l, b)
	delete(l.blocked, b.id)
	if b.key == nil {
		d.keyless--
		l.keyless--
		return
	}
	k := b.key
	k.blockedIDs.remove(b.id)
	if len(k.blockedIDs) > 0 {
		if next := l.blocked[k.blockedIDs[0]]; next.waitsForBlocked && next.index >= 0 {
			d.schedule(l, next, d.now)
		}
	}
	d.rowDone(k, b.id)
}

// retrySooner retries a blocked row earlier than planned because the database has an earlier time: an operator asked
// for it.
func (d *Dispatcher) retrySooner(l *lane, b *blockedRow, due time.Time) {
	t := d.topics[b.topic]
	if b.overdue && t != nil && t.closed {
		return // it is postponed because of that
	}
	if b.waitsForRows && l.hasLower(b) {
		return // each read of due rows returns it, and it would be due again at once
	}
	if b.index >= 0 && b.due.After(due) && !(b.waitsForBlocked && !b.isFirst()) {
		d.schedule(l, b, due)
	}
}

// isFirst reports whether no lower blocked row of its key waits.
func (b *blockedRow) isFirst() bool { return b.key == nil || b.key.blockedIDs[0] == b.id }

// waitForBlocked makes a blocked row wait for the lower ones of its key.
func (d *Dispatcher) waitForBlocked(l *lane, b *blockedRow) {
	b.waitsForBlocked = true
	d.schedule(l, b, d.now.Add(never))
}

// BlockedSeen compares the blocked rows of an assignment with those in the database: all of them with ids above from,
// up to to. It ignores those that changed since began.
func (d *Dispatcher) BlockedSeen(now, began time.Time, t Assignment, from, to int64, blocked []BlockedRow) {
	d.now = now
	l := d.activeLane(t)
	if l == nil {
		return
	}
	seen := make(map[int64]BlockedRow, len(blocked))
	for _, b := range blocked {
		seen[b.ID] = b
	}
	var gone []*blockedRow
	for id, b := range l.blocked {
		if id <= from || id > to || b.key == nil || b.index < 0 || !b.changed.Before(began) {
			continue
		}
		if s, ok := seen[id]; !ok {
			gone = append(gone, b)
		} else if !s.Dead {
			d.retrySooner(l, b, now.Add(s.Wait))
		}
	}
	slices.SortFunc(gone, func(x, y *blockedRow) int { return cmp.Compare(x.id, y.id) })
	for _, b := range gone {
		d.removeBlocked(l, b)
	}
}

// requestRetries requests blocked rows whose time has come; lanes take turns. They get at most half of the room, or
// without room as much as new rows: they may be due faster than they are published.
func (d *Dispatcher) requestRetries(a *Request) {
	visits := d.cfg.Rows/4 + 1
	most := min(visits, max(len(a.assignments), (d.cfg.Rows-d.rows)/2))
	for l := range d.inTurn {
		for len(l.retries) > 0 && !l.retries[0].due.After(d.now) {
			if visits--; visits < 0 || len(a.IDs) == most {
				return
			}
			d.requestRetry(a, l, l.retries[0])
		}
	}
}

// requestRetryAsProbe requests a blocked row whose time has come as the probe of its topic. requestRetries may not have
// reached it.
func (d *Dispatcher) requestRetryAsProbe(a *Request, t *topic) bool {
	for l := range d.inTurn {
		if !d.retryIsDue(l) {
			continue
		}
		for _, b := range slices.Clone(l.retries) {
			if b.topic != t.name || b.due.After(d.now) {
				continue
			}
			if d.requestRetry(a, l, b); t.probeInRead {
				return true
			}
		}
	}
	return false
}

func (d *Dispatcher) requestRetry(a *Request, l *lane, b *blockedRow) {
	switch {
	case !b.isFirst():
		d.waitForBlocked(l, b)
		return
	case b.key != nil && b.key.inFlight != nil:
		d.recheckAt(l, b, d.now.Add(recheckAfter))
		return
	case l.hasLower(b):
		d.waitForLower(l, b)
		return
	}
	b.waitsForBlocked = false
	t := d.topics[b.topic]
	fetch := fetch{candidate: candidate{assignment: l.assignment, id: b.id}, reason: forRetry, blocked: b}
	if t != nil && t.closed {
		if !d.probeIsDue(t) || !d.hasSlot(t) {
			d.waitForTopic(l, b, t)
			return
		}
		if t.deferredIn != 0 && t.failures%2 == 1 { // the turn of a waiting key, which may not have failed before
			d.recheckAt(l, b, d.now.Add(recheckAfter))
			return
		}
		t.probeInRead = true
		fetch.topic = t
	}
	d.unschedule(l, b)
	a.add(fetch)
}

// waitForTopic postpones a blocked row until its topic may be open.
func (d *Dispatcher) waitForTopic(l *lane, b *blockedRow, t *topic) {
	at := d.now.Add(recheckAfter)
	switch {
	case t.byOperator:
		at = d.now.Add(never) // the end of the pause makes it due
	case t.paused && t.until.After(d.now):
		at = t.until // not later: it may be the only row that can test the topic
	case t.closed && (!t.paused || !d.hasSlot(t)):
		at = d.now.Add(d.cfg.SlowAfter)
	}
	d.recheckAt(l, b, at)
}

// retryRead handles a blocked row that was read for its next attempt. requeuesKnown means that the rows requeued with
// it are known.
func (d *Dispatcher) retryRead(l *lane, a fetch, read Read, requeuesKnown bool) {
	b := a.blocked
	f, found := read.ByID[a.id]
	switch {
	case l.blocked[a.id] != b || b.index >= 0: // settled in the meantime
		return
	case !found, f.Dead && b.key == nil: // published by another, or changed by an operator
		d.removeBlocked(l, b)
		return
	case f.Dead:
		d.schedule(l, b, d.now.Add(never))
		return
	}
	r := f.Row
	t := d.topicOf(r.Topic)
	switch {
	case !b.isFirst(): // a lower one has come in the meantime
		d.waitForBlocked(l, b)
	case b.key != nil && b.key.inFlight != nil:
		d.recheckAt(l, b, d.now.Add(recheckAfter))
	case t.paused && (a.topic != t || t.probe != nil || !d.hasSlot(t)), t.closed && !t.paused, t.byOperator:
		d.waitForTopic(l, b, t)
	case b.key != nil && b.generation != r.Generation && !requeuesKnown:
		// lower ones that were requeued with it may be unknown
		if read.DueRead { // with too little room: others follow
			d.recheckAt(l, b, d.now.Add(recheckAfter))
		} else {
			d.recheckAt(l, b, d.now)
			d.readDue(dueOfOpen)
		}
	default:
		if b.generation = r.Generation; l.hasLower(b) {
			d.waitForLower(l, b)
		} else {
			d.bypassKey(l, r, t)
		}
	}
}

// bypassKey lets a row go although its key is blocked; on a paused topic it is the probe.
func (d *Dispatcher) bypassKey(l *lane, r *Row, t *topic) {
	c := &r.call
	c.bypass, c.waited, c.Probe = true, true, t.paused
	d.keep(l, r)
	if r.Key != "" {
		c.key = l.keyOf(r.Key)
		c.key.inFlight = r
	}
	if !t.paused {
		d.enqueue(r)
		return
	}
	c.state, t.probe = pending, r
	d.update(t)
}

// schedule sets when a blocked row is due for another attempt.
func (d *Dispatcher) schedule(l *lane, b *blockedRow, due time.Time) {
	l.clearOverdue(b)
	b.waitsForRows = false
	b.due, b.changed = due, d.now
	d.retryMoved = true
	if b.index < 0 {
		heap.Push(&l.retries, b)
	} else {
		heap.Fix(&l.retries, b.index)
	}
}

// recheckAt sets when to check a blocked row again whose time has come, and that cannot go now.
func (d *Dispatcher) recheckAt(l *lane, b *blockedRow, at time.Time) {
	d.schedule(l, b, at)
	if l.overdue == nil {
		l.overdue = map[string]int{}
	}
	b.overdue = true
	l.overdue[b.topic]++
}

// clearOverdue no longer counts a blocked row as late.
func (l *lane) clearOverdue(b *blockedRow) {
	if !b.overdue {
		return
	}
	b.overdue = false
	if l.overdue[b.topic]--; l.overdue[b.topic] == 0 {
		delete(l.overdue, b.topic)
	}
}

// unschedule removes a blocked row from its lane's heap.
func (d *Dispatcher) unschedule(l *lane, b *blockedRow) {
	if b.index >= 0 {
		l.clearOverdue(b)
		b.changed = d.now
		d.retryMoved = true
		heap.Remove(&l.retries, b.index)
	}
}

// retries is a heap of waiting blocked rows, the earliest due first.
type retries []*blockedRow

func (q retries) Len() int { return len(q) }
func (q retries) Less(i, j int) bool {
	c := q[i].due.Compare(q[j].due)
	return c < 0 || c == 0 && q[i].id < q[j].id // so that schedules can be repeated
}

func (q retries) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *retries) Push(x any) {
	b := x.(*blockedRow)
	b.index = len(*q)
	*q = append(*q, b)
}

func (q *retries) Pop() any {
	last := len(*q) - 1
	b := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	b.index = -1
	return b
}
