package queue

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/progress"
)

// claimCursor remembers, per set of topics, how far claims have come; they pass each row once. Claims in a transaction
// of the caller do not change it, because they may be rolled back.
//
// Topics with a limit are claimed together, as are the topics without one, but separately from them: they do not wait
// behind a backlog of the others. If such a topic has no room, its rows are skipped, and from then on it is behind: it
// has its own cursors, copies of the common ones from before its rows were skipped. It is claimed from there, together
// with the others in the same statement, until none of its skipped rows are left.
type claimCursor struct {
	joined bool // of one call in a transaction of the caller: it starts empty, and nothing is kept

	mu       sync.Mutex
	all      bounds // topics without a limit
	limited  bounds // topics with a limit, except those that are behind
	behind   map[string]*bounds
	suspects progress.Mark

	dueAt, suspectsAt time.Time // when to claim them although enough is ready
	dueFirst          bool      // the others had their turn
	limitedFirst      bool      // the same
	backlog           bool      // the last poll left ready messages
	limits            bool      // some topics have a limit
	served            int64     // polls so far
	fullAt            time.Time // when a topic that is behind may be read from the beginning
}

// bounds is how far the claims of some topics have come.
type bounds struct {
	ready, due progress.Mark
	served     int64 // the last poll that brought something
}

// The kinds of rows, as sqltext.ClaimTopics numbers them.
const (
	ready = iota
	due
	suspect
)

// The kinds of parts, numbered as there.
const (
	unlimited = iota
	manyLimited
	oneBehind
)

func newClaimCursor() *claimCursor {
	overlap := progress.Position{At: time.Second.Microseconds()}
	many := bounds{ready: progress.Mark{Overlap: progress.Position{ID: 1024}}, due: progress.Mark{Overlap: overlap}}
	return &claimCursor{
		all: many, limited: many, behind: map[string]*bounds{}, suspects: progress.Mark{Overlap: overlap}, limitedFirst: true,
	}
}

// claimTopics returns the topics of the calls of Claim; nil = all.
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

// claimCursor returns the cursor for calls of Claim with these topics.
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

// onlyReady reports whether so much is ready that nothing else need be claimed.
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

// done records the result of a poll, which ended at the last row of a page if page is set.
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

// plan is one statement.
type plan struct {
	limit     int
	parts     []part
	limits    []room
	here      []bool // whether these topics are in the common part
	dueFirst  int
	dueLast   int
	suspects  int
	ofSuspect progress.Scan
	newly     map[string]*bounds // topics that are behind from now on
	pages     bool               // no part reads more rows than a page has
}

// part is a part of the statement.
type part struct {
	what       int
	topic      string
	room       int
	line       *bounds
	before     bounds // a copy from before the poll
	ready, due progress.Scan
}

