package modeldb

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Request has the arguments of Fetch; slices by lane have length Lanes.
type Request struct {
	Owner              string
	Xids, Bounds       []int64
	Los, SegmentBounds []int64
	Epochs, Marks      []int64
	Limits, Rewound    []int64
	Stretch            int64
	Single             bool // FetchRange

	More bool // run the statement that also reads more rows
	IDs  []int64
	Dead bool // include dead rows among these
	Due  []int64
	// Closed and Blocked are topics and keys whose due rows are not read, unless they block their keys.
	Closed, Blocked []string

	From, Upto, Deferred []int64 // by lane: ids, and numbers of rows; empty = nothing
	All                  uint64
	Keys                 []string
}

// Answer is the result of Fetch.
type Answer struct {
	Seq      int64
	Snapshot string
	NextXid  int64
	Rewind   int64 // -1 = none
	Owned    uint64
	Life     int // 0 = the incarnation has no name
	Ready    []Row
	ByID     []Row
	Due      []Row
	Deferred []Row
}

// Fetch reads with one snapshot.
func (d *DB) Fetch(q Request) Answer {
	a := Answer{Seq: d.seq, NextXid: d.next, Rewind: -1, Life: d.Life()}
	xmax := d.latest + 1
	running := d.running(xmax)
	a.Snapshot = snapshot(xmax, running)
	for i, xid := range q.Xids {
		if xid < xmax && !slices.Contains(running, xid) {
			a.ended(q.Bounds[i])
		}
	}
	for i, lo := range q.Los {
		if lo < xmax {
			a.ended(q.SegmentBounds[i])
		}
	}
	lowest, sum := int64(-1), int64(0)
	for n, lane := range d.lanes {
		if q.Epochs[n] == 0 || !d.created || lane.Owner != q.Owner || lane.Epoch != q.Epochs[n] {
			continue
		}
		a.Owned |= 1 << n
		mark, limit := q.Marks[n], q.Limits[n]
		if a.Rewind >= 0 && a.Rewind < mark {
			mark, limit = a.Rewind, limit+q.Rewound[n]
		}
		if lowest < 0 || mark < lowest {
			lowest = mark
		}
		sum += limit
		if !q.Single {
			a.Ready = append(a.Ready, d.past(mark, q.Stretch, limit, 1<<n)...)
		}
		if q.More && len(q.Due) > 0 {
			a.Due = append(a.Due, d.due(int16(n), &q)...)
		}
		if q.More && len(q.Deferred) > 0 {
			a.Deferred = append(a.Deferred, d.deferred(n, &q)...)
		}
	}
	if q.Single && lowest >= 0 {
		a.Ready = d.past(lowest, q.Stretch, sum, a.Owned)
	}
	for _, r := range d.rows {
		if q.More && slices.Contains(q.IDs, r.ID) && !r.Published && (!r.Dead || q.Dead) && a.Owned>>r.Lane&1 == 1 {
			a.ByID = append(a.ByID, *r)
		}
	}
	for n := range d.lanes {
		if q.More && q.Dead && len(q.Deferred) > 0 && a.Owned>>n&1 == 1 {
			a.ByID = append(a.ByID, d.deferredDead(n, &q)...)
		}
	}
	return a
}

// running returns the transactions below xmax that have not completed; a snapshot does not name savepoints.
func (d *DB) running(xmax int64) (xids []int64) {
	for _, tx := range d.open {
		if xid := tx.levels[0].xid; xid != 0 && xid < xmax {
			xids = append(xids, xid)
		}
	}
	slices.Sort(xids)
	return xids
}

func snapshot(xmax int64, running []int64) string {
	xmin, list := xmax, make([]string, len(running))
	for i, xid := range running {
		xmin, list[i] = min(xmin, xid), fmt.Sprint(xid)
	}
	return fmt.Sprintf("%d:%d:%s", xmin, xmax, strings.Join(list, ","))
}

func (a *Answer) ended(bound int64) {
	if a.Rewind < 0 || bound < a.Rewind {
		a.Rewind = bound
	}
}

// past lists ready rows beyond a cursor in some lanes.
func (d *DB) past(mark, stretch, limit int64, lanes uint64) (rows []Row) {
	for _, r := range d.rows {
		if r.ID > mark && r.ID <= mark+stretch && lanes>>r.Lane&1 == 1 && r.pending() && r.Due == 0 &&
			int64(len(rows)) < limit {
			rows = append(rows, *r)
		}
	}
	return rows
}

// deferred lists the ready rows of a lane from an id on, with some keys or all.
func (d *DB) deferred(lane int, q *Request) (rows []Row) {
	for _, r := range d.rows {
		if int(r.Lane) == lane && r.pending() && r.Due == 0 && r.ID >= q.From[lane] && r.ID <= q.Upto[lane] &&
			(q.All>>lane&1 != 0 || slices.Contains(q.Keys, r.Key)) && int64(len(rows)) < q.Deferred[lane] {
			rows = append(rows, *r)
		}
	}
	return rows
}

// deferredDead lists the dead rows of a lane with keys of deferred rows.
func (d *DB) deferredDead(lane int, q *Request) (rows []Row) {
	for _, r := range d.rows {
		if int(r.Lane) == lane && r.Dead && !r.Published && r.ID >= q.From[lane] && r.ID <= q.Upto[lane] &&
			slices.Contains(q.Keys, r.Key) && int64(len(rows)) < q.Deferred[lane] {
			rows = append(rows, *r)
		}
	}
	return rows
}

func (d *DB) due(lane int16, q *Request) (rows []Row) {
	for _, r := range d.rows {
		if r.Lane == lane && r.pending() && r.Due != 0 && r.Due <= d.Now && (r.Attempts > 0 && r.Key != "" ||
			!slices.Contains(q.Closed, r.Topic) && !slices.Contains(q.Blocked, r.Key)) {
			rows = append(rows, *r)
		}
	}
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Or(cmp.Compare(a.Due, b.Due), cmp.Compare(a.ID, b.ID)) })
	return rows[:min(q.Due[lane], int64(len(rows)))]
}

// Writers lists the transaction ids that may have written to the outbox, with those of savepoints.
func (d *DB) Writers() (xids []int64) {
	for _, tx := range d.open {
		if !slices.ContainsFunc(tx.levels, func(l level) bool { return l.uses }) {
			continue
		}
		for _, l := range tx.levels {
			if l.xid != 0 {
				xids = append(xids, l.xid)
			}
		}
	}
	slices.Sort(xids)
	return xids
}

// Heads lists the rows of a lane that block their keys, with ids above a cursor.
func (d *DB) Heads(lane int16, cursor, limit int64, dead bool) (rows []Row) {
	for _, r := range d.rows {
		if r.Lane == lane && r.ID > cursor && !r.Published && r.Key != "" && int64(len(rows)) < limit &&
			(r.Dead && dead || !r.Dead && r.Attempts > 0 && r.Due != 0) {
			rows = append(rows, *r)
		}
	}
	return rows
}

// Sweep lists pending rows of a lane above a cursor, up to an id.
func (d *DB) Sweep(lane int16, cursor, upto, limit int64) []Row {
	return d.past(cursor, upto-cursor, limit, 1<<lane)
}

// Pending returns which of these ids are pending.
func (d *DB) Pending(ids []int64) (pending []int64) {
	for _, r := range d.list(ids) {
		if r.pending() {
			pending = append(pending, r.ID)
		}
	}
	return pending
}
