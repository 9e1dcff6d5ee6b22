package board

import (
	"cmp"
	"slices"
	"time"
)

// deadRecheck is how often a head that nobody retries is looked at.
const deadRecheck = 30 * time.Second

// head is a row that waits for another attempt. One with a key holds it. One without may be forgotten: it is read
// again when it falls due.
type head struct {
	id      int64
	key     *key // nil without one
	topic   string
	due     time.Time
	changed time.Time
	place   int // in its lane's heap; -1 = its attempt, or the settling of that, is under way
}

// addHead notes a row that waits for another attempt; its key is held from now on.
func (b *Board) addHead(l *lane, name string, id int64, topic string, due time.Time) {
	h := b.newHead(l, name, id, topic)
	if name == "" && b.loose > b.cfg.Parked {
		b.removeHead(l, h)
		return
	}
	b.schedule(l, h, due)
}

// newHead returns the head of a row, and holds its key.
func (b *Board) newHead(l *lane, name string, id int64, topic string) *head {
	h := l.heads[id]
	if h == nil {
		h = &head{id: id, topic: topic, place: -1}
		l.heads[id] = h
		if name == "" {
			b.loose++
		} else {
			h.key = l.keyOf(name)
			h.key.heads++
			b.unpark(h.key, id)
			b.putBack(h.key)
		}
	}
	h.changed = b.now
	return h
}

// removeHead lets go of a head that is settled for good.
func (b *Board) removeHead(l *lane, h *head) {
	b.unschedule(l, h)
	delete(l.heads, h.id)
	if h.key == nil {
		b.loose--
		return
	}
	h.key.heads--
	b.advance(h.key)
}

// sooner retries a head that was to wait longer than the database says: somebody has asked for it.
func (b *Board) sooner(l *lane, h *head, due time.Time) {
	if h.place >= 0 && h.due.After(due) {
		b.schedule(l, h, due)
	}
}

// HeadsSeen compares the heads of a term with those that the database has: all of ids above from and up to to. It leaves
// alone what changed since began.
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
		if id <= from || id > to || h.key == nil || h.place < 0 || !h.changed.Before(began) {
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

// retry is a head that a read asks for.
func (b *Board) askRetries(a *Asks, most int) {
	for i := range Lanes {
		l := b.lanes[(b.turn+i)%Lanes]
		if l == nil {
			continue
		}
		for len(l.retries) > 0 && !l.retries[0].due.After(b.now) {
			if most--; most < 0 {
				return
			}
			b.askRetry(a, l, l.retries[0])
		}
	}
}

func (b *Board) askRetry(a *Asks, l *lane, h *head) {
	if h.key != nil && h.key.under != nil {
		b.schedule(l, h, b.now.Add(lookAgain))
		return
	}
	t := b.topics[h.topic]
	ask := ask{why: forRetry, term: l.term, head: h, id: h.id}
	if t != nil && t.closed {
		if !t.mayTry(b.now) {
			b.putOff(l, h, t)
			return
		}
		t.asked = true
		ask.topic = t
	}
	b.unschedule(l, h)
	a.add(ask)
}

// putOff looks at a head again when its topic may be open.
func (b *Board) putOff(l *lane, h *head, t *topic) {
	due := b.now.Add(lookAgain)
	switch {
	case t.paused && !t.held && t.until.After(b.now):
		due = t.until // not later: it may be the only one that can try the topic
	case t.closed && !t.paused, t.held:
		due = b.now.Add(b.cfg.SlowAfter)
	}
	b.schedule(l, h, due)
}

// retried takes a head that was read for its next attempt.
func (b *Board) retried(l *lane, a ask, f Found, found bool) {
	h := a.head
	switch {
	case l.heads[a.id] != h || h.place >= 0: // settled meanwhile
		return
	case !found: // published by somebody else, or changed by an operator
		b.removeHead(l, h)
		return
	case f.Dead:
		b.schedule(l, h, b.now.Add(deadRecheck))
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
	case h.key.under != nil:
		b.schedule(l, h, b.now.Add(lookAgain))
	case t.paused && (a.topic != t || t.trial != nil), t.closed && !t.paused, t.held:
		b.putOff(l, h, t)
	default:
		b.letPass(l, h.key, r, t)
	}
}

// letPass lets a row go although its key is blocked; on a paused topic it is the trial.
func (b *Board) letPass(l *lane, k *key, r *Row, t *topic) {
	c := &r.call
	c.pass, c.waited = true, true
	b.keep(l, r)
	if k != nil {
		c.key, k.under = k, r
	}
	if !t.paused {
		b.enqueue(r)
		return
	}
	c.state, t.trial = pending, r
	b.update(t)
}

// schedule says when a head is due for another attempt.
func (b *Board) schedule(l *lane, h *head, due time.Time) {
	if h.place < 0 {
		h.place = len(l.retries)
		l.retries = append(l.retries, h)
	}
	h.due, h.changed = due, b.now
	b.retryMoved = true
	l.sift(h.place)
}

// unschedule takes a head out of its lane's heap.
func (b *Board) unschedule(l *lane, h *head) {
	i, last := h.place, len(l.retries)-1
	if i < 0 {
		return
	}
	l.swap(i, last)
	l.retries[last] = nil
	l.retries = l.retries[:last]
	h.place = -1
	h.changed = b.now
	b.retryMoved = true
	if i < last {
		l.sift(i)
	}
}

func (l *lane) swap(i, j int) {
	q := l.retries
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// sift moves a head to its place in the heap.
func (l *lane) sift(i int) {
	q := l.retries
	for i > 0 && q[i].due.Before(q[(i-1)/2].due) {
		l.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(q); child++ {
			if q[child].due.Before(q[least].due) {
				least = child
			}
		}
		if least == i {
			return
		}
		l.swap(i, least)
		i = least
	}
}
