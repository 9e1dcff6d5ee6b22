package dispatch_test

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/lease"
)

// laneRow is a row of outbox_lanes; owner 0 = none.
type laneRow struct {
	owner int
	epoch int64
}

// memberRow is a row of outbox_forwarders.
type memberRow struct {
	expires time.Time
	leaving bool
}

// deadMember was killed before the schedule began, and its lease has not expired.
const deadMember = 1000

// leaveBehind makes a dead member the owner of every second lane.
func (d *database) leaveBehind(lease time.Duration) {
	d.members[deadMember] = memberRow{expires: d.now.Add(lease)}
	for n := 0; n < laneCount; n += 2 {
		d.lanes[n] = laneRow{owner: deadMember, epoch: 1}
	}
}

// alive reports whether a forwarder's lease has not expired.
func (d *database) alive(owner int) bool {
	m, ok := d.members[owner]
	return ok && m.expires.After(d.now)
}

// heartbeat renews a lease, or joins again.
func (d *database) heartbeat(owner int, leaving bool) {
	d.members[owner] = memberRow{d.now.Add(d.leases), leaving}
}

// view returns the results of the lease's statements.
func (d *database) view(me int) (members []lease.Member, lanes []lease.Lane) {
	ids := make([]int, 0, len(d.members))
	for id := range d.members {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		if m := d.members[id]; d.alive(id) && !m.leaving {
			members = append(members, lease.Member{ID: strconv.Itoa(id), Left: m.expires.Sub(d.now)})
		}
	}
	lanes = make([]lease.Lane, 0, laneCount)
	for n, l := range d.lanes {
		row := lease.Lane{Assignment: lease.Assignment{Lane: int16(n), Epoch: l.epoch}, Alive: d.alive(l.owner)}
		if l.owner != 0 {
			row.Owner = strconv.Itoa(l.owner)
		}
		lanes = append(lanes, row)
	}
	return members, lanes
}

// take acquires lanes whose epoch is unchanged since it was read and whose owner is not alive.
func (d *database) take(me int, terms []lease.Assignment, had map[int16]int64) (taken []lease.Assignment) {
	for _, t := range terms {
		if l := d.lanes[t.Lane]; l.epoch == t.Epoch && !d.alive(l.owner) {
			taken = append(taken, d.changeLane(t.Lane, laneRow{me, max(l.epoch, had[t.Lane]) + 1}))
		}
	}
	return taken
}

// retake raises the epochs of the forwarder's own lanes.
func (d *database) retake(me int, terms []lease.Assignment, had map[int16]int64) (taken []lease.Assignment) {
	for _, t := range terms {
		if l := d.lanes[t.Lane]; l.epoch == t.Epoch && l.owner == me {
			epoch := max(l.epoch, had[t.Lane]) + 1
			if d.faults.epochKept {
				epoch = l.epoch
			}
			taken = append(taken, d.changeLane(t.Lane, laneRow{me, epoch}))
		}
	}
	return taken
}

// giveBack releases lanes. Their epochs rise when they are acquired.
func (d *database) giveBack(me int, terms []lease.Assignment) {
	for _, t := range terms {
		if l := d.lanes[t.Lane]; l.epoch == t.Epoch && l.owner == me {
			d.changeLane(t.Lane, laneRow{0, l.epoch})
		}
	}
}

func (d *database) changeLane(n int16, row laneRow) lease.Assignment {
	old := d.lanes[n]
	d.lanes[n] = row
	d.logged(func() { d.lanes[n] = old })
	return lease.Assignment{Lane: n, Epoch: row.epoch}
}

// operate changes a message as an operator or foreign SQL may, and returns a description.
func (d *database) operate(m *record) string {
	m.acted, m.batch = d.tick(), 0
	do := func(what string, change func(*record)) string {
		d.change([]*record{m}, change)
		return fmt.Sprintf("%s %v", what, m)
	}
	kinds := d.rng.IntN(100)
	switch {
	case m.published && kinds < 25:
		d.requeue(0, m)
		return fmt.Sprintf("replays %v as a new generation", m)
	case m.published && kinds < 50:
		m.replayed, m.requeues = true, m.requeues+1
		return do("replays", func(m *record) { m.published, m.discarded = false, false })
	case m.published:
		return do("cleans up", func(m *record) { m.gone = true })
	case m.dead && kinds < 60, m.attempts > 0 && kinds < 25:
		d.requeue(0, m)
		return fmt.Sprintf("requeues %v", m)
	case m.attempts > 0 && !m.dead && kinds < 45:
		return do("snoozes", func(m *record) { m.due = d.now.Add(farOff) })
	case m.attempts > 0 && !m.dead && kinds < 55 && m.due.After(d.now):
		return do("retries now", func(m *record) { m.due = d.now })
	case kinds < 65 && !m.dead:
		return do("kills", func(m *record) { m.dead, m.discarded = true, true })
	case kinds < 80:
		return do("skips", func(m *record) { m.published, m.dead, m.discarded = true, false, true })
	default:
		return do("deletes", func(m *record) { m.gone, m.discarded = true, true })
	}
}

// together requeues all messages of a key that were tried before.
func (d *database) together(key string) (again []*record) {
	for _, m := range d.byKey[key] {
		if m.visible() && !d.locked[m] && (m.published || m.dead || m.attempts > 0) {
			again = append(again, m)
		}
	}
	if len(again) < 2 {
		return nil
	}
	d.batches++
	batch, rest := d.batches, []*record(nil)
	if d.rng.IntN(2) == 0 { // an act commits in batches
		n := 1 + d.rng.IntN(len(again)-1)
		again, rest = again[:n], again[n:]
		d.later = append(d.later, func() {
			for i, m := range rest {
				if !m.visible() || d.locked[m] { // it is skipped, and so are later ones of its key
					rest = rest[:i]
					break
				}
			}
			d.requeue(batch, rest...)
		})
	}
	d.requeue(batch, again...)
	return append(again, rest...)
}

// requeue makes messages due as an operator's act does: they block their keys, and get all attempts.
func (d *database) requeue(batch int, list ...*record) {
	for _, m := range list {
		m.acted, m.replayed, m.requeues = d.tick(), m.replayed || m.published, m.requeues+1
	}
	d.change(list, func(m *record) {
		m.published, m.dead, m.discarded, m.due, m.batch = false, false, false, d.now, batch
		m.attempts, m.untried, m.generation = 1, true, m.generation+1
	})
}

// farOff is the delay of messages that an operator snoozes.
const farOff = 1000 * time.Hour
