package queue

import (
	"time"
)

const (
	// maxMaintained is how many databases have maintenance at once, next to slow ones.
	maxMaintained = 2
	// cleanShare is for how long one database is cleaned before others have their turn.
	cleanShare = time.Second
)

// startMaintenance starts the maintenance of databases that answer and are due. Claims do not wait for it. It returns
// how long nothing else is due. It is called under mu.
func (g *Group) startMaintenance(now time.Time) time.Duration {
	wait := noWait
	for _, m := range g.workers {
		if m.maintaining || m.leaving || m.breaker.Failures() > 0 {
			continue // its end, or a turn that works, signals
		}
		if in := m.maintainAt.Sub(now); in > 0 {
			wait = min(wait, in)
			continue
		}
		if g.maintaining >= maxMaintained {
			return wait
		}
		g.maintain(m, now)
	}
	return wait
}

// maintain is called under mu.
func (g *Group) maintain(m *worker, now time.Time) {
	m.maintaining = true
	g.maintaining++
	m.polls.Add(1)
	clean := g.cfg.Dispatcher.CleanInterval > 0 && !now.Before(m.cleanAt)
	handled := m.handled || m.cleanAt.IsZero()
	g.work.Go(func() {
		defer m.polls.Done()
		over, slow := false, false
		hurry := time.AfterFunc(slowPoll, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if !over && g.slow < slowPolls {
				slow = true
				g.maintaining--
				g.slow++
				g.signal()
			}
		})
		var more bool
		err := m.maintainer.once(m.ctx)
		if m.ctx.Err() == nil {
			m.reaping.Tell(err)
		}
		if err == nil && clean {
			_, more, err = m.d.store.clean(m.ctx, cleanShare)
			if m.ctx.Err() == nil {
				m.cleaning.Tell(err)
			}
		}
		hurry.Stop()
		g.mu.Lock()
		defer g.mu.Unlock()
		over = true
		if slow {
			g.slow--
		} else {
			g.maintaining--
		}
		m.maintaining = false
		now := time.Now()
		m.maintainAt = now.Add(m.maintainer.wait())
		if clean {
			m.cleanAt = now.Add(g.cleanWait(handled, more))
			m.handled = false
		}
		if m.cleanAt.Before(m.maintainAt) && more {
			m.maintainAt = m.cleanAt
		}
		g.signal()
	})
}

// cleanWait is how long a database is not cleaned again. It is not the same for all, which begin together.
func (g *Group) cleanWait(handled, more bool) time.Duration {
	switch every := g.cfg.Dispatcher.CleanInterval; {
	case more:
		return min(every, cleanShare)
	case handled:
		return jitter(every)
	default:
		return jitter(rareClean * every)
	}
}
