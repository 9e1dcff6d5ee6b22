package queue

import (
	"time"
)

// maxMaintained is the number of databases maintained concurrently, not counting slow ones.
const maxMaintained = 2

// startMaintenance starts the maintenance of databases that are due and respond. Claims do not wait for it. It returns
// the time until the next one is due. mu must be held.
func (g *Group) startMaintenance(now time.Time) time.Duration {
	wait := noWait
	for _, m := range g.workers {
		if m.maintaining || m.leaving || m.breaker.Failing() {
			continue // its end, or a successful turn, sends a signal
		}
		if in := m.maintainAt.Sub(now); in > 0 {
			wait = min(wait, in)
			continue
		}
		if !g.maintaining.Free(false) {
			return wait
		}
		g.maintain(m)
	}
	return wait
}

// maintain must be called with mu held.
func (g *Group) maintain(m *worker) {
	m.maintaining = true
	m.polls.Add(1)
	handled := m.handled || m.maintainer.cleanAt.IsZero()
	slot := g.maintaining.Take(false, nil)
	g.scheduler.Go(m.db.Database, func() {
		defer m.polls.Done()
		cleaned := m.maintainer.turn(m.ctx, handled)
		g.mu.Lock()
		defer g.mu.Unlock()
		slot.Leave()
		m.maintaining = false
		m.maintainAt = time.Now().Add(m.maintainer.wait())
		m.handled = m.handled && !cleaned
		g.scheduler.Signal()
	})
}
