package dispatch_test

import (
	"fmt"
	"slices"
	"time"
)

// write makes one step of a transaction.
func (m *model) write() {
	d := m.db
	if len(d.open) < 6 && (len(d.open) == 0 || m.chance(25)) {
		d.begin()
		return
	}
	tx := d.open[m.rng.IntN(len(d.open))]
	switch p := m.rng.IntN(100); {
	case p < 10 && tx.xid == 0:
		tx.xid = d.newXid() // it writes elsewhere
		m.logf("transaction %d begins", tx.xid)
	case p < 55:
		if len(tx.rows) < 6 {
			m.insert(tx)
		}
	case p < 60:
		if len(tx.points) < 3 {
			d.savepoint(tx)
		}
	case p < 63 && len(tx.points) > 0:
		m.logf("transaction %d releases a savepoint", tx.xid)
		d.release(tx)
	case p < 67 && len(tx.points) > 0:
		m.logf("transaction %d rolls back to a savepoint", tx.xid)
		d.rollbackTo(tx)
	case p < 90:
		commit := m.chance(85)
		m.logf("transaction %d ends with %v, commit %v", tx.xid, tx.rows, commit)
		d.end(tx, commit)
		for _, f := range m.forwarders {
			if commit && len(tx.rows) > 0 && m.chance(85) { // the others miss the notification, and poll
				f.dirty, f.read = true, true
			}
		}
	}
}

func (m *model) insert(tx *transaction) {
	key, lane := "", m.lanes[m.rng.IntN(len(m.lanes))]
	if k := m.rng.IntN(m.keys + 1); k > 0 {
		key, lane = fmt.Sprint("k", k), m.lanes[k%len(m.lanes)]
	}
	var due time.Time
	if m.chance(5) {
		due = m.db.now.Add(time.Duration(m.rng.IntN(5)) * time.Millisecond)
	}
	msg := m.db.insert(tx, key, m.topics[m.rng.IntN(len(m.topics))], lane, due)
	m.messages[msg.uuid] = msg
	m.logf("transaction %d inserts %v", tx.xid, msg)
}

// others makes writers take a step in the middle of another operation.
func (m *model) others(percent int) {
	for m.chance(percent) && !m.finishing {
		m.write()
		percent = 30
	}
}

func (m *model) operate() {
	d := m.db
	if m.chance(3) {
		if d.truncate() {
			m.logf("an operator truncates the table and restarts the sequence")
		}
		return
	}
	if m.chance(5) {
		d.paused = m.topics[:m.rng.IntN(len(m.topics)+1)]
		m.logf("an operator pauses %v", d.paused)
		return
	}
	if len(d.table) == 0 {
		return
	}
	if m.chance(20) {
		if again := d.together(fmt.Sprint("k", 1+m.rng.IntN(m.keys))); len(again) > 1 {
			m.logf("an operator requeues %v", again)
			return
		}
	}
	msg := d.table[m.rng.IntN(len(d.table))]
	if i := slices.IndexFunc(d.table, func(msg *record) bool {
		return msg.attempts > 0 && !msg.published
	}); i >= 0 && m.chance(50) {
		msg = d.table[i]
	}
	if i := slices.IndexFunc(d.table, m.blocks); i >= 0 && m.chance(50) {
		msg = d.table[i]
	}
	if msg.visible() && !d.locked[msg] {
		m.logf("an operator %s", d.operate(msg))
	}
}

// blocks reports whether a message is the first of its key and its topic is dead, so that the whole key waits for it.
func (m *model) blocks(msg *record) bool {
	return msg.topic == m.deadTopic && msg.key != "" && msg.pending() &&
		slices.IndexFunc(m.db.byKey[msg.key], func(o *record) bool {
			return o.pending()
		}) == slices.Index(m.db.byKey[msg.key], msg)
}

// lock makes another transaction lock a row, or release all of them.
func (m *model) lock() {
	d := m.db
	if len(d.locked) > 0 && m.chance(60) || len(d.table) == 0 {
		clear(d.locked)
		return
	}
	if msg := d.table[m.rng.IntN(len(d.table))]; msg.visible() {
		m.logf("a transaction locks %v", msg)
		d.locked[msg] = true
	}
}

func (m *model) crash() {
	lost := m.db.crash()
	m.logf("the server crashes and loses %d commits; the sequence is at %d", lost, m.db.seq)
	for _, f := range m.forwarders {
		f.cutOff()
	}
}
