package forwarder

import (
	"cmp"
	"slices"
	"time"
)

// purpose says why a row is read by its id.
type purpose int

const (
	forRelease purpose = iota // it was skipped, and its key is free again
	forRetry                  // it failed, and another attempt is due
	forTrial                  // it tries whether its topic works again
	forSweep                  // it is pending, though nothing here knows of it
)

// lookAgain is the pause before something is looked at again that should have changed by then.
const lookAgain = 50 * time.Millisecond

type wanted struct {
	id    int64
	why   purpose
	lane  *lane
	key   *key
	topic *topic
}

// request is what one read asks for.
type request struct {
	lanes  []*lane
	limits []limit
	wanted []wanted
	span   int64   // how many ids past its mark a lane is read
	due    []int64 // at most how many of what fell due, by lane; nil = none of it is read
}

// limit is how many rows of a lane are read at most: so many, or with so many more if the read starts
// below the lane's mark, where rows come again that are in memory.
type limit struct{ rows, rewound int64 }

// of returns the limit that a read from start on had.
func (l limit) of(start, mark int64) int64 {
	if start < mark {
		return l.rows + l.rewound
	}
	return l.rows
}

// response is the complete result of a read.
type response struct {
	snapshot snapshot
	life     string         // tells one life of the server and its sequence from another
	rewind   int64          // -1 = no tracked transaction ended
	owned    map[int16]bool // the lanes of the request that are still ours
	byID     map[int64]fetched
	ready    []fetched // by lane and id
	due      []fetched // by lane and time
}

// fetched is a row with what only the board can resolve still open.
type fetched struct {
	row
	laneNumber int16
	keyText    string
	dead       bool
}

// prepare decides what to read next. rows is how many are wanted in memory at most, width how many lanes
// are read at once, starting with the offset-th.
func (b *board) prepare(now time.Time, rows, width, offset int, due bool, suspects []wanted) request {
	b.forget()
	lanes := b.sortedLanes()
	if width < len(lanes) {
		offset %= len(lanes)
		lanes = slices.Concat(lanes[offset:], lanes[:offset])[:width]
		slices.SortFunc(lanes, func(x, y *lane) int { return int(x.number) - int(y.number) })
	}
	req := request{lanes: lanes, limits: make([]limit, 0, len(lanes))}
	if len(lanes) == 0 {
		return req
	}
	if b.buffered < 2*rows {
		b.setLimits(&req, max(rows-b.buffered, 0), due)
	} else {
		req.limits = make([]limit, len(lanes)) // none
	}
	b.wantRetries(&req, now, rows/4) // first: a message that is due anyway is its topic's trial
	b.wantTrials(&req, now)
	b.wantReleases(&req, max(bucketChunk, rows-b.buffered))
	req.wanted = append(req.wanted, suspects...)
	return req
}

// setLimits says how many rows of each lane to read: half of the room is for all lanes alike, half for those that
// have more to read. A little there is always: the rows in memory may all wait behind a few whose publish hangs.
func (b *board) setLimits(req *request, room int, due bool) {
	full, manyDue := 0, 0
	for _, l := range req.lanes {
		if l.full {
			full++
		}
		if l.manyDue {
			manyDue++
		}
	}
	share := func(more bool, among int) int {
		n := room / 2 / len(req.lanes)
		if more {
			n += room / 2 / among
		}
		return max(n, 1)
	}
	for _, l := range req.lanes {
		n, above := share(l.full, full), l.inflightAbove(l.mark)
		req.limits = append(req.limits, limit{int64(n + above), int64(len(l.inflight) - above)})
		if due {
			known := len(l.inflight) // they fell due as well
			for _, k := range l.keys {
				known += len(k.skipped) + len(k.heads)
			}
			req.due = append(req.due, int64(share(l.manyDue, manyDue)+known))
		}
	}
}

// inflightAbove counts the rows in memory above an id. There are some above the mark only after it went back.
func (l *lane) inflightAbove(id int64) int {
	if l.top <= id {
		return 0
	}
	n := 0
	for known := range l.inflight {
		if known > id {
			n++
		}
	}
	return n
}

func (b *board) wantTrials(req *request, now time.Time) {
	for _, t := range b.topics {
		if t.trial != nil || t.wanted || now.Before(t.until) {
			continue
		}
		if k, id, ok := b.trialOf(t, now); ok {
			t.wanted = true
			req.wanted = append(req.wanted, wanted{id, forTrial, k.lane, k, t})
		}
	}
}

func (b *board) wantRetries(req *request, now time.Time, most int) {
	for range most {
		r, ok := b.retries.due(now)
		if !ok {
			return
		}
		if r.stale() {
			continue
		}
		soon := now.Add(lookAgain)
		w := wanted{r.id, forRetry, r.lane, r.key, nil}
		if _, under := r.lane.inflight[r.id]; under {
			if r.key != nil {
				b.again(r, soon)
			} // else it was read because it fell due, and what becomes of that attempt decides
			continue
		}
		if r.key != nil {
			if t := b.topics[r.head.topic]; t != nil {
				if t.trial != nil || t.wanted || now.Before(t.until) {
					b.again(r, maxTime(t.until, soon))
					continue
				}
				t.wanted = true
				w.topic = t
			}
		}
		req.wanted = append(req.wanted, w)
	}
}

// again puts a retry off.
func (b *board) again(r retry, at time.Time) {
	if r.key != nil {
		b.retryHead(r.key, r.id, r.head, at)
		return
	}
	r.at = at
	b.retries.add(r)
}

func (b *board) wantReleases(req *request, room int) {
	for room > 0 && len(b.releases) > 0 {
		k := b.releases[0]
		b.releases = b.releases[1:]
		k.releasing = false
		if k.lane.lost || k.lane.draining || k.blocked() {
			continue
		}
		for _, id := range b.release(k, room) {
			req.wanted = append(req.wanted, wanted{id, forRelease, k.lane, k, nil})
			room--
		}
	}
}

// abandon takes back a request that failed, so that the next one asks again.
func (b *board) abandon(req request, now time.Time) {
	for _, w := range req.wanted {
		b.wantAgain(w, now)
	}
}

// wantAgain sees to it that a row that could not be read by its id is asked for again.
func (b *board) wantAgain(w wanted, now time.Time) {
	if w.topic != nil {
		w.topic.wanted = false
	}
	switch w.why {
	case forRetry:
		r := retry{at: now, lane: w.lane, key: w.key, id: w.id}
		if w.key != nil {
			if r.head = w.key.heads[w.id]; r.head == nil {
				return
			}
		}
		b.again(r, now)
	case forRelease:
		b.advance(w.key)
	}
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// sortFetched orders rows by lane and id: the statement's branches are not promised to keep their order.
func sortFetched(rows []fetched) {
	slices.SortFunc(rows, func(a, b fetched) int {
		return cmp.Or(cmp.Compare(a.laneNumber, b.laneNumber), cmp.Compare(a.id, b.id))
	})
}
