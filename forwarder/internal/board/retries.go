package board

import (
	"cmp"
	"container/heap"
	"slices"
	"time"
)

// never is the due time of a head that is dead, or not the first of its key. A read of due rows sees when a dead one
// was requeued, and HeadsSeen when it is gone; the other's turn comes when those before it are finished.
const never = 10000 * time.Hour

// head is a row that waits for another attempt. A head with a key blocks it. A head without a key may be forgotten: it
// is read again when it falls due.
type head struct {
	id         int64
	key        *key // nil without a key
	topic      string
	act        string // the operator's act: lower messages of the key that were requeued in it are heads too
	due        time.Time
	changed    time.Time
	index      int  // index in its lane's heap; -1 = its attempt, or the settling of that, is in flight
	behindHead bool // its time has come, and it waits for the lower heads of its key
	overdue    bool // its time has come, and it is postponed
	behindRows bool // its time has come, and it waits for rows of its key that have lower ids
}

// retryIsDue reports whether the next read should ask for a head of a lane: the last one may have begun before its
// time.
func (b *Board) retryIsDue(l *lane) bool { return len(l.retries) > 0 && !l.retries[0].due.After(b.now) }

// addHead records a row that waits for another attempt; its key is blocked from now on.
func (b *Board) addHead(l *lane, name string, id int64, topic string, due time.Time) {
	h := b.newHead(l, name, id, topic)
	if name == "" && b.keyless > b.cfg.Deferred {
		b.removeHead(l, h)
		return
	}
	b.schedule(l, h, due)
}

// newHead returns the head of a row, and blocks its key.
func (b *Board) newHead(l *lane, name string, id int64, topic string) *head {
	h := l.heads[id]
	if h == nil {
		h = &head{id: id, topic: topic, index: -1}
		l.heads[id] = h
		if name == "" {
			b.keyless++
			l.keyless++
		} else {
			h.key = l.keyOf(name)
			h.key.heads.insert(id)
			b.putBack(h.key)
		}
	}
	if h.changed = b.now; h.key != nil {
		b.advance(h.key) // rows with lower ids continue
	}
	return h
}

// removeHead removes a head that is settled for good.
func (b *Board) removeHead(l *lane, h *head) {
	b.unschedule(l, h)
	delete(l.heads, h.id)
	if h.key == nil {
		b.keyless--
		l.keyless--
		return
	}
	k := h.key
	k.heads.remove(h.id)
	if k.heads.len() > 0 {
		if next := l.heads[k.heads.lowest()]; next.behindHead && next.index >= 0 {
			b.schedule(l, next, b.now)
		}
	}
	b.rowDone(k, h.id)
}

// sooner retries a head earlier than planned because the database has an earlier time: an operator asked for it.
func (b *Board) sooner(l *lane, h *head, due time.Time) {
	t := b.topics[h.topic]
	if h.overdue && t != nil && t.closed {
		return // it is postponed because of that
	}
	if h.index >= 0 && h.due.After(due) && !(h.behindHead && !h.isFirst()) {
		b.schedule(l, h, due)
	}
}

// isFirst reports whether no lower head of its key waits.
func (h *head) isFirst() bool { return h.key == nil || h.key.heads.lowest() == h.id }

// waitBehind makes a head wait for the lower ones of its key.
func (b *Board) waitBehind(l *lane, h *head) {
	h.behindHead = true
	b.schedule(l, h, b.now.Add(never))
}

// HeadsSeen compares the heads of a term with those in the database: all of them with ids above from, up to to. It
// ignores those that changed since began.
func (b *Board) HeadsSeen(now, began time.Time, t Term, from, to int64, heads []Head) {
	b.now = now
	l := b.open(t)
	if l == nil {
		return
	}
	seen := make(map[int64]Head, len(heads))
	for _, h := range heads {
		seen[h.ID] = h
	}
	var gone []*head
	for id, h := range l.heads {
		if id <= from || id > to || h.key == nil || h.index < 0 || !h.changed.Before(began) {
			continue
		}
		if s, ok := seen[id]; !ok {
			gone = append(gone, h)
		} else if !s.Dead {
			b.sooner(l, h, now.Add(s.Wait))
		}
	}
	slices.SortFunc(gone, func(x, y *head) int { return cmp.Compare(x.id, y.id) })
	for _, h := range gone {
		b.removeHead(l, h)
	}
}

// fetchRetries asks for heads whose time has come, up to a limit; lanes take turns.
func (b *Board) fetchRetries(a *Request, most int) {
	for l := range b.inTurn {
		for len(l.retries) > 0 && !l.retries[0].due.After(b.now) {
			if most--; most < 0 {
				return
			}
			b.fetchRetry(a, l, l.retries[0])
		}
	}
}

