package dispatch

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// recount compares the counters with the contents, and the lists with each other. Its arguments are chosen so that
// formatting them costs nothing while everything is correct.
type recount struct {
	b       *Dispatcher
	problem string

	rows, waiting, ready, keyless int
	bytes                         int64
	topics                        map[*topic]*counted
	inFlight                      [Lanes]int
}

// counted has the counts of a topic.
type counted struct {
	calls, old, hung, rows int
	bytes                  int64
}

func (t *topic) String() string { return t.name }
func (k *key) String() string   { return strconv.Quote(k.name) }

// Check recounts. calls are the calls that have not returned, including hung ones.
func (b *Dispatcher) Check(calls []*Call) string {
	n := recount{b: b, topics: make(map[*topic]*counted, len(b.topics))}
	for _, t := range b.topics {
		n.topics[t] = &counted{}
	}
	n.countCalls(calls)
	for _, l := range b.lanes {
		if l != nil {
			n.lane(l)
		}
	}
	for t, c := range n.topics {
		n.topic(t, c)
	}
	for t := b.turns.front; t != nil; t = t.next {
		n.want(t.ready > 0, "topic %v has a turn, but nothing is ready", t)
	}
	for _, t := range b.degraded {
		n.want(n.topics[t] != nil, "topic %v is degraded but was removed", t)
	}
	n.want(n.ready == b.ready, "ready: %d, counted %d", b.ready, n.ready)
	n.want(n.rows == b.rows, "rows: %d, counted %d", b.rows, n.rows)
	n.want(n.bytes == b.bytes, "bytes: %d, counted %d", b.bytes, n.bytes)
	n.want(n.waiting == b.waiting, "waiting: %d, counted %d", b.waiting, n.waiting)
	n.want(n.keyless == b.keyless, "keyless: %d, counted %d", b.keyless, n.keyless)
	return n.problem
}

func (n *recount) want(ok bool, format string, args ...any) {
	if !ok && n.problem == "" {
		n.problem = fmt.Sprintf(format, args...)
	}
}

func (n *recount) inMemory(r *Row) {
	n.rows++
	n.bytes += r.size()
}

func (n *recount) countCalls(calls []*Call) {
	counts := [dropped + 1]int{}
	for _, c := range calls {
		counts[c.state]++
		t := n.topics[c.topic]
		if n.want(t != nil, "topic %v was removed before its call returned", c.topic); t == nil {
			continue
		}
		t.calls++
		if c.state != young {
			t.old++
		}
		if c.state == hung {
			t.hung++
			continue
		}
		n.inMemory(c.Row)
		if n.b.lane(c.Row.Assignment) != nil {
			n.inFlight[c.Row.Assignment.Lane]++
		}
	}
	n.want(counts[young] == n.b.young.n, "young: %d, counted %d", n.b.young.n, counts[young])
	n.want(counts[slow] == n.b.slow.n, "slow: %d, counted %d", n.b.slow.n, counts[slow])
	old := counts[expired] + counts[hung]
	n.want(old == n.b.old.n, "expired or hung: %d, counted %d", n.b.old.n, old)
	n.want(len(calls) == n.b.calls(), "calls: %d, counted %d", n.b.calls(), len(calls))
	n.want(counts[idle]+counts[pending]+counts[returned]+counts[dropped] == 0, "calls that are not in flight")
}

func (n *recount) topic(t *topic, c *counted) {
	n.want(c.calls == t.calls && c.old == t.old && c.hung == t.hung,
		"topic %v: %d calls, %d old, %d hung, counted %d, %d, %d", t, t.calls, t.old, t.hung, c.calls, c.old, c.hung)
	n.want(c.rows == t.rows && c.bytes == t.bytes, "topic %v: %d rows of %d bytes, counted %d, %d", t, t.rows, t.bytes,
		c.rows, c.bytes)
	queued := n.queue(t, &t.fresh) + n.queue(t, &t.waited)
	probe := t.probe != nil && t.probe.call.state == pending
	if n.want(t.probe == nil || t.paused, "topic %v is open and has a probe", t); probe {
		n.inMemory(t.probe)
	}
	switch {
	case t.byOperator, t.calls >= n.b.cfg.Concurrency, t.paused && !probe:
		queued = 0
	case t.paused:
		queued = 1
	}
	n.want(t.ready == queued, "topic %v: %d ready, counted %d", t, t.ready, queued)
	n.ready += queued
	n.lows(t)
	n.want(t.degraded == slices.Contains(n.b.degraded, t), "topic %v: degraded %v", t, t.degraded)
	n.want(t.degraded || !t.paused && !t.byOperator && !t.slow && t.deferredIn == 0,
		"topic %v: is degraded but not listed", t)
}

// queue counts a queue of rows that may be published.
func (n *recount) queue(t *topic, queue *list[Call, *Call]) (queued int) {
	for c := queue.front; c != nil; c = c.next {
		queued++
		r := c.Row
		l := n.b.activeLane(r.Assignment)
		n.want(l != nil && c.state == pending && c.topic == t && r.Topic == t.name, "topic %v: row %d is queued in state %d",
			t, r.ID, c.state)
		n.want(c.waited == (queue == &t.waited), "row %d is on the wrong queue", r.ID)
		n.want(l == nil || l.known[r.ID] != nil, "row %d is queued but not known", r.ID)
		if c.key == nil || c.bypass {
			n.inMemory(r)
		} else {
			n.want(c.key.first == r, "row %d is queued but not the first of its key", r.ID)
		}
	}
	n.want(queued == queue.n, "topic %v: %d queued, counted %d", t, queue.n, queued)
	return queued
}

