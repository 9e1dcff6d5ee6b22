package queue

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/scheduler"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// The scheduler polls the idle databases of a connection pool in one statement, and wakes those that changed. A
// database that is awake has a worker until it is idle again.

const (
	polledTogether = 1000        // databases per statement
	checkEvery     = time.Minute // between separate checks of a sleeping database
	sleepAfter     = 4           // times PollInterval, between polls that find nothing
)

// database is a database of a Group. All fields are guarded by Group.mu.
type database struct {
	*scheduler.Database[*database]
	store *Store
	conns *connSlots

	awake   *worker   // nil while asleep
	cleanAt time.Time // of the next clean-up

	// Set while it is asleep:
	number  int64     // all messages up to this id are settled
	updates int64     // row count at the last poll; -1 = unknown
	dueAt   time.Time // of the next message; zero = no message waits
	checkAt time.Time // of the next check for changes that polls do not see
}

// join must be called with mu held.
func (g *Group) join(d *scheduler.Database[*database]) (*database, error) {
	store, err := g.stores.of(d.Key, d.Handle.DB())
	if err != nil {
		return nil, err
	}
	t := &database{Database: d, store: store}
	if twin, found := d.Twin(); found {
		t.conns = twin.conns
	} else {
		t.conns = &connSlots{slots: newSlots(g.cfg.Dispatcher.maxHandled(store.db.Conns().Max))}
	}
	t.conns.databases++
	g.scheduler.WakeAt(d, time.Now()) // its worker sees whether it is idle
	return t, nil
}

// removed must be called with mu held.
func (g *Group) removed(t *database) {
	t.conns.databases--
	if t.awake != nil {
		g.leave(t)
	}
}

// woken gives a database a worker that claims its messages. mu must be held.
func (g *Group) woken(ctx context.Context, t *database) {
	m, err := g.newWorker(ctx, t)
	if err != nil {
		return // cannot happen: the configuration was checked
	}
	t.awake = m
	i, _ := slices.BinarySearchFunc(g.workers, m, func(a, b *worker) int {
		return strings.Compare(a.status.Key, b.status.Key)
	})
	g.workers = slices.Insert(g.workers, i, m)
}

// leave ends the worker of a database. mu must be held.
func (g *Group) leave(t *database) {
	m := t.awake
	t.awake = nil
	if !m.maintaining {
		t.cleanAt = m.maintainer.cleanAt
	}
	m.leaving = true
	m.end()
	g.workers = slices.DeleteFunc(g.workers, func(other *worker) bool { return other == m })
}

// goIdle puts a database to sleep if it has been idle for a while. Its poll calls it after finding nothing.
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
		g.leave(t)
		t.number, t.updates, t.dueAt = left.number, -1, left.dueAt
		t.checkAt = time.Now().Add(scheduler.Jitter(checkEvery))
		g.setWakeAt(t)
		g.scheduler.Sleep(t.Database, scheduler.Jitter(g.cfg.Dispatcher.PollInterval))
	}
	return nil
}

// setWakeAt must be called when dueAt or cleanAt has changed while a database is asleep. mu must be held.
func (g *Group) setWakeAt(t *database) {
	at := t.dueAt
	if g.cfg.Dispatcher.CleanInterval > 0 && (t.dueAt.IsZero() || t.cleanAt.Before(t.dueAt)) {
		at = later(t.cleanAt, time.Now())
	}
	g.scheduler.WakeAt(t.Database, at)
}

// left describes the unfinished messages of a table that no handler is working on.
type left struct {
	number    int64     // highest id assigned so far
	something bool      // some message is unfinished and not waiting
	dueAt     time.Time // of the next message; zero = no message waits
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

// pollSleeping wakes the sleeping databases of a pool that changed.
func (g *Group) pollSleeping(ctx context.Context, list []*database) error {
	for some := range slices.Chunk(list, polledTogether) {
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
				g.scheduler.Wake(t.Database)
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

// check polls a single database when its check is due. A database that cannot be polled is woken, so that its own
// breaker handles and reports the failure.
func (g *Group) check(ctx context.Context, t *database) {
	now := time.Now()
	g.mu.Lock()
	due := t.Asleep() && !now.Before(t.checkAt)
	g.mu.Unlock()
	if !due {
		return
	}
	left, err := t.store.remaining(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.checkAt = now.Add(scheduler.Jitter(checkEvery)); err != nil || left.something || left.number != t.number {
		g.scheduler.Wake(t.Database)
	}
	if err == nil {
		t.dueAt = left.dueAt
		g.setWakeAt(t)
	}
}
