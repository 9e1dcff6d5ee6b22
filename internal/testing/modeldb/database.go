package modeldb

import "slices"

// Lanes is the number of lanes.
const Lanes = 64

// Row is a message in the outbox.
type Row struct {
	ID         int64
	UUID       string
	Topic, Key string
	Lane       int16
	State
}

// State is the mutable part of a row.
type State struct {
	Attempts   int
	Untried    bool  // no attempt has failed since it was requeued
	Due        int64 // relative to DB.Now; 0 = none
	Published  bool
	Dead       bool
	Generation string // of an operator's act; "" = none
}

func (r *Row) pending() bool { return !r.Published && !r.Dead }

// identity returns the UUID with its generation.
func (r *Row) identity() string {
	if r.Generation == "" {
		return r.UUID
	}
	return r.UUID + "/" + r.Generation
}

// DB is a database with the tables of one outbox.
type DB struct {
	// Now is the current time. While it is 0, due times are seconds from now, negative if past.
	Now int64

	next   int64 // the next transaction id
	latest int64 // the highest completed transaction id
	seq    int64 // the last row id
	life   int   // counts up
	named  bool  // the incarnation has a token

	open       []*Tx
	rows       []*Row // committed, ascending by id
	locks      map[int64]*Tx
	lanes      [Lanes]Lane
	created    bool // the lanes exist
	forwarders map[string]Forwarder
	commits    []commit // commits that a crash may lose, oldest first
}

// commit can undo a commit.
type commit struct{ undo func() }

// New returns an empty database of a server whose next transaction id is next.
func New(next int64) *DB {
	return &DB{next: next, latest: next - 1, life: 1, locks: map[int64]*Tx{}, forwarders: map[string]Forwarder{}}
}

// find returns a committed row.
func (d *DB) find(id int64) *Row {
	i, found := slices.BinarySearchFunc(d.rows, id, func(r *Row, id int64) int { return int(r.ID - id) })
	if !found {
		return nil
	}
	return d.rows[i]
}

func (d *DB) newXid() int64 {
	d.next++
	return d.next - 1
}

// one runs a statement that takes a transaction id and commits.
func (d *DB) one(undo func()) (xid int64) {
	xid = d.newXid()
	d.latest = max(d.latest, xid)
	d.logged(undo)
	return xid
}

func (d *DB) logged(undo func()) { d.commits = append(d.commits, commit{undo}) }

// change changes rows in its own transaction.
func (d *DB) change(rows []*Row, remove bool, change func(*Row)) {
	if len(rows) == 0 {
		return // takes no transaction id
	}
	before := slices.Clone(d.rows)
	old := make([]State, len(rows))
	for i, r := range rows {
		old[i] = r.State
		change(r)
	}
	if remove {
		d.rows = slices.DeleteFunc(slices.Clone(d.rows), func(r *Row) bool { return slices.Contains(rows, r) })
	}
	d.one(func() {
		d.rows = before
		for i, r := range rows {
			r.State = old[i]
		}
	})
}

// anyLocked reports whether a transaction has locked one of these rows.
func (d *DB) anyLocked(rows []*Row) bool {
	return slices.ContainsFunc(rows, func(r *Row) bool { return d.locks[r.ID] != nil })
}

// Rows returns the committed rows. Do not change them.
func (d *DB) Rows() []*Row { return d.rows }

// Open returns the open transactions.
func (d *DB) Open() []*Tx { return d.open }

// Requeue is an operator's act that requeues messages as one generation, all of them due.
func (d *DB) Requeue(ids []int64, due int64, generation string) (blocked bool) {
	rows := d.list(ids)
	if d.anyLocked(rows) {
		return true
	}
	d.change(rows, false, func(r *Row) {
		r.State = State{Attempts: 1, Untried: true, Due: due, Generation: generation}
	})
	return false
}

// list finds committed rows.
func (d *DB) list(ids []int64) (rows []*Row) {
	for _, id := range ids {
		if r := d.find(id); r != nil {
			rows = append(rows, r)
		}
	}
	return rows
}

// Truncate empties the outbox and restarts its ids.
func (d *DB) Truncate() (blocked bool) {
	for _, tx := range d.open {
		if slices.ContainsFunc(tx.levels, func(l level) bool { return l.uses }) {
			return true
		}
	}
	rows, seq := d.rows, d.seq
	d.rows, d.seq = nil, 0
	d.life++
	d.one(func() { d.rows, d.seq = rows, seq })
	return false
}