// plan returns the next statement. low is where the first messages are.
func (c *claimCursor) plan(now time.Time, limit int, a claimRequest, low lowest) *plan {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limits = len(a.limits) > 0
	maps.DeleteFunc(c.behind, func(topic string, _ *bounds) bool { // its limit was that it was skipped for a while
		_, limited := slices.BinarySearchFunc(a.limits, topic, func(l room, topic string) int {
			return strings.Compare(l.topic, topic)
		})
		return !limited
	})
	p := &plan{limit: limit, limits: a.limits, here: make([]bool, len(a.limits)), newly: map[string]*bounds{}}
	var parts []part
	many := 0
	for i, l := range a.limits {
		switch own := c.behind[l.topic]; {
		case own != nil && l.n > 0:
			parts = append(parts, part{what: oneBehind, topic: l.topic, room: min(l.n, limit), line: own})
		case own == nil && l.n > 0:
			p.here[i] = true
			many++
		case own == nil: // it was skipped earlier
			own := c.limited
			p.newly[l.topic] = &own
		}
	}
	if many > 0 {
		parts = append(parts, part{what: manyLimited, room: limit, line: &c.limited})
	}
	// The first part may take all the room, so the topic that last had some comes last.
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(a.line.served, b.line.served) })
	all := part{what: unlimited, room: limit, line: &c.all}
	if c.limitedFirst {
		parts = append(parts, all)
	} else {
		parts = append([]part{all}, parts...)
	}
	c.limitedFirst = !c.limitedFirst
	full := !now.Before(c.fullAt)
	for i := range parts {
		l := &parts[i]
		l.line.ready.Low, l.line.due.Low = low.ready, low.due
		l.before = *l.line
		may := l.what != oneBehind || full
		l.ready, l.due = l.line.ready.Next(now, may), l.line.due.Next(now, may)
		full = full && (l.what != oneBehind || !l.ready.Full() && !l.due.Full()) // one at a time
		p.pages = p.pages || l.ready.Pages() || l.due.Pages()
	}
	p.parts = parts
	p.dueLast = limit
	if !c.dueFirst && !now.Before(c.dueAt) {
		p.dueFirst, p.dueLast = (limit+1)/2, 0
		c.dueAt = now.Add(dueInterval)
	}
	c.dueFirst = p.dueFirst > 0
	c.suspects.Low = low.due
	p.ofSuspect = c.suspects.Next(now, true)
	// a claim in a caller's transaction has only this statement to find something
	p.pages = (p.pages || p.ofSuspect.Pages()) && !c.joined
	if a.suspects {
		p.suspects = 1
		c.suspectsAt = now.Add(suspectInterval)
	}
	return p
}

// args returns the arguments of sqltext.ClaimTopics except the first two.
func (p *plan) args(only []string) []any {
	n := len(p.parts)
	what, topics, rooms, marks := make([]int64, n), make([]string, n), make([]int64, n), make([]int64, n)
	dueAt, dueID := make([]string, n), make([]int64, n)
	for i, l := range p.parts {
		what[i], topics[i], rooms[i], marks[i] = int64(l.what), l.topic, int64(l.room), l.ready.From.ID
		dueAt[i], dueID[i] = dueFrom(l.due.From), l.due.From.ID
	}
	limited, left := make([]string, len(p.limits)), make([]int64, len(p.limits))
	for i, l := range p.limits {
		limited[i], left[i] = l.topic, int64(l.n)
	}
	return []any{p.limit, what, topics, rooms, marks, dueAt, dueID, only, limited, left, p.here, p.dueFirst, p.dueLast,
		dueFrom(p.ofSuspect.From), p.ofSuspect.From.ID, p.suspects}
}

func dueFrom(p progress.Position) string {
	if p.At <= 0 {
		return "-infinity"
	}
	return time.UnixMicro(p.At).UTC().Format(time.RFC3339Nano)
}

// key selects rows by part and kind.
type key struct{ part, kind int }

// claimResult is the result of a plan.
type claimResult struct {
	full, empty, suspect bool
	dueLeft              bool // there may be more due messages, which the limit does not forbid
	paged                bool // a part reached the end of a page, and there may be more after it
	behind               map[string]bool
}

