package dispatch_test

import (
	"cmp"
	"slices"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

// query has the arguments of schema.Fetch.
type query struct {
	owner                            int
	xids, bounds, los, segmentBounds []int64
	lanes                            []laneQuery
	stretch                          int64
	single                           bool // one range of ids for all lanes, with the sum of their limits
	ids                              []int64
	due                              bool
	closed, blocked                  []string // topics and keys whose due rows are left out, unless they block their keys
}

type laneQuery struct {
	lane                       int16
	epoch, mark, rows, rewound int64
	due                        int64
	catch                      catchQuery
}

// catchQuery describes deferred rows that may continue.
type catchQuery struct {
	from, upto, limit int64
	all               bool
	keys              []string
}

// answer is the result of a fetch.
type answer struct {
	xmax, nextXid, seq int64
	running            []int64
	rewind             int64 // -1 = no tracked transaction ended
	owned              map[int16]bool
	byID, ready, due   []version
	caught             []version
	life               string
}

// version is a row as seen by a snapshot.
type version struct {
	*record
	seen state
}

// payloads returns the ids of rows that are as they were read and fit into some room, but at least the first one. It
// may fail after some of them.
func (d *database) payloads(wanted []*dispatch.Row, room int64, most int) (came map[int64]bool) {
	came = map[int64]bool{}
	used, first := int64(0), true
	for _, row := range wanted[:most] {
		m := d.find(row.ID)
		if m == nil || !m.pending() {
			continue
		}
		if used += int64(m.size); !first && used > room {
			break
		}
		first = false
		if m.uuid == row.UUID && m.act() == row.Generation {
			came[row.ID] = true
		}
	}
	return came
}

// fetch reads with one snapshot. between runs the steps of others between the parts that are not atomic: the snapshot,
// which the server takes when the statement begins, the sequence's value, and the next transaction id.
func (d *database) fetch(q query, between func()) answer {
	a := answer{xmax: d.latest + 1, rewind: -1, owned: map[int16]bool{}, life: d.lifeName()}
	for _, tx := range d.open {
		if tx.xid != 0 && tx.xid < a.xmax {
			a.running = append(a.running, tx.xid)
		}
	}
	ended := func(bound int64) {
		if a.rewind < 0 || bound < a.rewind {
			a.rewind = bound
		}
	}
	for i, xid := range q.xids {
		if xid < a.xmax && !slices.Contains(a.running, xid) {
			ended(q.bounds[i])
		}
	}
	for i, lo := range q.los {
		if lo < a.xmax {
			ended(q.segmentBounds[i])
		}
	}
	single := int64(0)
	for _, l := range q.lanes {
		if row := d.lanes[l.lane]; row.owner == q.owner && row.epoch == l.epoch {
			a.owned[l.lane] = true
			_, most := l.from(&a)
			single += most
			d.fetchLane(q, l, &a)
		}
	}
	if q.single {
		slices.SortFunc(a.ready, func(x, y version) int { return cmp.Compare(x.id, y.id) })
		a.ready = a.ready[:min(int64(len(a.ready)), single)]
	}
	for _, id := range q.ids {
		if m := d.find(id); m != nil && !m.published && a.owned[m.lane] && (!m.dead || d.blockKeyOnDead) {
			a.byID = append(a.byID, version{m, m.state})
		}
	}
	slices.SortFunc(a.ready, func(x, y version) int {
		return cmp.Or(cmp.Compare(x.lane, y.lane), cmp.Compare(x.id, y.id))
	})
	between()
	a.seq = d.seq
	between()
	a.nextXid = d.nextXid
	if d.faults.nextIsXmax {
		a.nextXid = a.xmax
	}
	return a
}

// from returns where the read of a lane starts, and its limit of rows.
func (l laneQuery) from(a *answer) (start, most int64) {
	if a.rewind >= 0 && a.rewind < l.mark {
		return a.rewind, l.rows + l.rewound
	}
	return l.mark, l.rows
}

func (d *database) fetchLane(q query, l laneQuery, a *answer) {
	start, most := l.from(a)
	if q.single {
		most = 1 << 40
	}
	var due []version
	dead := l.catch.limit
	for _, m := range d.table {
		switch {
		case m.lane != l.lane || !m.pending():
		case !m.due.IsZero():
			if q.due && !m.due.After(d.now) && (m.attempts > 0 && m.key != "" ||
				!slices.Contains(q.closed, m.topic) && !slices.Contains(q.blocked, m.key)) {
				due = append(due, version{m, m.state})
			}
		case m.id > start && m.id-start <= q.stretch && most > 0:
			a.ready = append(a.ready, version{m, m.state})
			most--
		}
		if c := &l.catch; c.limit > 0 && m.lane == l.lane && m.pending() && m.due.IsZero() && m.id >= c.from &&
			m.id <= c.upto &&
			(c.all || slices.Contains(c.keys, m.key)) {
			a.caught = append(a.caught, version{m, m.state})
			c.limit--
		}
		if c := &l.catch; dead > 0 && d.blockKeyOnDead && m.lane == l.lane && m.dead && !m.published && m.id >= c.from &&
			m.id <= c.upto && slices.Contains(c.keys, m.key) {
			a.byID = append(a.byID, version{m, m.state})
			dead--
		}
	}
	slices.SortFunc(due, func(x, y version) int { return cmp.Or(x.due.Compare(y.due), cmp.Compare(x.id, y.id)) })
	a.due = append(a.due, due[:min(int64(len(due)), l.due)]...)
}

// dueRequeued returns the due rows with keys that an operator has requeued, and when each was last changed by hand.
func (d *database) dueRequeued() map[version]int {
	rows := map[version]int{}
	for _, m := range d.table {
		if m.pending() && m.key != "" && m.attempts > 0 && m.generation > 0 && !m.due.After(d.now) {
			rows[version{m, m.state}] = m.acted
		}
	}
	return rows
}

// writers lists the transactions that may have written to the outbox.
func (d *database) writers() map[uint32]bool {
	w := map[uint32]bool{}
	for _, tx := range d.open {
		if len(tx.rows) > 0 {
			w[uint32(tx.xid)] = true
		}
	}
	return w
}

// blocked lists at most this many rows of a lane that block their keys, with ids above from.
func (d *database) blocked(lane int16, from int64, most int) []version {
	var list []version
	for _, m := range d.table {
		if m.lane == lane && m.id > from && m.visible() && !m.published && m.key != "" && len(list) < most &&
			(m.dead && d.blockKeyOnDead || !m.dead && m.attempts > 0 && !m.due.IsZero()) {
			list = append(list, version{m, m.state})
		}
	}
	return list
}

// lastOf returns the last pending row of a key.
func (d *database) lastOf(key string, id int64) int64 {
	for _, m := range d.byKey[key] {
		if m.pending() && m.due.IsZero() {
			id = max(id, m.id)
		}
	}
	return id
}

// sweep lists pending rows of a lane in a range.
func (d *database) sweep(lane int16, from, to int64) []dispatch.Orphan {
	var rows []dispatch.Orphan
	for _, m := range d.table {
		if m.lane == lane && m.id > from && m.id <= to && m.pending() && m.due.IsZero() {
			rows = append(rows, dispatch.Orphan{ID: m.id, Key: m.key, Topic: m.topic})
		}
	}
	return rows
}
