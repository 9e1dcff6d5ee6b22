package queue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/breaker"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// target is a database of a Group. One with nothing to do is asleep: it has no Dispatcher and no goroutine, and is looked at together
// with the others of its pool. All but woken is guarded by Group.mu.
type target struct {
	key    string
	held   *fleet.Handle
	store  *Store
	server *server
	unhook func()
	woken  atomic.Bool // it is in Group.woken

	awake   *member   // nil while it is asleep
	cleanAt time.Time // when to clean it up

	// While it is asleep.
	number  int64     // up to it all ids are settled
	updates int64     // of rows, as counted at the last look; -1 = not known
	dueAt   time.Time // when something falls due; zero = nothing waits
	checkAt time.Time // when to look for what changed without a trace
}

// server is what the databases of one pool have in common: those of them that are asleep are looked at in one statement.
type server struct {
	targets map[*target]bool
	places  places // for messages at work at once, for the connections that their handlers keep
	looking bool
	scanAt  time.Time // nothing is to be done for any of them before
	lookAt  time.Time
	wait    time.Duration // between looks, before jitter
	breaker breaker.Breaker
}

const (
	manyLooks  = 1000        // databases in a statement
	checkEvery = time.Minute // a database that is asleep is looked at by itself
	sleepAfter = 4           // times PollInterval between looks that find nothing
)

func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// room is for how many more messages one look may keep places: half of what is free is left to other databases, so that
// one that hangs does not have all of it before it is known to be slow.
func (s *server) room() int {
	free := max(0, s.places.free())
	if s.places.most == noLimit || len(s.targets) < 2 {
		return free
	}
	return (free + 1) / 2
}

const (
	noLimit = 1 << 30
	// spareConns of a pool are left to claims, renewals and acks, and to the forwarder that drains the same databases.
	spareConns = 2
)

// mostOf is how many messages may be at work at once in databases whose pool has some connections: handlers in transactions keep one
// each, and if they had all of them no lease would be renewed.
func (c *DispatcherConfig) mostOf(conns int) int {
	inTx := c.DefaultHandler.Handle != nil && !c.DefaultHandler.Detached
	for _, h := range c.Handlers {
		inTx = inTx || !h.Detached
	}
	if conns <= 0 || !inTx {
		return noLimit
	}
	return max(1, conns-spareConns)
}

// sync makes the targets those of the fleet.
func (g *Group) sync(ctx context.Context) {
	keys := g.stores.fleet.Keys()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return
	}
	for _, t := range g.targets {
		select {
		case <-t.held.Done():
			g.remove(t)
		default:
		}
	}
	for _, key := range keys {
		if g.targets[key] == nil {
			g.add(ctx, key)
		}
	}
}

// add is called under mu.
func (g *Group) add(ctx context.Context, key string) {
	held, err := g.stores.fleet.Acquire(key)
	if err != nil {
		return // it has just gone
	}
	store, err := g.stores.of(key, held.DB())
	if err != nil {
		held.Release()
		return
	}
	t := &target{key: key, held: held, store: store}
	pool := store.db.Pool()
	if t.server = g.servers[pool]; t.server == nil {
		t.server = &server{targets: map[*target]bool{}, places: newPlaces(g.cfg.Dispatcher.mostOf(store.db.Conns().Max))}
		g.servers[pool] = t.server
	}
	t.server.targets[t] = true
	t.unhook = store.db.OnCommit(func(news core.News) {
		if news.Queue && t.woken.CompareAndSwap(false, true) {
			g.wokenMu.Lock()
			g.woken = append(g.woken, t)
			g.wokenMu.Unlock()
			g.signal()
		}
	})
	g.targets[key] = t
	g.wake(ctx, t)
}

// remove lets go of a target as soon as nothing of it is under way. It is called under mu.
func (g *Group) remove(t *target) {
	delete(g.targets, t.key)
	t.unhook()
	pool := t.store.db.Pool()
	if delete(t.server.targets, t); len(t.server.targets) == 0 && g.servers[pool] == t.server {
		delete(g.servers, pool)
	}
	m := t.awake
	g.sleep(t)
	g.work.Go(func() {
		if m != nil {
			<-m.over
		}
		t.held.Release()
	})
}

// wake has a target claim for itself. It is called under mu.
func (g *Group) wake(ctx context.Context, t *target) {
	if t.awake != nil || g.targets[t.key] != t || ctx.Err() != nil {
		return
	}
	m, err := g.newMember(ctx, t)
	if err != nil {
		return // the configuration was checked
	}
	t.awake = m
	i, _ := slices.BinarySearchFunc(g.members, m, func(a, b *member) int { return strings.Compare(a.status.Key, b.status.Key) })
	g.members = slices.Insert(g.members, i, m)
}

// sleep is called under mu.
func (g *Group) sleep(t *target) {
	m := t.awake
	if m == nil {
		return
	}
	t.awake, t.cleanAt, t.server.scanAt = nil, m.cleanAt, time.Time{}
	m.leaving = true
	m.end()
	g.members = slices.DeleteFunc(g.members, func(other *member) bool { return other == m })
}

// wakeThose wakes what somebody has written to in this process. It is called under mu.
func (g *Group) wakeThose(ctx context.Context) {
	g.wokenMu.Lock()
	woken := g.woken
	g.woken = nil
	g.wokenMu.Unlock()
	for _, t := range woken {
		t.woken.Store(false)
		if m := t.awake; m != nil {
			m.d.loop.step(func() { m.d.loop.schedule.woke(time.Now()) })
			continue
		}
		g.wake(ctx, t)
	}
}