// lows checks the lanes with deferred rows.
func (n *recount) lows(t *topic) {
	lanes := uint64(0)
	for i, l := range n.b.lanes {
		if t.deferredFrom != nil && t.deferredFrom[i] != 0 {
			lanes |= 1 << i
			n.want(l != nil && !l.releasing, "topic %v: rows are deferred in lane %d, which has been released", t, i)
		}
	}
	n.want(lanes == t.deferredIn, "topic %v: lanes %b, counted %b", t, t.deferredIn, lanes)
}

func (n *recount) lane(l *lane) {
	n.want(l.inFlight == n.inFlight[l.assignment.Lane], "lane %d: %d in flight, counted %d", l.assignment.Lane, l.inFlight,
		n.inFlight[l.assignment.Lane])
	if l.releasing {
		n.want(len(l.known) == 0, "lane %d is released but has %d rows", l.assignment.Lane, len(l.known))
		return
	}
	for _, r := range l.known {
		switch s := r.call.state; s {
		case idle, pending:
			t := n.topics[r.call.topic]
			t.rows++
			t.bytes += r.size()
		case hung, returned:
			n.want(r.call.results > 0 || slices.Contains(n.b.settled, r), "row %d is kept without a reason", r.ID)
		}
	}
	n.blocked(l)
	lows := 0
	for name, k := range l.keys {
		n.want(k.name == name && k.lane == l, "key %v is listed as another", k)
		n.key(l, k)
		if k.low != 0 {
			lows++
		}
	}
	n.want(lows == l.deferredKeys, "lane %d: %d keys with deferred rows, counted %d",
		l.assignment.Lane, l.deferredKeys, lows)
	for name, d := range l.waits {
		low := d.topic.lowIn(l)
		n.want(low != 0, "key %q waits from %d on for topic %v, which has no deferred rows", name, d.low, d.topic)
	}
	n.waiting += len(l.waits)
	for k := l.toCatchUp.front; k != nil; k = k.next {
		n.want(k.listed && l.keys[k.name] == k, "key %v is wrongly marked for catch-up", k)
	}
}

func (n *recount) blocked(l *lane) {
	held, late := map[*key]int32{}, map[string]int{}
	for id, h := range l.blocked {
		n.want(h.id == id, "blocked row %d is listed as %d", h.id, id)
		n.want(h.index < 0 || l.retries[h.index] == h, "blocked row %d is not in its place", id)
		if h.overdue {
			late[h.topic]++
			n.want(h.index >= 0, "blocked row %d is overdue while its attempt is in flight", id)
		}
		if h.key == nil {
			n.keyless++
			continue
		}
		held[h.key]++
		n.want(l.keys[h.key.name] == h.key, "blocked row %d: its key was removed", id)
	}
	n.want(maps.Equal(late, l.overdue), "lane %d: overdue blocked rows %v, counted %v", l.assignment.Lane, l.overdue, late)
	for _, k := range l.keys {
		n.want(len(k.blockedIDs) == int(held[k]), "key %v: %d blocked rows, counted %d", k, len(k.blockedIDs), held[k])
	}
	for i, h := range l.retries {
		n.want(h.index == i && l.blocked[h.id] == h && (i == 0 || !h.due.Before(l.retries[(i-1)/2].due)),
			"lane %d: heap broken at %d", l.assignment.Lane, i)
	}
}

func (n *recount) key(l *lane, k *key) {
	n.want(k.inFlight != nil || k.n > 0 || len(k.blockedIDs) > 0 || k.low != 0 || k.inRead, "key %v is empty", k)
	rows := int32(0)
	for r := k.first; r != nil; r = r.call.nextOfKey {
		rows++
		n.inMemory(r)
		n.want(r.call.state == idle || r.call.state == pending && r == k.first, "key %v: row %d in state %d", k, r.ID,
			r.call.state)
		n.want(r.call.nextOfKey != nil || k.last == r, "key %v: the last row is not the last", k)
		n.want(!k.blocked(r.ID), "key %v: row %d is both in memory and blocked", k, r.ID)
		n.want(r.ID <= k.top, "key %v: row %d is above the top of its queue, %d", k, r.ID, k.top)
	}
	n.want(rows == k.n && int(k.n) <= n.b.cfg.KeyRows, "key %v: queue of %d, counted %d", k, k.n, rows)
	n.want(k.n == 0 || k.inFlight != nil || k.first.call.state == pending,
		"key %v: its first row is not queued although no other is in flight", k)
	if r := k.inFlight; r != nil {
		s := r.call.state
		n.want(s == young || s == slow || s == expired || s == pending && r.call.bypass,
			"key %v: row %d is in flight in state %d", k, r.ID, s)
		n.want(k.first == nil || k.first.call.state == idle, "key %v has two calls", k)
	}
	for r := k.first; r != nil; r = r.call.nextOfKey {
		n.want(k.low == 0 || r.ID < k.low || r.call.due, "key %v: row %d is in memory, but deferred from %d on", k, r.ID,
			k.low)
	}
	n.want(k.low == 0 || k.blocked(k.low) || k.inFlight != nil || k.n > 0 || k.inRead || k.listed,
		"key %v: deferred rows are never caught up", k)
}
