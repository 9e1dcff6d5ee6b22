package queue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// worker is the Dispatcher of a database that is awake. Group.mu guards the mutable fields.
type worker struct {
	db    *database
	d     *Dispatcher
	over  chan struct{}   // closed when it has ended
	ctx   context.Context // ends when the worker must stop
	end   context.CancelFunc
	polls sync.WaitGroup

	status      fleet.Status
	breaker     trouble.Breaker
	polling     bool
	slow        bool // the poll is slow
	answered    bool // claims again, although its last turn failed
	leaving     bool // gets no more polls
	handled     bool // a message was handled since the last clean-up
	maintaining bool // its maintenance is in flight

	maintainer *maintainer // must not be used while maintaining
	maintainAt time.Time
}

// turn describes the next turn of a worker.
type turn struct {
	m    *worker
	n    int  // maximum number of messages to claim; 0 = only check whether the database responds
	busy bool // it is having its turn, or uses all slots that it may: choosing it means waiting for it
}

// suspect reports whether its last turn failed and the database has not responded since. mu must be held.
func (m *worker) suspect() bool { return m.breaker.Failing() && !m.answered }

// turn returns the worker's turn, or how long to wait for it. free is the number of free slots, most the number that it
// may use in total. A suspect claims nothing until the database has responded, so it needs no slot. mu must be held.
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
			t, in = turn{m: m, busy: true}, noWait // the end of a handler sends a signal
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
	// Cause: the database.
	// Cure: the Group retries it.
	breaker := trouble.Breaker{What: "claiming", Logger: d.logger}
	m := &worker{
		db: t, d: d, maintainer: d.maintainer(), status: fleet.Status{Key: t.Key}, over: make(chan struct{}),
		breaker: breaker,
	}
	m.maintainer.cleanAt = t.cleanAt
	m.ctx, m.end = context.WithCancel(ctx)
	d.loop.news = g.scheduler.Signals()
	d.loop.freed = func(c *claimed) { g.freed(c, t.conns) }
	ended := d.loop.begin(ctx)
	g.scheduler.Go(t.Database, func() {
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

// freed must be called when a handler has returned; the caller then sends a signal. Expired messages use only slots of
// their own database.
func (g *Group) freed(c *claimed, s *connSlots) {
	if c.expired {
		return
	}
	g.mu.Lock()
	g.slots.release()
	s.slots.release()
	g.mu.Unlock()
}

// poll gives a worker its turn. mu must be held.
func (g *Group) poll(t turn, now time.Time) {
	m := t.m
	suspect := t.n == 0
	reservation := m.db.conns.reserve(&g.slots, t.n)
	slot := g.polls.Take(suspect, func() {
		m.slow = true
		reservation.slowed()
	})
	m.polling = true
	m.status.LastTurn = now
	m.polls.Add(1)
	g.scheduler.Go(m.db.Database, func() {
		defer m.polls.Done()
		var got, admitted int
		var full bool
		var err error
		if suspect {
			err = m.responds()
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
		slot.Leave()
		m.polling, m.slow = false, false
		reservation.release(admitted - got) // handlers already had slots
		if m.answered = suspect && err == nil; !m.answered {
			g.polled(m, got, full, err)
		}
		g.scheduler.Signal()
	})
}

// responds returns nil if the database of a suspect works again.
func (m *worker) responds() error {
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
	if err != nil {
		m.breaker.Failed(time.Now(), err)
		l.step(func() {
			for _, d := range l.drains {
				d.end(err)
			}
		})
	} else {
		m.breaker.Worked()
	}
	if got > 0 && !full { // only a turn that finds nothing shows that the database is empty
		l.step(func() { l.schedule.woke(time.Now()) })
	}
}