// rest puts a database to sleep that has had nothing to do for a while. It is called by its poll, which has found nothing.
func (g *Group) rest(m *member) error {
	l := m.d.loop
	idle := func() (is bool) {
		l.step(func() {
			is = len(l.claimed) == 0 && len(l.drains) == 0 && !l.schedule.woken && l.schedule.wait >= sleepAfter*l.schedule.poll &&
				len(l.strays.perhaps) == 0 && l.strays.until.IsZero()
		})
		return is
	}
	if !idle() {
		return nil
	}
	left, err := m.t.store.rest(m.ctx)
	if err != nil || left.something || !l.claimer.settled(left.number) {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if t := m.t; t.awake == m && !m.keeping && idle() {
		now := time.Now()
		t.number, t.updates, t.dueAt, t.checkAt = left.number, -1, left.dueAt, now.Add(jitter(checkEvery))
		g.sleep(t)
		if s := t.server; !s.looking {
			s.wait = g.cfg.Dispatcher.PollInterval
			if at := now.Add(jitter(s.wait)); s.lookAt.IsZero() || at.Before(s.lookAt) {
				s.lookAt = at
			}
		}
	}
	return nil
}

// left is what a table holds that nobody works on.
type left struct {
	number    int64     // up to which ids are handed out
	something bool      // a message is not done, and does not wait
	dueAt     time.Time // when the next one falls due; zero = none waits
}

func (s *Store) rest(ctx context.Context) (l left, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	err = s.collect(ctx, "look whether there is nothing to do", func(rows drive.Rows) error {
		var due *float64
		err := rows.Scan(&l.number, &l.something, &due)
		if due != nil {
			l.dueAt = time.Now().Add(time.Duration(min(max(*due, 0), 1e6) * float64(time.Second)))
		}
		return err
	}, sqltext.RestOfQueue)
	return l, err
}

// startLooks wakes what fell due, and looks at servers whose time it is. It returns how long neither will be. It is called under mu.
func (g *Group) startLooks(ctx context.Context, now time.Time) time.Duration {
	wait := noWait
	for _, s := range g.servers {
		if now.Before(s.scanAt) {
			wait = min(wait, s.scanAt.Sub(now))
			continue
		}
		asleep, in := g.wakeDue(ctx, s, now)
		suspect := s.breaker.Failures() > 0
		switch look := s.lookAt.Sub(now); {
		case !asleep || s.looking:
		case look > 0:
			in = min(in, look)
		case suspect && g.slow >= slowPolls || !suspect && g.polls >= g.cfg.MaxPolls:
			continue // the end of one signals
		default:
			g.look(ctx, s)
		}
		s.scanAt = now.Add(in)
		wait = min(wait, in)
	}
	return wait
}

// wakeDue wakes those of a server that are due, and says whether others are asleep and how long those are not due. It is called under mu.
func (g *Group) wakeDue(ctx context.Context, s *server, now time.Time) (asleep bool, in time.Duration) {
	in = noWait
	for t := range s.targets {
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

func (g *Group) cleanDue(t *target, now time.Time) bool {
	return g.cfg.Dispatcher.CleanInterval > 0 && !now.Before(t.cleanAt)
}

// look looks at the databases of a server that are asleep. It is called under mu.
func (g *Group) look(ctx context.Context, s *server) {
	var list []*target
	for t := range s.targets {
		if t.awake == nil {
			list = append(list, t)
		}
	}
	s.looking = true
	place := g.lookPlace(s.breaker.Failures() > 0, nil)
	g.work.Go(func() {
		err := g.lookAll(ctx, list)
		g.mu.Lock()
		defer g.mu.Unlock()
		place.leave()
		now := time.Now()
		s.looking, s.scanAt = false, time.Time{}
		s.wait = min(max(2*s.wait, g.cfg.Dispatcher.PollInterval), pollGrowth*g.cfg.Dispatcher.PollInterval)
		s.lookAt = now.Add(jitter(s.wait))
		switch {
		case ctx.Err() != nil:
		case err != nil:
			wait := s.breaker.Failed(now)
			s.lookAt = now.Add(wait)
			fields := watermill.LogFields{"db": names(list), "wait": wait.String(), "failures": s.breaker.Failures()}
			if s.breaker.Failures() == 1 {
				list[0].store.logger.Error("databases cannot be looked at: they are left alone for a while, for longer each time", err, fields)
			} else {
				list[0].store.logger.Debug("databases still cannot be looked at", fields.Add(watermill.LogFields{"err": err.Error()}))
			}
		case s.breaker.Worked():
			list[0].store.logger.Info("databases can be looked at again", watermill.LogFields{"db": names(list)})
		}
		g.signal()
	})
}

// names names one of many.
func names(list []*target) string {
	first := slices.MinFunc(list, func(a, b *target) int { return strings.Compare(a.key, b.key) }).key
	if len(list) > 1 {
		return fmt.Sprintf("%s and %d more with the same DSN", first, len(list)-1)
	}
	return first
}

// lookAll wakes those in which something has happened.
func (g *Group) lookAll(ctx context.Context, list []*target) error {
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
		}, sqltext.LookAtQueues, sequences, tables)
		cancel()
		if err != nil {
			return fmt.Errorf("look at %d queues: %w", len(some), err)
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

// check looks at a database by itself, when it is time. One that cannot be looked at is woken: its own breaker has it
// from then on, and says why.
func (g *Group) check(ctx context.Context, t *target) {
	now := time.Now()
	g.mu.Lock()
	due := t.awake == nil && !now.Before(t.checkAt)
	g.mu.Unlock()
	if !due {
		return
	}
	left, err := t.store.rest(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.checkAt = now.Add(jitter(checkEvery)); err != nil || left.something || left.number != t.number {
		g.wake(ctx, t)
	}
	if err == nil {
		t.dueAt, t.server.scanAt = left.dueAt, time.Time{}
	}
}
