package queue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/breaker"
)

// worker is the Dispatcher of a database that is awake. Group.mu guards the mutable fields.
type worker struct {
	db    *database
	d     *Dispatcher
	over  chan struct{}   // closed when it has ended
	ctx   context.Context // ends when the worker must leave
	end   context.CancelFunc
	polls sync.WaitGroup

	status      fleet.Status
	breaker     breaker.Breaker
	polling     bool
	slow        bool // the poll is slow
	answered    bool // although its last turn failed
	leaving     bool // gets no more polls
	handled     bool // a message since the last clean-up
	maintaining bool // its maintenance is in flight

	maintainer *maintainer // must not be used while maintaining
	maintainAt time.Time
}

// turn is what a worker would do in its turn.
type turn struct {
	m    *worker
	n    int  // maximum number of messages to claim; 0 = only check whether the database answers
	busy bool // it already has its turn, or all its allowed slots: choosing it means waiting for it
}

// suspect reports whether its last turn failed and the database has not answered since. mu must be held.
func (m *worker) suspect() bool { return m.breaker.Failures() > 0 && !m.answered }

// turn returns the worker's turn, or how long it has none: free slots are left, and it may use no more than most. A
// suspect claims nothing until the database has answered, so it needs no slot. mu must be held.
func (m *worker) turn(now time.Time, free, most int) (t turn, in time.Duration) {
	l := m.d.loop
	l.step(func() {
		if m.suspect() {
			if in = m.breaker.Until().Sub(now); in <= 0 || len(l.drains) > 0 {
				t.m = m
			}
			return
		}
		n, wait := l.schedule.nextClaim(now)
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

// newWorker starts the Dispatcher of a database. mu must be held.
func (g *Group) newWorker(ctx context.Context, t *database) (*worker, error) {
	d, err := NewDispatcher(t.store, g.cfg.Dispatcher, g.logger)
	if err != nil {
		return nil, err
	}
	m := &worker{
		db: t, d: d, maintainer: d.maintainer(), status: fleet.Status{Key: t.key}, over: make(chan struct{}),
	}
	m.maintainer.cleanAt = t.cleanAt
	m.ctx, m.end = context.WithCancel(ctx)
	d.loop.news = g.news
	d.loop.freed = func(c *claimed) { g.freed(c, t.pool) }
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

// freed must be called when a handler has returned; the caller then signals. Burials use only slots of their own
// database.
func (g *Group) freed(c *claimed, s *pool) {
	if c.expired {
		return
	}
	g.mu.Lock()
	g.slots.release()
	s.slots.release()
	g.mu.Unlock()
}

func (g *Group) signal() {
	select {
	case g.news <- struct{}{}:
	default:
	}
}

// pollSlot is a slot for a poll, among MaxPolls or among the slow ones.
type pollSlot struct {
	g     *Group
	slow  bool
	over  bool
	hurry *time.Timer
}

// pollSlot takes a slot. When the poll turns out to be slow, it moves to the slow ones, and slowed is called. mu must
// be held.
func (g *Group) pollSlot(slow bool, slowed func()) *pollSlot {
	s := &pollSlot{g: g, slow: slow}
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

// leave must be called with mu held.
func (s *pollSlot) leave() {
	s.hurry.Stop()
	if s.over = true; s.slow {
		s.g.slow--
	} else {
		s.g.polls--
	}
}

// poll gives a worker its turn. mu must be held.
func (g *Group) poll(t turn, now time.Time) {
	m := t.m
	suspect := t.n == 0
	reservation := m.db.pool.reserve(&g.slots, t.n)
	slot := g.pollSlot(suspect, func() {
		m.slow = true
		reservation.slowed()
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
			got, full, err = m.d.loop.claimBatch(m.ctx, t.n, func(n int) int {
				g.mu.Lock()
				defer g.mu.Unlock()
				admitted = reservation.confirm(n)
				return admitted
			})
		}
		if err == nil && !suspect && got == 0 && !full {
			err = g.goIdle(m)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		slot.leave()
		m.polling, m.slow = false, false
		reservation.release(admitted - got) // handlers already had some
		if m.answered = suspect && err == nil; !m.answered {
			g.polled(m, got, full, err)
		}
		g.signal()
	})
}

// answers returns nil if the database of a suspect works again.
func (m *worker) answers() error {
	ctx, cancel := context.WithTimeout(m.ctx, queryTimeout)
	defer cancel()
	if _, err := m.d.store.Get(ctx, ID{Source: "nobody", MessageID: "nothing"}); !errors.Is(err, ErrNotFound) {
		return err
	}
	return nil
}

// polled applies the result of a turn. mu must be held.
func (g *Group) polled(m *worker, got int, full bool, err error) {
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
			// Cause: the database.
			// Cure: the Group retries it.
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
	if got > 0 && !full { // there may be more: only a turn that brings nothing shows that the database is empty
		l.step(func() { l.schedule.woke(time.Now()) })
	}
}
