package queue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// How a Group treats idle databases: it puts them to sleep, polls those of a pool in one statement, and wakes those in
// which something has happened.

const (
	manyLooks  = 1000        // databases in a statement
	checkEvery = time.Minute // between separate checks of a sleeping database
	sleepAfter = 4           // times PollInterval, between polls that find nothing
)

func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// goIdle puts a database to sleep that has been idle for a while. Its poll calls it after finding nothing.
func (g *Group) goIdle(m *worker) error {
	l := m.d.loop
	idle := func() (is bool) {
		l.step(func() {
			is = len(l.claimed) == 0 && len(l.drains) == 0 && !l.schedule.woken &&
				l.schedule.wait >= sleepAfter*l.schedule.poll &&
				len(l.lostClaims.maybeOurs) == 0 && l.lostClaims.until.IsZero()
		})
		return is
	}
	if !idle() {
		return nil
	}
	left, err := m.db.store.remaining(m.ctx)
	if err != nil || left.something || !l.cursor.settled(left.number) {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if t := m.db; t.awake == m && !m.maintaining && idle() {
		now := time.Now()
		t.number, t.updates, t.dueAt, t.checkAt = left.number, -1, left.dueAt, now.Add(jitter(checkEvery))
		g.sleep(t)
		if s := t.pool; !s.checking {
			s.wait = g.cfg.Dispatcher.PollInterval
			if at := now.Add(jitter(s.wait)); s.checkAt.IsZero() || at.Before(s.checkAt) {
				s.checkAt = at
			}
		}
	}
	return nil
}

// left is what is left in a table that no handler works on.
type left struct {
	number    int64     // ids up to here were assigned
	something bool      // a message is not done, and does not wait
	dueAt     time.Time // when the next message is due; zero = none waits
}

func (s *Store) remaining(ctx context.Context) (l left, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	err = s.collect(ctx, "look for messages", func(rows drive.Rows) error {
		var due *float64
		err := rows.Scan(&l.number, &l.something, &due)
		if due != nil {
			l.dueAt = time.Now().Add(time.Duration(min(max(*due, 0), 1e6) * float64(time.Second)))
		}
		return err
	}, sqltext.RestOfQueue)
	return l, err
}

// startChecks wakes databases with due messages, and polls the pools whose time has come. It returns the time until the
// next of either. mu must be held.
func (g *Group) startChecks(ctx context.Context, now time.Time) time.Duration {
	wait := noWait
	for _, s := range g.pools {
		if now.Before(s.scanAt) {
			wait = min(wait, s.scanAt.Sub(now))
			continue
		}
		asleep, in := g.wakeDue(ctx, s, now)
		suspect := s.breaker.Failures() > 0
		switch scan := s.checkAt.Sub(now); {
		case !asleep || s.checking:
		case scan > 0:
			in = min(in, scan)
		case suspect && g.slow >= slowPolls || !suspect && g.polls >= g.cfg.MaxPolls:
			continue // the end of a poll signals
		default:
			g.checkPool(ctx, s)
		}
		s.scanAt = now.Add(in)
		wait = min(wait, in)
	}
	return wait
}

// wakeDue wakes the databases of a pool that are due, and reports whether others are asleep and the time until they are
// due. mu must be held.
func (g *Group) wakeDue(ctx context.Context, s *pool, now time.Time) (asleep bool, in time.Duration) {
	in = noWait
	for t := range s.databases {
		switch {
		case t.awake != nil:
		case !t.dueAt.IsZero() && !now.Before(t.dueAt) || g.cleanDue(t, now):
			g.wake(ctx, t)
		default:
			asleep = true
			if !t.dueAt.IsZero() {
				in = min(in, t.dueAt.Sub(now))
			}
		}
	}
	return asleep, in
}

func (g *Group) cleanDue(t *database, now time.Time) bool {
	return g.cfg.Dispatcher.CleanInterval > 0 && !now.Before(t.cleanAt)
}

// checkPool polls the sleeping databases of a pool. mu must be held.
func (g *Group) checkPool(ctx context.Context, s *pool) {
	var list []*database
	for t := range s.databases {
		if t.awake == nil {
			list = append(list, t)
		}
	}
	s.checking = true
	slot := g.pollSlot(s.breaker.Failures() > 0, nil)
	g.work.Go(func() {
		err := g.checkAll(ctx, list)
		g.mu.Lock()
		defer g.mu.Unlock()
		slot.leave()
		now := time.Now()
		s.checking, s.scanAt = false, time.Time{}
		s.wait = min(max(2*s.wait, g.cfg.Dispatcher.PollInterval), pollGrowth*g.cfg.Dispatcher.PollInterval)
		s.checkAt = now.Add(jitter(s.wait))
		switch {
		case ctx.Err() != nil:
		case err != nil:
			wait := s.breaker.Failed(now)
			s.checkAt = now.Add(wait)
			fields := watermill.LogFields{"db": names(list), "wait": wait.String(), "failures": s.breaker.Failures()}
			if s.breaker.Failures() == 1 {
				// Cause: the database.
				// Cure: the Group retries them.
				list[0].store.logger.Error("polling databases failed: they are skipped, for longer each "+
					"time", err, fields)
			} else {
				list[0].store.logger.Debug("polling databases still "+
					"fails", fields.Add(watermill.LogFields{"err": err.Error()}))
			}
		case s.breaker.Worked():
			list[0].store.logger.Info("polling databases works again", watermill.LogFields{"db": names(list)})
		}
		g.signal()
	})
}

// names returns the name of one of the databases.
func names(list []*database) string {
	first := slices.MinFunc(list, func(a, b *database) int { return strings.Compare(a.key, b.key) }).key
	if len(list) > 1 {
		return fmt.Sprintf("%s and %d more with the same DSN", first, len(list)-1)
	}
	return first
}

// checkAll wakes the databases in which something has happened.
func (g *Group) checkAll(ctx context.Context, list []*database) error {
	for some := range slices.Chunk(list, manyLooks) {
		sequences, tables := make([]string, len(some)), make([]string, len(some))
		for i, t := range some {
			sequences[i], tables[i] = t.store.db.Render("{queue_id_seq}"), t.store.db.Render("{queue}")
		}
		queryCtx, cancel := context.WithTimeout(ctx, queryTimeout)
		type seen struct{ number, updates int64 }
		var found []seen
		err := drive.Collect(queryCtx, some[0].store.db, func(rows drive.Rows) error {
			var s seen
			err := rows.Scan(&s.number, &s.updates)
			found = append(found, s)
			return err
		}, sqltext.PollQueues, sequences, tables)
		cancel()
		if err != nil {
			return fmt.Errorf("poll %d queues: %w", len(some), err)
		}
		g.mu.Lock()
		for i, t := range some {
			if t.number != found[i].number || t.updates >= 0 && t.updates != found[i].updates {
				g.wake(ctx, t)
			}
			t.updates = found[i].updates
		}
		g.mu.Unlock()
	}
	for _, t := range list {
		g.check(ctx, t)
	}
	return nil
}

// check polls a single database when it is time. A database that cannot be polled is woken: from then on its own
// breaker handles and reports it.
func (g *Group) check(ctx context.Context, t *database) {
	now := time.Now()
	g.mu.Lock()
	due := t.awake == nil && !now.Before(t.checkAt)
	g.mu.Unlock()
	if !due {
		return
	}
	left, err := t.store.remaining(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.checkAt = now.Add(jitter(checkEvery)); err != nil || left.something || left.number != t.number {
		g.wake(ctx, t)
	}
	if err == nil {
		t.dueAt, t.pool.scanAt = left.dueAt, time.Time{}
	}
}
