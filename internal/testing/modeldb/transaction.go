package modeldb

import "slices"

// Tx is an open transaction. Its first level is its own, the others are savepoints.
type Tx struct {
	d      *DB
	rows   []*Row
	locked []int64
	levels []level
}

// level has the changes since a savepoint.
type level struct {
	xid          int64   // 0 = none yet
	children     []int64 // of savepoints released into it
	uses         bool    // it has a lock on the outbox
	rows, locked int     // counts before it began
}

// Begin begins a transaction. It takes an id at its first write.
func (d *DB) Begin() *Tx {
	tx := &Tx{d: d, levels: make([]level, 1)}
	d.open = append(d.open, tx)
	return tx
}

// Depth returns the number of savepoints.
func (t *Tx) Depth() int { return len(t.levels) - 1 }

// Wrote reports whether the transaction has an id.
func (t *Tx) Wrote() bool { return t.levels[0].xid != 0 }

func (t *Tx) innermost() *level { return &t.levels[len(t.levels)-1] }

// take gives ids to the first levels without one, outer ones first.
func (t *Tx) take(levels int) {
	for i := range levels {
		if l := &t.levels[i]; l.xid == 0 {
			l.xid = t.d.newXid()
		}
	}
}

// Write writes to another table.
func (t *Tx) Write() { t.take(len(t.levels)) }

// Insert writes a message. The default of the id takes the transaction's id, then the row id; ids of savepoints are
// taken after that.
func (t *Tx) Insert(r Row) (id int64) {
	t.take(1)
	t.d.seq++
	r.ID = t.d.seq
	t.Write()
	t.innermost().uses = true
	t.rows = append(t.rows, &r)
	return r.ID
}

// Lock locks a committed row for update, if it exists.
func (t *Tx) Lock(id int64) (found, blocked bool) {
	by := t.d.locks[id]
	if by != nil && by != t {
		return true, true
	}
	t.innermost().uses = true
	if t.d.find(id) == nil {
		return false, false
	}
	if by == nil {
		t.Write()
		t.d.locks[id] = t
		t.locked = append(t.locked, id)
	}
	return true, false
}

// Savepoint sets a savepoint.
func (t *Tx) Savepoint() {
	t.levels = append(t.levels, level{rows: len(t.rows), locked: len(t.locked)})
}

// Release releases the innermost savepoint; its changes now belong to the next outer level.
func (t *Tx) Release() {
	inner := *t.innermost()
	t.levels = t.levels[:len(t.levels)-1]
	outer := t.innermost()
	outer.uses = outer.uses || inner.uses
	outer.children = append(outer.children, inner.children...)
	if inner.xid != 0 {
		outer.children = append(outer.children, inner.xid)
	}
}

// RollbackTo undoes the changes since the innermost savepoint, which stays. Its ids are complete, although the lower
// one of the transaction is not.
func (t *Tx) RollbackTo() {
	l := t.innermost()
	t.d.completes(*l)
	t.rows = t.rows[:l.rows]
	for _, id := range t.locked[l.locked:] {
		delete(t.d.locks, id)
	}
	t.locked = t.locked[:l.locked]
	*l = level{rows: l.rows, locked: l.locked}
}

func (d *DB) completes(l level) {
	d.latest = max(d.latest, l.xid)
	for _, xid := range l.children {
		d.latest = max(d.latest, xid)
	}
}

// End commits or rolls back.
func (t *Tx) End(commit bool) {
	d := t.d
	d.open = slices.DeleteFunc(d.open, func(o *Tx) bool { return o == t })
	for _, id := range t.locked {
		delete(d.locks, id)
	}
	for _, l := range t.levels {
		d.completes(l)
	}
	if !commit || !t.Wrote() {
		return
	}
	before := d.rows
	d.rows = append(slices.Clone(d.rows), t.rows...)
	slices.SortFunc(d.rows, func(a, b *Row) int { return int(a.ID - b.ID) })
	d.logged(func() { d.rows = before })
}
