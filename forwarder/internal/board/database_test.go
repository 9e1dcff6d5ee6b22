package board_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

// database does what the statements of package schema do in Postgres, in memory and one step at a time:
// transactions with ids, subtransactions and row ids, snapshots, row locks, and a crash that loses the
// latest commits and hands their ids out again.
type database struct {
	rng *rand.Rand
	now time.Time

	nextXid int64 // the next transaction id
	latest  int64 // the highest transaction id that has completed
	seq     int64 // the last row id
	life    int
	uuids   int
	clock   int // counts what happens, for before and after

	open    []*transaction
	table   []*record // ascending by id
	all     []*record // every message that was ever inserted
	byKey   map[string][]*record
	locked  map[*record]bool // by somebody's transaction
	log     []logged         // commits that a crash may lose
	lanes   [laneCount]laneRow
	members map[int]memberRow
	leases  time.Duration // how long a lease lasts

	paused []string // topics, by an operator

	deletes     bool // settling deletes
	holdDead    bool
	maxAttempts int

	faults faults
}

const laneCount = 64

// faults are what a broken database, or a broken statement, would do.
type faults struct {
	settleByID, unfenced, epochKept, nextIsXmax bool
}

// record is a row of the outbox.
type record struct {
	id       int64
	uuid     string
	key      string
	topic    string
	lane     int16
	size     int
	tx       *transaction
	inserted int  // clock
	excused  bool // no order is promised: it was delayed, or an operator touched it
	state
	what
}

// state is what changes in a row.
type state struct {
	attempts  int
	due       time.Time // zero = NULL
	published bool
	dead      bool
	gone      bool // deleted
}

// what is what became of a message outside of the database.
type what struct {
	sent     int  // how often it reached the broker
	accepted bool // a board was told that it did
	skipped  bool // an operator gave it up
	replayed bool // an operator wants it sent again
	wasDead  bool // so those behind it may have passed it
}

// transaction may have subtransactions; a row belongs to the innermost that was open.
type transaction struct {
	xid       int64 // 0 = none yet
	rows      []*record
	points    []savepoint
	committed int  // clock; 0 = not (yet)
	lost      bool // it had committed, and then the server crashed
}

type savepoint struct {
	rows int     // how many the transaction had
	xids []int64 // its own and those of what was released into it
}

// logged is a commit that may not be on disk yet.
type logged struct {
	undo         func()
	seq, nextXid int64 // at the commit
}

func newDatabase(rng *rand.Rand) *database {
	return &database{rng: rng, now: time.Unix(1e9, 0), nextXid: 100, latest: 99, life: 1,
		byKey: map[string][]*record{}, locked: map[*record]bool{}, members: map[int]memberRow{}}
}

func (d *database) lifeName() string { return fmt.Sprint("life-", d.life) }

func (m *record) visible() bool { return m.tx.committed > 0 && !m.gone }
func (m *record) pending() bool { return m.visible() && !m.published && !m.dead }

func (m *record) String() string {
	s := fmt.Sprintf("%d(%s lane %d", m.id, m.uuid, m.lane)
	if m.key != "" {
		s += " key " + m.key
	}
	return s + " topic " + m.topic + ")"
}

// find returns the row of an id.
func (d *database) find(id int64) *record {
	i, found := slices.BinarySearchFunc(d.table, id, func(m *record, id int64) int { return cmp.Compare(m.id, id) })
	if !found || !d.table[i].visible() {
		return nil
	}
	return d.table[i]
}

func (d *database) newXid() int64 {
	d.nextXid++
	return d.nextXid - 1
}

func (d *database) tick() int {
	d.clock++
	return d.clock
}

// insert writes a row. The default of the id sees to it that the transaction has an id before its first row does; a
// subtransaction gets its own only when the row is stored.
func (d *database) insert(tx *transaction, key, topic string, lane int16, due time.Time) *record {
	if tx.xid == 0 {
		tx.xid = d.newXid()
	}
	d.seq++
	d.uuids++
	size := d.rng.IntN(20)
	if d.rng.IntN(20) == 0 {
		size = 100
	}
	m := &record{id: d.seq, uuid: fmt.Sprint("m", d.uuids), key: key, topic: topic, lane: lane, tx: tx,
		size: size, inserted: d.tick(), excused: !due.IsZero()}
	m.due = due
	if n := len(tx.points); n > 0 && len(tx.points[n-1].xids) == 0 {
		tx.points[n-1].xids = []int64{d.newXid()}
	}
	tx.rows = append(tx.rows, m)
	d.table = append(d.table, m)
	d.all = append(d.all, m)
	if key != "" {
		d.byKey[key] = append(d.byKey[key], m)
	}
	return m
}

func (d *database) begin() *transaction {
	tx := &transaction{}
	d.open = append(d.open, tx)
	return tx
}

