package dispatch_test

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/cursor"
)

const (
	endAt     = 1 << 20 // step number at which the end begins
	longEnd   = 5000    // maximum number of steps after it
	longWait  = 2000    // maximum while messages can be published although a topic is dead
	afterward = 200     // maximum until everything is quiet
)

// finish ends all transactions and lets every publish succeed.
func (m *model) finish() {
	m.pcg.Seed(m.seed, endAt)
	m.finishing = true
	m.logf("the end begins")
	for len(m.db.open) > 0 {
		m.db.end(m.db.open[0], true)
	}
	for len(m.db.later) > 0 {
		m.ends()
	}
	clear(m.db.locked)
	m.db.log = nil
	m.readFails, m.settleFails, m.unknown = 0, 0, 0
	// Otherwise messages that an earlier owner published late are never found. Those that died meanwhile block their keys.
	m.maintains = m.maintains || m.cfg.PublishTimeout > 0 || m.db.blockKeyOnDead
	m.db.leases = 1000 * time.Hour
	clear(m.db.members) // the leases of dead members expire
	for _, f := range m.forwarders {
		f.dirty, f.read, f.frozen, f.frozenWhile, f.noReadWhile = true, true, time.Time{}, nil, nil
		m.db.heartbeat(f.id, f.coordinator.Stopping())
		f.hold()
	}
	quiet := 0
	for i := 1; i < longEnd && quiet < afterward; i++ {
		m.at = endAt + i
		m.acts++
		m.pcg.Seed(m.seed, uint64(m.at))
		m.pass()
		m.resolve()
		for _, f := range slices.Clone(m.forwarders) {
			if i < 10 || i%3 == 0 {
				f.rebalancer()
			}
			f.reader()
			f.worker()
			f.publisher()
			f.settler()
			f.timer()
			if m.maintains {
				f.maintainer()
			}
		}
		if m.check(i%4 == 0); m.violated != "" {
			return
		}
		if !m.revived && (i > longWait || len(m.free()) == 0 && m.drained()) {
			if free := m.free(); len(free) > 0 {
				m.failf("%v waits although only topic %q is dead, %q hangs, and %q are paused; %v", free[0], m.deadTopic,
					m.hungTopic, m.db.paused, m.forwarders)
				return
			}
			if !m.drained() {
				m.failf("a Drain does not return although only topics %q are paused; %v", m.db.paused, m.forwarders)
				return
			}
			m.revive()
		}
		if m.revived && len(m.left()) == 0 {
			if quiet++; m.allQuiet() && m.drained() {
				break
			}
		}
	}
	m.checkEnd()
}

// revive ends the outages and the operators' pauses.
func (m *model) revive() {
	m.logf("all topics are reachable again")
	m.revived, m.db.paused = true, nil
	for _, f := range m.forwarders {
		f.hold()
	}
	m.drain()
}

// drain calls Drain on every forwarder, provided that each lane has an owner.
func (m *model) drain() {
	if m.draining = m.allLanes; !m.draining {
		return
	}
	for _, f := range m.forwarders {
		f.drain(true)
	}
}

// drained reports whether Drain has returned everywhere. It waits while a topic is dead, but not for paused ones.
func (m *model) drained() bool {
	if !m.revived && m.deadTopic != "" {
		return true
	}
	if !m.draining {
		m.drain()
	}
	return !m.draining || !slices.ContainsFunc(m.forwarders, func(f *forwarder) bool { return len(f.drains) > 0 })
}

// pass lets time pass: if nothing is in flight, until the next due event.
func (m *model) pass() {
	soon := m.db.now.Add(m.patience * 100 * time.Microsecond)
	if m.draining { // a read is quicker than SlowAfter, or rows that wait for others would be due again at its end
		soon = m.db.now.Add(100 * time.Microsecond)
	}
	next := m.db.now.Add(50 * time.Millisecond)
	for _, f := range m.forwarders {
		if f.busy() {
			m.db.now = soon
			return
		}
		tick, read := f.dispatcher.NextTimes()
		for _, t := range []time.Time{tick, read, f.readAt} {
			if !t.IsZero() && t.Before(next) {
				next = t
			}
		}
	}
	if next.Before(soon) {
		next = soon
	}
	m.db.now = next
}

// resolve makes an operator resolve whatever would otherwise wait forever.
func (m *model) resolve() {
	for _, msg := range m.db.table {
		if msg.visible() && !msg.published && (msg.dead && m.db.blockKeyOnDead || msg.due.Sub(m.db.now) > farOff/2) {
			m.operators = true
			m.maintains = true
			m.db.requeue(0, msg)
			m.logf("an operator requeues %v", msg)
		}
	}
}

// left lists messages that are neither published nor dead.
func (m *model) left() (list []*record) {
	for _, msg := range m.db.table {
		if msg.pending() {
			list = append(list, msg)
		}
	}
	return list
}

// free lists pending messages without an excuse to wait: neither their topic nor that of an earlier message of their
// key, or of one that blocks it, is dead or paused. (Requeued messages may wait for a deferred row: the sweep ends at
// its lowest id. Rows with no room to be deferred may wait for their whole key, and delayed ones for all rows that
// existed when they fell due.)
func (m *model) free() (list []*record) {
	down := func(msg *record) bool {
		return msg.topic == m.deadTopic || msg.topic == m.hungTopic || slices.Contains(m.db.paused, msg.topic)
	}
	waits, left := map[string]int64{}, m.left() // ids, 0 for all
	for _, msg := range left {
		first, any := waits[msg.key]
		switch {
		case !down(msg) || msg.key == "":
		case msg.attempts > 0:
			waits[msg.key] = 0
		case !any || msg.id < first:
			waits[msg.key] = msg.id
		}
	}
	for _, msg := range left {
		first, any := waits[msg.key]
		if !down(msg) && !msg.replayed && (!any || msg.id < first && msg.due.IsZero()) {
			list = append(list, msg)
		}
	}
	return list
}

func (m *model) allQuiet() bool {
	for _, f := range m.forwarders {
		name, _ := f.cursors.Incarnation()
		if len(f.coordinator.Assignments()) > 0 && cursor.ServerIncarnation(name) != m.db.lifeName() {
			return false // it has not noticed the server's crash yet
		}
		if s := f.dispatcher.Sizes(); s.Blocked > s.Keyless {
			return false // the recheck has not seen the outcome of their rows yet
		}
		if f.reading != nil || f.settling != nil || f.more || len(f.calls) > 0 || !f.dispatcher.Quiet() {
			return false
		}
	}
	return true
}

func (m *model) checkEnd() {
	if left := m.left(); len(left) > 0 {
		var text []string
		for _, msg := range left {
			text = append(text, fmt.Sprintf("%v attempts %d", msg, msg.attempts))
		}
		m.failf("never settled: %s; %v", strings.Join(text, ", "), m.forwarders)
		return
	}
	if !m.drained() {
		m.failf("a Drain does not return although nothing is left; %v", m.forwarders)
	}
	for _, msg := range m.db.all {
		if msg.tx.committed > 0 && msg.sent == 0 && !msg.dead && msg.acted == 0 && !msg.gone {
			m.failf("row %v was never sent", msg)
		}
	}
	for _, f := range m.forwarders {
		f.checkEnd()
	}
}