func (b *Board) fetchRetry(a *Request, l *lane, h *head) {
	switch {
	case !h.isFirst():
		b.waitBehind(l, h)
		return
	case h.key != nil && h.key.inFlight != nil:
		b.later(l, h, b.now.Add(recheckAfter))
		return
	case h.key != nil && l.hasLower(h):
		b.waitForLower(l, h)
		return
	}
	h.behindHead = false
	t := b.topics[h.topic]
	fetch := fetch{why: forRetry, term: l.term, head: h, id: h.id}
	if t != nil && t.closed {
		if !b.probeIsDue(t) || !b.hasSlot(t) {
			b.putOff(l, h, t)
			return
		}
		if t.lanes != 0 && t.failures%2 == 1 { // the turn of a waiting key, which may not have failed before
			b.later(l, h, b.now.Add(recheckAfter))
			return
		}
		t.probeInRead = true
		fetch.topic = t
	}
	b.unschedule(l, h)
	a.add(fetch)
}

// putOff postpones a head until its topic may be open.
func (b *Board) putOff(l *lane, h *head, t *topic) {
	at := b.now.Add(recheckAfter)
	switch {
	case t.byOperator:
		at = b.now.Add(never) // the end of the pause makes it due
	case t.paused && t.until.After(b.now):
		at = t.until // not later: it may be the only row that can test the topic
	case t.closed && (!t.paused || !b.hasSlot(t)):
		at = b.now.Add(b.cfg.SlowAfter)
	}
	b.later(l, h, at)
}

// retried handles a head that was read for its next attempt. looked means that the rows requeued with it are known.
func (b *Board) retried(l *lane, a fetch, f Found, found, looked bool) {
	h := a.head
	switch {
	case l.heads[a.id] != h || h.index >= 0: // settled in the meantime
		return
	case !found: // published by another, or changed by an operator
		b.removeHead(l, h)
		return
	case f.Dead:
		b.schedule(l, h, b.now.Add(never))
		return
	}
	r := f.Row
	r.call.waited = true
	if h.key == nil {
		b.removeHead(l, h)
		b.accept(l, r, true)
		return
	}
	t := b.topicOf(r.Topic)
	switch {
	case !h.isFirst(): // a lower one has come in the meantime
		b.waitBehind(l, h)
	case h.key.inFlight != nil:
		b.later(l, h, b.now.Add(recheckAfter))
	case t.paused && (a.topic != t || t.probe != nil || !b.hasSlot(t)), t.closed && !t.paused, t.byOperator:
		b.putOff(l, h, t)
	case h.act != r.Generation && !looked: // lower ones that were requeued with it may be unknown
		b.later(l, h, b.readDueForAct())
	default:
		if h.act = r.Generation; l.hasLower(h) {
			b.waitForLower(l, h)
		} else {
			b.letPass(l, h.key, r, t)
		}
	}
}

// letPass lets a row go although its key is blocked; on a paused topic it is the probe.
func (b *Board) letPass(l *lane, k *key, r *Row, t *topic) {
	c := &r.call
	c.pass, c.waited, c.Probe = true, true, t.paused
	b.keep(l, r)
	if k != nil {
		c.key, k.inFlight = k, r
	}
	if !t.paused {
		b.enqueue(r)
		return
	}
	c.state, t.probe = pending, r
	b.update(t)
}

// schedule sets when a head is due for another attempt.
func (b *Board) schedule(l *lane, h *head, due time.Time) {
	l.inTime(h)
	h.behindRows = false
	h.due, h.changed = due, b.now
	b.retryMoved = true
	if h.index < 0 {
		heap.Push(&l.retries, h)
	} else {
		heap.Fix(&l.retries, h.index)
	}
}

// later sets when to check a head again whose time has come, and that cannot go now.
func (b *Board) later(l *lane, h *head, at time.Time) {
	b.schedule(l, h, at)
	if l.overdue == nil {
		l.overdue = map[string]int{}
	}
	h.overdue = true
	l.overdue[h.topic]++
}

// inTime no longer counts a head as late.
func (l *lane) inTime(h *head) {
	if !h.overdue {
		return
	}
	h.overdue = false
	if l.overdue[h.topic]--; l.overdue[h.topic] == 0 {
		delete(l.overdue, h.topic)
	}
}

// unschedule removes a head from its lane's heap.
func (b *Board) unschedule(l *lane, h *head) {
	if h.index >= 0 {
		l.inTime(h)
		h.changed = b.now
		b.retryMoved = true
		heap.Remove(&l.retries, h.index)
	}
}

// retries is a heap of waiting heads, the earliest due first.
type retries []*head

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
	h := x.(*head)
	h.index = len(*q)
	*q = append(*q, h)
}

func (q *retries) Pop() any {
	last := len(*q) - 1
	h := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	h.index = -1
	return h
}
