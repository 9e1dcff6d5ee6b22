package queue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/breaker"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// member is the Dispatcher of a target that is awake. What changes is guarded by Group.mu.
type member struct {
	t     *target
	d     *Dispatcher
	over  chan struct{}   // closed when it has ended
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

// turn returns the member's turn, or how long it has none: free places are left, and it may have no more than most. A
// suspect claims nothing before the database has answered, so it needs no place. It is called under mu.
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

// newMember starts the Dispatcher of a target. It is called under mu.
func (g *Group) newMember(ctx context.Context, t *target) (*member, error) {
	d, err := NewDispatcher(t.store, g.cfg.Dispatcher, g.logger)
	if err != nil {
		return nil, err
	}
	m := &member{
		t: t, d: d, upkeep: d.upkeep(), status: fleet.Status{Key: t.key}, cleanAt: t.cleanAt, over: make(chan struct{}),
		reaping: reapingLog(d.logger), cleaning: cleaningLog(d.logger),
	}
	m.ctx, m.end = context.WithCancel(ctx)
	d.loop.news = g.news
	d.loop.freed = func(c *claimed) { g.freed(c, t.server) }
	ended := d.loop.begin(ctx)
	g.work.Go(func() {
		defer close(m.over)
		defer ended()
		d.loop.serve(m.ctx, func(ctx context.Context) {
			<-ctx.Done()
			g.mu.Lock()
			m.leaving = true
			g.mu.Unlock()
			m.polls.Wait()
		})
	})
	return m, nil
}

// freed is called when a handler has returned. Its caller signals. Burials have places of their own database alone.
func (g *Group) freed(c *claimed, s *server) {
	if c.expired {
		return
	}
	g.mu.Lock()
	g.places.give()
	s.places.give()
	g.mu.Unlock()
}

func (g *Group) signal() {
	select {
	case g.news <- struct{}{}:
	default:
	}
}

// lookPlace is a place for a look, among MaxPolls or among those that are slow.
type lookPlace struct {
	g     *Group
	slow  bool
	over  bool
	hurry *time.Timer
}

// lookPlace takes one. When the look takes long it goes over to the slow ones, and slowed is called. It is called under
// mu.
func (g *Group) lookPlace(slow bool, slowed func()) *lookPlace {
	s := &lookPlace{g: g, slow: slow}
	if slow {
		g.slow++
	} else {
		g.polls++
	}
	s.hurry = time.AfterFunc(slowPoll, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if s.over || slow {
			return
		}
		if slowed != nil {
			slowed()
		}
		if g.slow < slowPolls {
			s.slow = true
			g.polls--
			g.slow++
		}
		g.signal()
	})
	return s
}

// leave is called under mu.
func (s *lookPlace) leave() {
	s.hurry.Stop()
	if s.over = true; s.slow {
		s.g.slow--
	} else {
		s.g.polls--
	}
}

// poll gives a member its turn. It is called under mu.
func (g *Group) poll(t turn, now time.Time) {
	m := t.m
	suspect := t.n == 0
	kept := m.t.server.take(&g.places, t.n)
	place := g.lookPlace(suspect, func() {
		m.slow = true
		kept.slowed()
	})
	m.polling = true
	m.status.LastTurn = now
	m.polls.Add(1)
	g.work.Go(func() {
		defer m.polls.Done()
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
		if err == nil && !suspect && got == 0 && !full {
			err = g.rest(m)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		place.leave()
		m.polling, m.slow = false, false
		kept.unused(admitted - got) // handlers had some already
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
			// Cause: one queue of the Group cannot be read.
			// Cure: check that database; the Group retries.
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
