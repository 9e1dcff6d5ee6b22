package queue

import (
	"time"
)

const (
	// keepAtOnce is how many databases are kept up at once, and slow ones beside.
	keepAtOnce = 2
	// cleanShare is for how long one database is cleaned before others have their turn.
	cleanShare = time.Second
)

// startUpkeep starts what a Dispatcher's upkeep does, in databases that answer and where it is time. Claims do not wait
// for it. It returns how long nothing else is due. It is called under mu.
func (g *Group) startUpkeep(now time.Time) time.Duration {
	wait := noWait
	for _, m := range g.members {
		if m.keeping || m.leaving || m.breaker.Failures() > 0 {
			continue // its end, or a turn that works, signals
		}
		if in := m.upkeepAt.Sub(now); in > 0 {
			wait = min(wait, in)
			continue
		}
		if g.keeping >= keepAtOnce {
			return wait
		}
		g.keep(m, now)
	}
	return wait
}

// keep is called under mu.
func (g *Group) keep(m *member, now time.Time) {
	m.keeping = true
	g.keeping++
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
				g.keeping--
				g.slow++
				g.signal()
			}
		})
		var more bool
		err := m.upkeep.once(m.ctx)
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
			g.keeping--
		}
		m.keeping = false
		now := time.Now()
		m.upkeepAt = now.Add(m.upkeep.wait())
		if clean {
			m.cleanAt = now.Add(g.cleanWait(handled, more))
			m.handled = false
		}
		if m.cleanAt.Before(m.upkeepAt) && more {
			m.upkeepAt = m.cleanAt
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