func (d *database) savepoint(tx *transaction) {
	tx.points = append(tx.points, savepoint{rows: len(tx.rows)})
}

// release ends the innermost savepoint; what it wrote belongs to the next one out.
func (d *database) release(tx *transaction) {
	last := len(tx.points) - 1
	if last > 0 {
		tx.points[last-1].xids = append(tx.points[last-1].xids, tx.points[last].xids...)
	}
	tx.points = tx.points[:last]
}

// rollbackTo undoes the innermost savepoint. Its transaction ids have completed, while their parent's, which
// is lower, has not.
func (d *database) rollbackTo(tx *transaction) {
	last := len(tx.points) - 1
	p := tx.points[last]
	d.remove(tx.rows[p.rows:])
	tx.rows, tx.points = tx.rows[:p.rows], tx.points[:last]
	for _, xid := range p.xids {
		d.latest = max(d.latest, xid)
	}
}

func (d *database) remove(rows []*record) {
	if len(rows) == 0 {
		return
	}
	gone := map[*record]bool{}
	for _, m := range rows {
		gone[m] = true
		d.byKey[m.key] = slices.DeleteFunc(d.byKey[m.key], func(o *record) bool { return o == m })
	}
	d.table = slices.DeleteFunc(d.table, func(m *record) bool { return gone[m] })
	d.all = slices.DeleteFunc(d.all, func(m *record) bool { return gone[m] })
}

// end commits a transaction or rolls it back.
func (d *database) end(tx *transaction, commit bool) {
	d.open = slices.DeleteFunc(d.open, func(o *transaction) bool { return o == tx })
	d.latest = max(d.latest, tx.xid)
	for _, p := range tx.points {
		for _, xid := range p.xids {
			d.latest = max(d.latest, xid)
		}
	}
	if !commit {
		d.remove(tx.rows)
		return
	}
	tx.committed = d.tick()
	d.logged(func() {
		tx.committed, tx.lost = 0, true
		d.remove(tx.rows)
	})
}

// logged notes a commit. Sooner or later it is on disk.
func (d *database) logged(undo func()) {
	d.log = append(d.log, logged{undo, d.seq, d.nextXid})
	if len(d.log) > 12 || d.rng.IntN(8) == 0 {
		d.log = nil
	}
}

// change changes rows in a transaction of its own, as settling and operators do.
func (d *database) change(rows []*record, change func(*record)) {
	old := make([]state, len(rows))
	for i, m := range rows {
		old[i] = m.state
		change(m)
	}
	d.latest = max(d.latest, d.newXid())
	d.logged(func() {
		for i, m := range rows {
			m.state = old[i]
		}
	})
}

// crash ends all transactions and loses the latest commits. What comes then gets their ids.
func (d *database) crash() (lost int) {
	keep := d.rng.IntN(len(d.log) + 1)
	lost = len(d.log) - keep
	seq, nextXid := d.seq, d.nextXid
	if lost > 0 {
		seq, nextXid = d.log[keep].seq, d.log[keep].nextXid
	}
	for _, l := range slices.Backward(d.log[keep:]) {
		l.undo()
	}
	for _, tx := range d.open {
		d.remove(tx.rows)
	}
	d.log, d.open = nil, nil
	clear(d.locked)
	if d.rng.IntN(2) == 0 {
		seq += d.rng.Int64N(d.seq - seq + 1)
	}
	d.seq = seq
	d.nextXid = nextXid + d.rng.Int64N(d.nextXid-nextXid+1)
	d.latest = d.nextXid - 1
	d.life++
	return lost
}

// truncate empties the table and starts the sequence again, which only a table that no open transaction has written
// to lets happen.
func (d *database) truncate() bool {
	for _, tx := range d.open {
		if len(tx.rows) > 0 {
			return false
		}
	}
	if len(d.locked) > 0 {
		return false
	}
	for _, m := range d.table {
		m.gone = true
	}
	d.latest = max(d.latest, d.newXid())
	d.table, d.log, d.seq = nil, nil, 0
	d.life++
	return true
}

// query is what schema.Fetch is asked.
type query struct {
	owner                            int
	xids, bounds, los, segmentBounds []int64
	lanes                            []laneQuery
	stretch                          int64
	single                           bool // one range of ids for all lanes, with the sum of their limits
	ids                              []int64
	due                              bool
	closed                           []string // topics of which nothing that fell due is wanted
}

type laneQuery struct {
	lane                       int16
	epoch, mark, rows, rewound int64
	due                        int64
}

// answer is what it returns.
type answer struct {
	xmax, nextXid, seq int64
	running            []int64
	rewind             int64 // -1 = no tracked transaction ended
	owned              map[int16]bool
	byID, ready, due   []version
	life               string
}

// version is a row as a snapshot shows it.
type version struct {
	*record
	seen state
}

