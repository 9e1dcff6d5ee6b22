package dispatch_test

import (
	"fmt"
	"time"
)

// settled is a success that is being written to the database.
type settled struct {
	id              int64
	uuid, life, act string
}

// settlePublished returns the results that it skipped because their rows are locked, and a description of any problem.
func (d *database) settlePublished(list []settled) (locked []settled, problem string) {
	var rows []*record
	for _, s := range list {
		m := d.find(s.id)
		if m == nil || m.published || !m.is(s.uuid, s.act) && !d.means(m, s.life) {
			continue
		}
		if d.locked[m] {
			locked = append(locked, s)
			continue
		}
		if m.sent == 0 {
			problem = fmt.Sprintf("row %v was marked published but never sent", m)
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

// means reports whether an id still refers to the same row as in an incarnation, and no operator has requeued its
// message.
func (d *database) means(m *record, life string) bool {
	return m.generation == 0 && life == d.lifeName() || d.faults.settleByID
}

// is reports whether the message is unchanged since it was read: not requeued by an operator, or requeued in the same
// act.
func (m *record) is(uuid, act string) bool { return m.uuid == uuid && m.act() == act }

// failed is a failure that is being written to the database.
type failed struct {
	id              int64
	uuid, life, act string
	lane            int16
	epoch           int64
	attempts        int
	delay           time.Duration
	permanent       bool
}

// settleFailed returns the outcome of each, and a description of any problem.
func (d *database) settleFailed(owner int, list []failed) (outcomes []string, problem string) {
	outcomes = make([]string, len(list))
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
		case m.act() != f.act: // requeued since
			outcomes[i] = "waiting"
		case m.dead:
			outcomes[i] = "dead"
		case d.locked[m]:
			outcomes[i] = "locked"
		default:
			// Otherwise a crash may have undone failures.
			if next := m.nextAttempt(); f.life == d.lifeName() && f.attempts > next {
				problem = fmt.Sprintf("row %v is charged for %d attempts, want at most %d", m, f.attempts, next)
			}
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
			m.attempts, m.untried, m.due = f.attempts, false, d.now.Add(f.delay)
			m.dead = f.permanent || f.attempts >= d.maxAttempts
			m.wasDead = m.wasDead || m.dead
		})
	}
	return outcomes, problem
}

// nextAttempt counts from 1, and again from 1 after a requeue.
func (m *record) nextAttempt() int {
	if m.untried {
		return 1
	}
	return m.attempts + 1
}
