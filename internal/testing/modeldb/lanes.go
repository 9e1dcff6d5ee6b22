package modeldb

import "slices"

// Lane is a row of the lanes table.
type Lane struct {
	Owner string // "" = none
	Epoch int64
}

// Forwarder is a row of the forwarders table. All have one scope and read all topics, so none waits for another.
type Forwarder struct {
	Alive   bool // its lease has not expired
	Leaving bool
}

// Term is a lane with an epoch, and the highest epoch of it that its next owner ever had.
type Term struct {
	Lane       int16
	Epoch, Had int64
}

// Register writes the row of a forwarder, and missing rows of lanes, both when it announces itself and when it joins.
func (d *DB) Register(id string) {
	old, had, lanes, created := d.forwarders[id], d.has(id), d.lanes, d.created
	xid := d.one(func() {
		d.lanes, d.created = lanes, created
		d.restore(id, old, had)
	})
	d.forwarders[id] = Forwarder{Alive: true, Leaving: old.Leaving}
	if !d.created {
		d.created = true
		for n := range d.lanes {
			d.lanes[n] = Lane{Epoch: xid}
		}
	}
}

func (d *DB) has(id string) bool { _, ok := d.forwarders[id]; return ok }

func (d *DB) restore(id string, old Forwarder, had bool) {
	if had {
		d.forwarders[id] = old
	} else {
		delete(d.forwarders, id)
	}
}

// Heartbeat renews a lease unless it has expired; alive = false ends it.
func (d *DB) Heartbeat(id string, alive, leaving bool) (renewed bool) {
	old := d.forwarders[id]
	if !old.Alive {
		return false
	}
	d.forwarders[id] = Forwarder{alive, leaving}
	d.one(func() { d.restore(id, old, true) })
	return true
}

// Leave deletes the row of a forwarder.
func (d *DB) Leave(id string) {
	old := d.forwarders[id]
	if d.has(id) {
		delete(d.forwarders, id)
		d.one(func() { d.restore(id, old, true) })
	}
}

// Members lists the live forwarders, and whether each should have lanes.
func (d *DB) Members() (ids []string, has []bool) {
	for id, f := range d.forwarders {
		if f.Alive {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	for _, id := range ids {
		has = append(has, !d.forwarders[id].Leaving)
	}
	return ids, has
}

// Lanes lists the lanes, and whether the owner of each is alive.
func (d *DB) Lanes() (lanes []Lane, alive []bool) {
	if !d.created {
		return nil, nil
	}
	for _, l := range d.lanes {
		lanes, alive = append(lanes, l), append(alive, d.forwarders[l.Owner].Alive)
	}
	return lanes, alive
}

// Take acquires lanes whose epoch is unchanged since it was read and whose owner is not alive. New epochs are higher
// than all that the new owner ever had.
func (d *DB) Take(id string, terms []Term) []Term {
	return d.raise(id, terms, func(l Lane) bool { return !d.forwarders[l.Owner].Alive })
}

// Retake raises the epochs of a forwarder's own lanes.
func (d *DB) Retake(id string, terms []Term) []Term {
	return d.raise(id, terms, func(l Lane) bool { return l.Owner == id })
}

func (d *DB) raise(id string, terms []Term, may func(Lane) bool) (taken []Term) {
	lanes := d.lanes
	for _, t := range terms {
		if l := lanes[t.Lane]; d.created && l.Epoch == t.Epoch && may(l) {
			d.lanes[t.Lane] = Lane{Owner: id, Epoch: max(l.Epoch, t.Had) + 1}
			taken = append(taken, Term{Lane: t.Lane, Epoch: max(l.Epoch, t.Had) + 1})
		}
	}
	if len(taken) > 0 {
		d.one(func() { d.lanes = lanes })
	}
	return taken
}

// GiveBack releases lanes. Their epochs rise when they are acquired.
func (d *DB) GiveBack(id string, terms []Term) {
	lanes, changed := d.lanes, false
	for _, t := range terms {
		if l := lanes[t.Lane]; d.created && l.Epoch == t.Epoch && l.Owner == id {
			d.lanes[t.Lane].Owner, changed = "", true
		}
	}
	if changed {
		d.one(func() { d.lanes = lanes })
	}
}
