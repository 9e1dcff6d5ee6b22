package queue

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/progress"
)

// claimCursor remembers, per set of topics, how far claims have come, so that they read each row once. Claims in a
// transaction of the caller do not change it, because they may be rolled back.
//
// Topics with a limit are claimed together, but apart from topics without one, so that neither group waits behind a
// backlog of the other. When a topic reaches its limit, its rows are skipped, and it is behind: it gets its own
// cursors, copied from the common ones before its rows were skipped. It is claimed from there, in the same statement as
// the others, until its skipped rows are claimed.
type claimCursor struct {
	joined bool // for one call in a transaction of the caller: starts empty and is not kept

	mu       sync.Mutex
	all      bounds // topics without a limit
	limited  bounds // topics with a limit, except those that are behind
	behind   map[string]*bounds
	suspects progress.Mark

	dueAt, suspectsAt time.Time // when to claim due messages and suspects although enough is ready
	dueFirst          bool      // the last statement read due messages first
	limitedFirst      bool      // the next statement reads topics with a limit first
	backlog           bool      // the last poll left ready messages
	limits            bool      // some topics have a limit
	served            int64     // polls so far
	fullAt            time.Time // when a topic that is behind may be read from the beginning again
}

// bounds is how far the claims of one group of topics have come.
type bounds struct {
	ready, due progress.Mark
	served     int64 // the last poll that found something
}

func newClaimCursor() *claimCursor {
	overlap := progress.Position{At: time.Second.Microseconds()}
	many := bounds{ready: progress.Mark{Overlap: progress.Position{ID: 1024}}, due: progress.Mark{Overlap: overlap}}
	return &claimCursor{
		all: many, limited: many, behind: map[string]*bounds{}, suspects: progress.Mark{Overlap: overlap}, limitedFirst: true,
	}
}

// claimTopics returns all topics that Claim was called for; nil = all topics.
func (s *Store) claimTopics() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	topics := []string{}
	for key := range s.cursors {
		if key == "" {
			return nil
		}
		topics = append(topics, strings.Split(key, "\x00")...)
	}
	return topics
}

// claimCursor returns the cursor of these topics.
func (s *Store) claimCursor(topics []string) *claimCursor {
	key := strings.Join(topics, "\x00")
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.cursors[key]
	if c == nil {
		if s.cursors == nil {
			s.cursors = map[string]*claimCursor{}
		}
		if len(s.cursors) >= maxClaimCursors {
			for other := range s.cursors { // any of them: it starts over
				delete(s.cursors, other)
				break
			}
		}
		c = newClaimCursor()
		s.cursors[key] = c
	}
	return c
}

// onlyReady reports whether enough messages are ready to claim nothing else.
func (c *claimCursor) onlyReady(a claimRequest, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.joined && c.backlog && len(a.limits) == 0 && now.Before(c.dueAt) &&
		(!a.suspects || now.Before(c.suspectsAt)) &&
		!c.all.ready.Next(now, true).Pages()
}

// settled reports whether all messages with ids up to a number have been claimed.
func (c *claimCursor) settled(number int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := progress.Position{ID: number}
	return len(c.behind) == 0 && c.all.ready.Settled(at) && (!c.limits || c.limited.ready.Settled(at))
}

func (c *claimCursor) nextReady(now time.Time) progress.Scan {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all.ready.Next(now, false)
}

// claimedReady records the result of a poll for ready messages only.
func (c *claimCursor) claimedReady(began time.Time, scan progress.Scan, a claimedRows, full bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.backlog = full
	done(&c.all.ready, now, began, scan, a.ready, a.rows, full, progress.Position{})
}

// failedReady records the failure of such a poll.
func (c *claimCursor) failedReady(began time.Time, scan progress.Scan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.all.ready.Failed(now, now.Sub(began), scan)
}

// done records the result of a poll, which stopped at the end of a page if page is set.
func done(
	m *progress.Mark, now, began time.Time, scan progress.Scan, r progress.Result, rows []*row, limited bool,
	page progress.Position,
) {
	r.Limited = limited
	if !limited && page != (progress.Position{}) {
		r.Limited, r.Paged, r.Reached = true, true, page
	}
	for _, row := range rows {
		if at := row.position(); r.Reached.Before(at) {
			r.Reached = at
		}
	}
	m.Done(now, now.Sub(began), scan, r)
}

// claimResult is the result of a plan.
type claimResult struct {
	full, empty, suspect bool
	dueLeft              bool // there may be more due messages within the limit
	paged                bool // a part stopped at the end of a page, and more may follow
	behind               map[string]bool
}

