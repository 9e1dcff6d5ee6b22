package queue

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/breaker"
)

// member is a database of a Group. What changes is guarded by Group.mu.
type member struct {
	held  *fleet.Handle
	d     *Dispatcher
	ctx   context.Context // ends when it is to leave
	end   context.CancelFunc
	polls sync.WaitGroup

	status   fleet.Status
	breaker  breaker.Breaker
	polling  bool
	leaving  bool // gets no more polls
	handled  bool // something since the last clean-up
	upkeep   *upkeep
	upkeepAt time.Time
	cleanAt  time.Time
}

// turn is what a member would do if it had its turn.
type turn struct {
	m    *member
	line *line // nil = nothing
	n    int   // messages to claim at most
}

// turn returns the member's turn, or how long it has none: free places are left, and it may have no more than most. It is called
// under mu.
func (m *member) turn(now time.Time, free, most int) (t turn, in time.Duration) {
	l := m.d.loop
	l.step(func() {
		if wait := m.breaker.Until().Sub(now); wait > 0 && len(l.drains) == 0 {
			in = wait
			return
		}
		room := min(free, most-l.schedule.taken)
		if room <= 0 {
			in = noWait // the end of a handler signals
			return
		}
		t.m = m
		t.line, t.n, in = l.schedule.look(now)
		t.n = min(t.n, room)
	})
	return t, in
}

func (m *member) gone() bool {
	select {
	case <-m.held.Done():
		return true
	default:
		return false
	}
}

// sync makes the members those of the fleet.
func (g *Group) sync(ctx context.Context) {
	keys := g.stores.fleet.Keys()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return
	}
	g.members = slices.DeleteFunc(g.members, func(m *member) bool {
		leaves := m.gone()
		if leaves {
			g.leave(m)
		}
		return leaves
	})
	known := make(map[string]bool, len(g.members))
	for _, m := range g.members {
		known[m.status.Key] = true
	}
	for _, key := range keys {
		if !known[key] {
			g.join(ctx, key)
		}
	}
	slices.SortFunc(g.members, func(a, b *member) int { return strings.Compare(a.status.Key, b.status.Key) })
}

// join is called under mu.
func (g *Group) join(ctx context.Context, key string) {
	held, err := g.stores.fleet.Acquire(key)
	if err != nil {
		return // it has just gone
	}
	store, err := g.stores.of(key, held.DB())
	if err != nil {
		held.Release()
		return
	}
	d, err := NewDispatcher(store, g.cfg.Dispatcher, g.logger)
	if err != nil {
		held.Release()
		return
	}
	m := &member{held: held, d: d, upkeep: d.upkeep(), status: fleet.Status{Key: key}}
	m.ctx, m.end = context.WithCancel(ctx)
	d.loop.news = g.news
	d.loop.freed = func(c *claimed) {
		if !c.expired { // those have places of their own
			g.freed()
		}
	}
	g.members = append(g.members, m)
	ended := d.loop.begin(ctx)
	g.work.Go(func() {
		defer m.held.Release()
		defer ended()
		d.loop.serve(m.ctx, func(ctx context.Context) {
			<-ctx.Done()
			g.mu.Lock()
			m.leaving = true
			g.mu.Unlock()
			m.polls.Wait()
		})
	})
}

// leave is called under mu.
func (g *Group) leave(m *member) { m.end() }

// freed is called when a place is free. Whoever calls it signals.
func (g *Group) freed() {
	g.mu.Lock()
	g.taken--
	g.mu.Unlock()
}

func (g *Group) signal() {
	select {
	case g.news <- struct{}{}:
	default:
	}
}

// poll gives a member its turn. It is called under mu.
func (g *Group) poll(t turn, now time.Time) {
	m := t.m
	slow := m.breaker.Failures() > 0
	if slow {
		g.slow++
	} else {
		g.polls++
	}
	m.polling = true
	m.status.LastTurn = now
	g.taken += t.n
	m.polls.Add(1)
	g.work.Go(func() {
		defer m.polls.Done()
		hurry := time.AfterFunc(slowPoll, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if !slow && m.polling && g.slow < slowPolls {
				slow = true
				g.polls--
				g.slow++
				g.signal()
			}
		})
		got, full, err := m.keepUp(now, &g.cfg.Dispatcher)
		if err == nil {
			got, full, err = m.d.loop.look(m.ctx, t.line, t.n)
		}
		hurry.Stop()
		g.mu.Lock()
		defer g.mu.Unlock()
		if slow {
			g.slow--
		} else {
			g.polls--
		}
		slow = true // should hurry be late
		m.polling = false
		g.taken -= t.n - got
		g.polled(m, got, full, err)
		g.signal()
	})
}

// polled takes what came of a turn. It is called under mu.
func (g *Group) polled(m *member, got int, full bool, err error) {
	m.status.Handled, m.status.Full, m.status.LastError = got, full, err
	m.handled = m.handled || got > 0
	g.last = m.status
	if m.ctx.Err() != nil {
		return
	}
	l := m.d.loop
	switch {
	case err != nil:
		wait := m.breaker.Failed(time.Now())
		fields := watermill.LogFields{"wait": wait.String(), "failures": m.breaker.Failures()}
		if m.breaker.Failures() == 1 {
			m.d.logger.Error("Messages cannot be claimed; the database is left alone for a while, for longer each time", err, fields)
		} else {
			m.d.logger.Debug("Messages still cannot be claimed", fields.Add(watermill.LogFields{"err": err.Error()}))
		}
		l.step(func() {
			for _, d := range l.drains {
				d.end(err)
			}
		})
	case m.breaker.Worked():
		m.d.logger.Info("Messages can be claimed again", nil)
	}
	if got > 0 && !full { // there may be more: whether it is empty is known only after a turn that brings nothing
		l.step(func() { l.schedule.woken(time.Now()) })
	}
}

// keepUp does what a Dispatcher's upkeep does, when it is time.
func (m *member) keepUp(now time.Time, cfg *DispatcherConfig) (got int, full bool, err error) {
	if now.Before(m.upkeepAt) {
		return 0, false, nil
	}
	if err := m.upkeep.once(m.ctx); err != nil {
		return 0, false, err
	}
	m.upkeepAt = now.Add(m.upkeep.wait())
	if cfg.CleanInterval > 0 && !now.Before(m.cleanAt) {
		if m.cleanAt.IsZero() || m.handled {
			m.cleanAt = now.Add(cfg.CleanInterval)
		} else {
			m.cleanAt = now.Add(rareClean * cfg.CleanInterval)
		}
		m.handled = false
		if _, err := m.d.store.Clean(m.ctx); err != nil && !errors.Is(err, context.Canceled) {
			return 0, false, err
		}
	}
	return 0, false, nil
}