// claimed applies the rows of a statement to a plan.
func (c *claimCursor) claimed(began time.Time, p *plan, a claimedRows) (o claimResult) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	seen := map[key][]*row{}
	ofTopic := map[string][]*row{}
	over := map[string]bool{}
	var n [3]int
	for _, r := range a.rows {
		seen[key{r.part, r.kind}] = append(seen[key{r.part, r.kind}], r)
		n[r.kind]++
		if len(p.limits) > 0 {
			ofTopic[r.Topic] = append(ofTopic[r.Topic], r)
		}
	}
	for _, r := range a.over {
		seen[key{r.part, r.kind}] = append(seen[key{r.part, r.kind}], r)
		n[r.kind]++
		over[r.Topic] = true
	}
	total := n[ready] + n[due] + n[suspect]
	o.empty, o.suspect, o.behind = total == 0, n[suspect] > 0, map[string]bool{}
	cut := total >= p.limit || a.cut
	dueCut := cut || n[due] >= max(p.dueFirst, p.dueLast)
	o.full, o.dueLeft = cut || dueCut, dueCut && !cut
	c.backlog = cut && n[ready] > 0
	for topic, l := range p.newly {
		c.behind[topic] = l
		o.behind[topic] = true
	}
	c.served++
	for i := range p.parts {
		l := &p.parts[i]
		limited := [2]bool{cut, dueCut}
		for kind, m := range []*progress.Mark{&l.line.ready, &l.line.due} {
			rows := seen[key{i + 1, kind}]
			if l.what == oneBehind && over[l.topic] { // its cursors skip no row for which it has no room
				limited[kind] = true
				rows = slices.DeleteFunc(rows, func(r *row) bool { return r.State == "over" })
			}
			scan, result := l.ready, a.ready
			if kind == due {
				scan, result = l.due, a.due
			}
			page := a.pages[key{i + 1, kind}]
			if page != (progress.Position{}) && !over[l.topic] { // it read the whole page
				limited[kind] = false
			}
			if len(rows) > 0 || !limited[kind] { // otherwise it may not have reached this part
				limited[kind] = limited[kind] || len(rows) >= l.room
				done(m, now, began, scan, result, rows, limited[kind], page)
				if !limited[kind] && page != (progress.Position{}) {
					limited[kind], o.paged = true, true
				}
			}
			if len(rows) > 0 {
				l.line.served = c.served
			}
		}
		if l.what != oneBehind {
			continue
		}
		if l.ready.Full() || l.due.Full() {
			c.fullAt = now.Add(progress.FullShare * now.Sub(began))
		}
		o.behind[l.topic] = limited[ready] || limited[due] || over[l.topic]
		if !o.behind[l.topic] && l.line.ready.Reaches(l.ready, &c.limited.ready) &&
			l.line.due.Reaches(l.due, &c.limited.due) {
			delete(c.behind, l.topic)
		}
	}
	for i, l := range p.limits {
		if !p.here[i] || len(ofTopic[l.topic]) < l.n {
			continue
		}
		c.behind[l.topic] = c.leftBehind(began, now, p, a, ofTopic[l.topic])
		o.behind[l.topic] = true
	}
	if rows := seen[key{0, suspect}]; p.suspects > 0 && (len(rows) > 0 || !cut) {
		page := a.pages[key{0, suspect}]
		done(&c.suspects, now, began, p.ofSuspect, a.due, rows, len(rows) > 0, page)
		o.paged = o.paged || len(rows) == 0 && page != (progress.Position{})
	}
	o.full, o.empty = o.full || o.paged, o.empty && !o.paged
	return o
}

// failed records that the statement of a plan failed: none of its polls starts at the beginning again for a while,
// because any of them may be the one that cannot finish in time.
func (c *claimCursor) failed(began time.Time, p *plan) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	took := now.Sub(began)
	for _, l := range p.parts {
		l.line.ready.Failed(now, took, l.ready)
		l.line.due.Failed(now, took, l.due)
		if l.what == oneBehind && (l.ready.Full() || l.due.Full()) {
			c.fullAt = now.Add(progress.AfterFailure(took))
		}
	}
	c.suspects.Failed(now, took, p.ofSuspect)
}

// leftBehind returns the line of a topic from the common part that had no room for all of its rows.
func (c *claimCursor) leftBehind(began, now time.Time, p *plan, a claimedRows, rows []*row) *bounds {
	i := slices.IndexFunc(p.parts, func(l part) bool { return l.what == manyLimited })
	of := p.parts[i]
	own := of.before
	own.served = c.served
	for kind, m := range []*progress.Mark{&own.ready, &own.due} {
		scan, result := of.ready, a.ready
		if kind == due {
			scan, result = of.due, a.due
		}
		if mine := slices.DeleteFunc(slices.Clone(rows), func(r *row) bool { return r.kind != kind }); len(mine) > 0 {
			done(m, now, began, scan, result, mine, true, progress.Position{})
		}
	}
	return &own
}