// claimed applies the rows of a statement to a plan.
func (c *claimCursor) claimed(began time.Time, p *plan, a claimedRows) (o claimResult) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	seen := make([][]*row, len(p.reads))
	ofTopic := map[string][]*row{}
	over := map[string]bool{}
	var n [3]int
	for _, rows := range [][]*row{a.rows, a.over} {
		for _, r := range rows {
			r.kind = p.reads[r.read-1].kind
			seen[r.read-1] = append(seen[r.read-1], r)
			n[r.kind]++
		}
	}
	for _, r := range a.over {
		over[r.Topic] = true
	}
	if len(p.limits) > 0 {
		for _, r := range a.rows {
			ofTopic[r.Topic] = append(ofTopic[r.Topic], r)
		}
	}
	total := n[ready] + n[due] + n[suspect]
	o.suspect, o.behind = n[suspect] > 0, map[string]bool{}
	cut := total >= p.limit || a.cut
	c.backlog = cut && n[ready] > 0
	for topic, l := range p.newly {
		c.behind[topic] = l
		o.behind[topic] = true
	}
	c.served++
	for i, r := range p.reads {
		rows, page, limited := seen[i], a.pages[i+1], cut
		switch {
		case r.part != nil && over[r.part.topic]: // its cursors must not skip rows that did not fit
			limited = true
			rows = slices.DeleteFunc(rows, func(r *row) bool { return r.State == "over" })
		case page != (progress.Position{}): // it read the whole page
			limited = false
		}
		if len(rows) > 0 || !limited { // otherwise it may not have reached this read
			limited = limited || len(rows) >= r.room
			done(c.mark(r), now, began, r.scan, a.of(r.kind), rows, limited, page)
			if !limited && page != (progress.Position{}) {
				limited, o.paged = true, true
			}
		}
		if r.part == nil {
			continue
		}
		if len(rows) > 0 {
			r.part.bounds.served = c.served
		}
		r.part.more = r.part.more || limited
		o.dueLeft = o.dueLeft || !cut && r.room < r.part.room && len(rows) >= r.room
	}
	for i := range p.parts {
		l := &p.parts[i]
		if l.topic == "" {
			continue
		}
		if l.ready.Full() || l.due.Full() {
			c.fullAt = now.Add(progress.FullShare * now.Sub(began))
		}
		o.behind[l.topic] = l.more || over[l.topic]
		if !o.behind[l.topic] && l.bounds.ready.Reaches(l.ready, &c.limited.ready) &&
			l.bounds.due.Reaches(l.due, &c.limited.due) {
			delete(c.behind, l.topic)
		}
	}
	for i, l := range p.limits {
		if !p.common[i] || len(ofTopic[l.topic]) < l.n {
			continue
		}
		c.behind[l.topic] = c.leftBehind(began, now, p, a, ofTopic[l.topic])
		o.behind[l.topic] = true
	}
	o.full, o.empty = cut || o.dueLeft || o.paged, total == 0 && !o.paged
	return o
}

// mark returns how far a read has come.
func (c *claimCursor) mark(r read) *progress.Mark {
	switch r.kind {
	case suspect:
		return &c.suspects
	case due:
		return &r.part.bounds.due
	}
	return &r.part.bounds.ready
}

// failed records that the statement of a plan failed. For a while none of its polls starts at the beginning, because
// any of them may be the one that cannot finish in time.
func (c *claimCursor) failed(began time.Time, p *plan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	took := now.Sub(began)
	for _, r := range p.reads {
		c.mark(r).Failed(now, took, r.scan)
		if r.part != nil && r.part.topic != "" && r.scan.Full() {
			c.fullAt = now.Add(progress.AfterFailure(took))
		}
	}
}

// leftBehind returns the bounds of a topic that was read together with others and falls behind because not all of its
// rows fit.
func (c *claimCursor) leftBehind(began, now time.Time, p *plan, a claimedRows, rows []*row) *bounds {
	of := p.parts[slices.IndexFunc(p.parts, func(l part) bool { return l.of == ofLimited })]
	own := of.before
	own.served = c.served
	of.bounds = &own
	for _, r := range []read{{part: &of, kind: ready, scan: of.ready}, {part: &of, kind: due, scan: of.due}} {
		mine := slices.DeleteFunc(slices.Clone(rows), func(row *row) bool { return row.kind != r.kind })
		if len(mine) > 0 {
			done(c.mark(r), now, began, r.scan, a.of(r.kind), mine, true, progress.Position{})
		}
	}
	return &own
}
