package queue

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/progress"
)

// The kinds of rows.
const (
	ready = iota
	due
	suspect
)

// The parts of sqltext.ClaimTopics that are not a single topic.
const (
	ofUnlimited = 0
	ofLimited   = -1
	ofSuspects  = -2
)

// plan describes one statement.
type plan struct {
	limit  int
	parts  []part
	reads  []read // in the order of the statement
	limits []room
	common []bool             // these topics are read together
	newly  map[string]*bounds // topics that fall behind
	pages  bool               // no read passes more rows than fit in a page
}

// part is a group of topics, with one read of ready messages and one of due messages.
type part struct {
	of         int    // a constant above, or the number of the topic that is behind
	topic      string // the topic that is behind; "" if of is a constant
	room       int
	bounds     *bounds
	before     bounds // a copy made before the poll
	ready, due progress.Scan
	more       bool // there may be more rows
}

// read is one index scan of the statement.
type read struct {
	part *part // nil for suspects
	kind int
	room int
	scan progress.Scan
}

// plan returns the next statement. low is the position of the first messages.
func (c *claimCursor) plan(now time.Time, limit int, a claimRequest, low lowest) *plan {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limits = len(a.limits) > 0
	maps.DeleteFunc(c.behind, func(topic string, _ *bounds) bool { // its only limit was a temporary skip
		_, limited := slices.BinarySearchFunc(a.limits, topic, func(l room, topic string) int {
			return strings.Compare(l.topic, topic)
		})
		return !limited
	})
	p := &plan{limit: limit, limits: a.limits, common: make([]bool, len(a.limits)), newly: map[string]*bounds{}}
	var parts []part
	for i, l := range a.limits {
		switch own := c.behind[l.topic]; {
		case own != nil && l.n > 0:
			parts = append(parts, part{of: i + 1, topic: l.topic, room: min(l.n, limit), bounds: own})
		case own == nil && l.n > 0:
			p.common[i] = true
		case own == nil: // it fell behind earlier
			own := c.limited
			p.newly[l.topic] = &own
		}
	}
	if slices.Contains(p.common, true) {
		parts = append(parts, part{of: ofLimited, room: limit, bounds: &c.limited})
	}
	// The first part may use all the room, so the topic that was served last goes last.
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(a.bounds.served, b.bounds.served) })
	all := part{of: ofUnlimited, room: limit, bounds: &c.all}
	if c.limitedFirst {
		parts = append(parts, all)
	} else {
		parts = append([]part{all}, parts...)
	}
	c.limitedFirst = !c.limitedFirst
	full := !now.Before(c.fullAt)
	for i := range parts {
		l := &parts[i]
		l.bounds.ready.Low, l.bounds.due.Low = low.ready, low.due
		l.before = *l.bounds
		may := l.topic == "" || full
		l.ready, l.due = l.bounds.ready.Next(now, may), l.bounds.due.Next(now, may)
		full = full && (l.topic == "" || !l.ready.Full() && !l.due.Full()) // one at a time
	}
	p.parts = parts
	if a.suspects {
		c.suspects.Low = low.due
		p.reads = append(p.reads, read{kind: suspect, room: 1, scan: c.suspects.Next(now, true)})
		c.suspectsAt = now.Add(suspectInterval)
	}
	if c.dueFirst = !c.dueFirst && !now.Before(c.dueAt); c.dueFirst {
		c.dueAt = now.Add(dueInterval)
		p.readDue((limit + 1) / 2)
	}
	for i := range parts {
		p.reads = append(p.reads, read{part: &parts[i], kind: ready, room: parts[i].room, scan: parts[i].ready})
	}
	if !c.dueFirst {
		p.readDue(limit)
	}
	// a claim in a caller's transaction has only this statement to find messages
	p.pages = !c.joined && slices.ContainsFunc(p.reads, func(r read) bool { return r.scan.Pages() })
	return p
}

// readDue adds the reads of due messages.
func (p *plan) readDue(most int) {
	for i := range p.parts {
		l := &p.parts[i]
		p.reads = append(p.reads, read{part: l, kind: due, room: min(l.room, most), scan: l.due})
	}
}

// args returns the last arguments of sqltext.ClaimTopics: the topics with a limit, and the reads.
func (p *plan) args() []any {
	limited, left := make([]string, len(p.limits)), make([]int64, len(p.limits))
	for i, l := range p.limits {
		limited[i], left[i] = l.topic, int64(l.n)
	}
	n := len(p.reads)
	of, rooms, dueAt, ids := make([]int64, n), make([]int64, n), make([]string, n), make([]int64, n)
	for i, r := range p.reads {
		of[i], rooms[i], ids[i] = ofSuspects, int64(r.room), r.scan.From.ID
		if r.part != nil {
			of[i] = int64(r.part.of)
		}
		if r.kind != ready {
			dueAt[i] = dueFrom(r.scan.From)
		}
	}
	return []any{limited, left, of, rooms, dueAt, ids}
}

func dueFrom(p progress.Position) string {
	if p.At <= 0 {
		return "-infinity"
	}
	return time.UnixMicro(p.At).UTC().Format(time.RFC3339Nano)
}
