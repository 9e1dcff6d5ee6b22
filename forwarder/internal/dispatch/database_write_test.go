package dispatch_test

import (
	"fmt"
	"slices"
	"time"
)

// transaction may have subtransactions; a row belongs to the innermost that was open.
type transaction struct {
	xid       int64 // 0 = none yet
	rows      []*record
	points    []savepoint
	committed int  // clock; 0 = not (yet)
	lost      bool // it was committed, and then the server crashed
}

type savepoint struct {
	rows int     // number of rows of the transaction before
	xids []int64 // its own, and those of savepoints released into it
}

// logged is a commit that may not be flushed to disk yet.
type logged struct {
	undo         func()
	seq, nextXid int64 // at the commit
}

func (d *database) newXid() int64 {
	d.nextXid++
	return d.nextXid - 1
}

// insert writes a row. The default of the id gives the transaction an id before its first row gets one; a
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
		size: size, inserted: d.tick(), delayed: !due.IsZero()}
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

// release releases the innermost savepoint; its rows now belong to the next outer one.
func (d *database) release(tx *transaction) {
	last := len(tx.points) - 1
	if last > 0 {
		tx.points[last-1].xids = append(tx.points[last-1].xids, tx.points[last].xids...)
	}
	tx.points = tx.points[:last]
}

// rollbackTo undoes the innermost savepoint. Its transaction ids are then complete, although their parent's lower one
// is not.
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

// change changes rows in its own transaction, as settling and operators do.
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
			m.batch = 0 // others may depend on the lost state
		}
	})
}

// crash ends all transactions and loses the latest commits. Later transactions get their ids.
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
	d.log, d.open, d.later = nil, nil, nil
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

// truncate empties the table and restarts the sequence. It is blocked while an open transaction has written to the
// table.
func (d *database) truncate() bool {
	for _, tx := range d.open {
		if len(tx.rows) > 0 {
			return false
		}
	}
	if len(d.locked)+len(d.later) > 0 {
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