// fetch reads under one snapshot. In between happens what others do between the parts that are not one instant:
// the sequence's value, the snapshot, and the next transaction id.
func (d *database) fetch(q query, between func()) answer {
	a := answer{seq: d.seq, rewind: -1, owned: map[int16]bool{}, life: d.lifeName()}
	between()
	a.xmax = d.latest + 1
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
		if m := d.find(id); m != nil && !m.published && a.owned[m.lane] && (!m.dead || d.holdDead) {
			a.byID = append(a.byID, version{m, m.state})
		}
	}
	slices.SortFunc(a.ready, func(x, y version) int { return cmp.Or(cmp.Compare(x.lane, y.lane), cmp.Compare(x.id, y.id)) })
	between()
	a.nextXid = d.nextXid
	if d.faults.nextIsXmax {
		a.nextXid = a.xmax
	}
	return a
}

// from returns where a lane is read from and how many rows of it at most.
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
	for _, m := range d.table {
		switch {
		case m.lane != l.lane || !m.pending():
		case !m.due.IsZero():
			if q.due && !m.due.After(d.now) && !slices.Contains(q.closed, m.topic) {
				due = append(due, version{m, m.state})
			}
		case m.id > start && m.id-start <= q.stretch && most > 0:
			a.ready = append(a.ready, version{m, m.state})
			most--
		}
	}
	slices.SortFunc(due, func(x, y version) int { return cmp.Or(x.due.Compare(y.due), cmp.Compare(x.id, y.id)) })
	a.due = append(a.due, due[:min(int64(len(due)), l.due)]...)
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

// heads lists the rows of a lane that hold their keys, with ids above from, at most so many.
func (d *database) heads(lane int16, from int64, most int) []version {
	var list []version
	for _, m := range d.table {
		if m.lane == lane && m.id > from && m.visible() && !m.published && m.key != "" && len(list) < most &&
			(m.dead && d.holdDead || !m.dead && m.attempts > 0 && !m.due.IsZero()) {
			list = append(list, version{m, m.state})
		}
	}
	return list
}

// sweep lists pending ids of a lane in a range.
func (d *database) sweep(lane int16, from, to int64) []int64 {
	var ids []int64
	for _, m := range d.table {
		if m.lane == lane && m.id > from && m.id <= to && m.pending() && m.due.IsZero() {
			ids = append(ids, m.id)
		}
	}
	return ids
}

// settled is a success on its way into the database.
type settled struct {
	id         int64
	uuid, life string
}

// settlePublished returns what it passed by, as somebody has it locked, and what it did to which message.
func (d *database) settlePublished(list []settled) (locked []settled, problem string) {
	var rows []*record
	for _, s := range list {
		m := d.find(s.id)
		if m == nil || m.published || m.uuid != s.uuid && s.life != d.lifeName() && !d.faults.settleByID {
			continue
		}
		if d.locked[m] {
			locked = append(locked, s)
			continue
		}
		if m.sent == 0 {
			problem = fmt.Sprintf("row %v was marked published and never sent", m)
		}
		if m.uuid != s.uuid {
			problem = fmt.Sprintf("row %v was marked published for %s", m, s.uuid)
		}
		rows = append(rows, m)
	}
	if len(rows) > 0 {
		d.change(rows, func(m *record) { m.published, m.dead, m.gone = true, false, d.deletes })
	}
	return locked, problem
}

// failed is a failure on its way into the database.
type failed struct {
	id        int64
	uuid      string
	lane      int16
	epoch     int64
	attempts  int
	delay     time.Duration
	permanent bool
}

// settleFailed answers what became of each.
func (d *database) settleFailed(owner int, list []failed) []string {
	outcomes := make([]string, len(list))
	var rows []*record
	change := map[*record]failed{}
	for i, f := range list {
		if row := d.lanes[f.lane]; (row.owner != owner || row.epoch != f.epoch) && !d.faults.unfenced {
			outcomes[i] = "fenced"
			continue
		}
		m := d.find(f.id)
		switch {
		case m == nil || m.uuid != f.uuid || m.published:
			outcomes[i] = "gone"
		case m.dead:
			outcomes[i] = "dead"
		case d.locked[m]:
			outcomes[i] = "locked"
		default:
			outcomes[i] = "waiting"
			if f.permanent || f.attempts >= d.maxAttempts {
				outcomes[i] = "dead"
			}
			rows, change[m] = append(rows, m), f
		}
	}
	if len(rows) > 0 {
		d.change(rows, func(m *record) {
			f := change[m]
			m.attempts, m.due = f.attempts, d.now.Add(f.delay)
			m.dead = f.permanent || f.attempts >= d.maxAttempts
			m.wasDead = m.wasDead || m.dead
		})
	}
	return outcomes
}
