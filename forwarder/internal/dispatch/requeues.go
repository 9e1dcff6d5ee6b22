package dispatch

// addRequeued makes blocked rows of requeued rows. It runs before the other blocked rows of the same keys that were
// fetched, because requeued rows may have to go first.
func (d *Dispatcher) addRequeued(due []*Row) {
	for _, r := range due {
		l := d.activeLane(r.Assignment)
		// A deferred row blocks its key as well, or a later one of the same act would go before it. So does one that is in
		// flight, or that was published and then requeued before that was settled.
		if l != nil && r.Key != "" && r.Attempts > 0 && l.blocked[r.ID] == nil {
			if known := l.known[r.ID]; known == nil || known.Generation != r.Generation {
				d.blockRequeued(l, r)
			}
		}
		if l == nil || l.blocked[r.ID] == nil {
			continue
		}
		b, known := l.blocked[r.ID], l.known[r.ID]
		if known != nil && known.Generation != r.Generation && known.call.state == pending {
			d.withdraw(l, known) // or it would be published for the previous attempt, and then again
			d.schedule(l, b, d.now)
			if b.key != nil {
				d.advance(b.key)
			}
		}
		if b.generation != r.Generation {
			b.generation = r.Generation // rows that are due together come in order
			b.changed = d.now           // a recheck that began before may not have seen it
		}
	}
}

// blockRequeued makes a requeued row a blocked row, in place of its earlier copy in memory.
func (d *Dispatcher) blockRequeued(l *lane, r *Row) {
	if known := l.known[r.ID]; known != nil {
		d.withdraw(l, known)
	}
	d.addBlocked(l, r.Key, r.ID, r.Topic, d.now)
	l.blocked[r.ID].generation = unknownGeneration
}

// unknownGeneration is the generation of a blocked row for which no read has looked up the rows that were requeued with
// it.
const unknownGeneration = "?"

// requeuedSince reports whether a message was requeued after r was read: the result of r's call then means nothing for
// it, and the message is tried once more.
func (l *lane) requeuedSince(r *Row) bool {
	b := l.blocked[r.ID]
	if b == nil || b.key == nil || b.generation == r.Generation {
		return l.known[r.ID].requeuedAfter(r)
	}
	return true
}

// retryRequeued schedules a message that was requeued while an earlier row of it was in flight.
func (d *Dispatcher) retryRequeued(l *lane, r *Row) {
	if b := l.blocked[r.ID]; b != nil && b.key != nil && b.index < 0 && l.known[r.ID] == r {
		d.schedule(l, b, d.now)
	}
	if k := l.keys[r.Key]; k != nil {
		d.advance(k)
	}
}

// requeuedAfter reports whether a row was read after an operator had requeued the message of an earlier row.
func (r *Row) requeuedAfter(earlier *Row) bool {
	return r != nil && r.Generation != earlier.Generation &&
		(r.call.Started.IsZero() || r.call.Started.After(earlier.call.Started))
}

// hasLower reports whether a key has rows with lower ids than a blocked row: they were committed late, or an operator
// requeued the blocked row before its turn. Other such rows may then be deferred, or not read yet.
func (l *lane) hasLower(b *blockedRow) bool {
	if b.key == nil {
		return false
	}
	k, w := b.key, l.waits[b.key.name]
	return k.n > 0 || b.generation != "" &&
		(k.low != 0 && k.low < b.id || w.low != 0 && w.low < b.id || l.cursor < b.id)
}

// waitForLower makes a blocked row wait for them. It checks again later, in case nothing of its key changes.
func (d *Dispatcher) waitForLower(l *lane, b *blockedRow) {
	again := d.now.Add(d.cfg.SlowAfter)
	if l.cursor < b.id {
		again = d.now.Add(recheckAfter) // a newly taken lane is read soon
	}
	if w := l.waits[b.key.name]; w.low != 0 && w.low < b.id {
		d.schedule(l, b, again) // it is not late, because it waits for another topic
	} else {
		d.recheckAt(l, b, again)
	}
	b.waitsForRows = true
}

// endWaitForLower lets a blocked row continue once it no longer waits for rows with lower ids.
func (d *Dispatcher) endWaitForLower(l *lane, b *blockedRow) {
	if b.waitsForRows && !l.hasLower(b) && b.key.inFlight == nil {
		d.schedule(l, b, d.now)
	}
}

// recordDueSeen records which due rows a read saw, and returns the lanes of which it saw all, except those that
// Request.Closed excludes.
func (d *Dispatcher) recordDueSeen(a Request, r Read) (lanes uint64) {
	lanes = d.seesAllDue(a, &r)
	if r.DueLate {
		d.readDue(a.wantDue) // rows behind the late ones were removed
	} else if r.sawClosed && len(a.Blocked) == 0 {
		for _, t := range d.degraded {
			t.dueDropped &^= lanes // acceptDue records them again, except those that are gone
		}
	}
	for _, t := range a.reopening {
		if !t.closed {
			t.dueUnseen &^= lanes
		}
	}
	return lanes
}

// seesAllDue returns the lanes of which a read sees all due rows, except those that Request.Closed excludes.
func (d *Dispatcher) seesAllDue(a Request, r *Read) (lanes uint64) {
	if !r.DueRead {
		return 0
	}
	r.count()
	for n, limit := range a.Due {
		if r.fellDue[n] < limit || limit >= int64(d.maxRepeated()) { // it cannot see more
			lanes |= 1 << n
		}
	}
	return lanes
}

// dueRows are the due rows that a read must look for.
type dueRows uint8

const (
	noDue     dueRows = iota // none: the schedule decides
	dueOfOpen                // those of open topics, and those that block their keys
	dueOfAll                 // those of closed topics as well
)

// readDue makes a read look for due rows as soon as there is room.
func (d *Dispatcher) readDue(rows dueRows) { d.wantDue, d.wantRead = max(d.wantDue, rows), true }

// ReadAllDue makes the next read with room return due rows of closed topics as well: a drain names the topics paused by
// an operator that have any.
func (d *Dispatcher) ReadAllDue() { d.readDue(dueOfAll) }
