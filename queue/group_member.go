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
	"github.com/millrace-go/watermill-outbox/internal/trouble"
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
	slow     bool // the poll takes long
	answered bool // although what it did last failed
	leaving  bool // gets no more polls
	handled  bool // something since the last clean-up
	keeping  bool // its upkeep is under way

	upkeep   *upkeep // used by one goroutine at a time
	upkeepAt time.Time
	cleanAt  time.Time
	reaping  trouble.Log
	cleaning trouble.Log
}

// turn is what a member would do if it had its turn.
type turn struct {
	m    *member
	n    int  // messages to claim at most; 0 = only to see whether the database answers
	busy bool // it has its turn already, or all the places that it may have: choosing it waits for it
}

// suspect says whether its last turn failed and it has not answered since. It is called under mu.
func (m *member) suspect() bool { return m.breaker.Failures() > 0 && !m.answered }

// turn returns the member's turn, or how long it has none: free places are left, and it may have no more than most. A suspect
// claims nothing before the database has answered, so it needs no place. It is called under mu.
func (m *member) turn(now time.Time, free, most int) (t turn, in time.Duration) {
	l := m.d.loop
	l.step(func() {
		if m.suspect() {
			if in = m.breaker.Until().Sub(now); in <= 0 || len(l.drains) > 0 {
				t.m = m
			}
			return
		}
		n, wait := l.schedule.look(now)
		switch room := min(free, most-l.schedule.taken); {
		case n == 0 && wait < l.schedule.poll/2 && l.schedule.taken > 0:
			t, in = turn{m: m, busy: true}, wait
		case n == 0:
			in = wait
		case room <= 0:
			t, in = turn{m: m, busy: true}, noWait // the end of a handler signals
		default:
			t = turn{m: m, n: min(n, room)}
		}
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
	m := &member{
		held: held, d: d, upkeep: d.upkeep(), status: fleet.Status{Key: key},
		reaping: reapingLog(d.logger), cleaning: cleaningLog(d.logger),
	}
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
	g.places.give()
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
	suspect := t.n == 0
	slow := suspect
	if slow {
		g.slow++
	} else {
		g.polls++
	}
	kept := g.places.take(t.n)
	m.polling = true
	m.status.LastTurn = now
	m.polls.Add(1)
	g.work.Go(func() {
		defer m.polls.Done()
		over := false
		hurry := time.AfterFunc(slowPoll, func() {
			g.mu.Lock()
			defer g.mu.Unlock()
			if over || slow {
				return
			}
			m.slow = true
			kept.slowed()
			if g.slow < slowPolls {
				slow = true
				g.polls--
				g.slow++
			}
			g.signal()
		})
		var got, admitted int
		var full bool
		var err error
		if suspect {
			err = m.answers()
		} else {
			got, full, err = m.d.loop.look(m.ctx, t.n, func(n int) int {
				g.mu.Lock()
				defer g.mu.Unlock()
				admitted = kept.got(n)
				return admitted
			})
		}
		hurry.Stop()
		g.mu.Lock()
		defer g.mu.Unlock()
		over = true
		if slow {
			g.slow--
		} else {
			g.polls--
		}
		m.polling, m.slow = false, false
		g.places.taken -= admitted - got // handlers had some already
		if m.answered = suspect && err == nil; !m.answered {
			g.polled(m, got, full, err)
		}
		g.signal()
	})
}

// answers says whether the database of a suspect works again.
func (m *member) answers() error {
	ctx, cancel := context.WithTimeout(m.ctx, queryTimeout)
	defer cancel()
	if _, err := m.d.store.Get(ctx, ID{Source: "nobody", MessageID: "nothing"}); !errors.Is(err, ErrNotFound) {
		return err
	}
	return nil
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
			m.d.logger.Error("claiming failed: the database is skipped, for longer each time", err, fields)
		} else {
			m.d.logger.Debug("claiming still fails", fields.Add(watermill.LogFields{"err": err.Error()}))
		}
		l.step(func() {
			for _, d := range l.drains {
				d.end(err)
			}
		})
	case m.breaker.Worked():
		m.d.logger.Info("claiming works again", nil)
	}
	if got > 0 && !full { // there may be more: whether it is empty is known only after a turn that brings nothing
		l.step(func() { l.schedule.woke(time.Now()) })
	}
}
