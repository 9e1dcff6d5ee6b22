package queue

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/breaker"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// database is a database of a Group. An idle one is asleep: it has no Dispatcher and no goroutine, and is polled
// together with the others of its pool. All fields but woken are guarded by Group.mu.
type database struct {
	key    string
	held   *fleet.Handle
	store  *Store
	pool   *pool
	unhook func()
	woken  atomic.Bool // it is in Group.woken

	awake   *worker   // nil while asleep
	cleanAt time.Time // when to clean it up

	// While it is asleep.
	number  int64     // all ids up to it are settled
	updates int64     // of rows, as counted at the last poll; -1 = unknown
	dueAt   time.Time // when the next message is due; zero = none waits
	checkAt time.Time // when to check for changes that polls do not see
}

// pool is shared by the databases with one connection pool: one statement polls all of them that are asleep.
type pool struct {
	databases map[*database]bool
	slots     slots // for messages at work, because their handlers use connections
	checking  bool
	scanAt    time.Time // no poll before this time
	checkAt   time.Time
	wait      time.Duration // between polls, before jitter
	breaker   breaker.Breaker
}

// room returns for how many more messages one poll may reserve slots: half of the free ones are left to other
// databases, so that a database that hangs does not take all of them before it is known to be slow.
func (s *pool) room() int {
	free := max(0, s.slots.free())
	if s.slots.most == noLimit || len(s.databases) < 2 {
		return free
	}
	return (free + 1) / 2
}

const (
	noLimit = 1 << 30
	// spareConns of a pool are left for claims, renewals and acks, and for a forwarder that drains the same databases.
	spareConns = 2
)

// mostOf is how many messages may be at work concurrently in databases that share a pool with conns connections:
// handlers in transactions use one each, and if they used all of them no lease would be renewed.
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

// sync updates the databases to match the fleet.
func (g *Group) sync(ctx context.Context) {
	keys := g.stores.fleet.Keys()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return
	}
	for _, t := range g.databases {
		select {
		case <-t.held.Done():
			g.remove(t)
		default:
		}
	}
	for _, key := range keys {
		if g.databases[key] == nil {
			g.add(ctx, key)
		}
	}
}

// add must be called with mu held.
func (g *Group) add(ctx context.Context, key string) {
	held, err := g.stores.fleet.Acquire(key)
	if err != nil {
		return // it was just removed
	}
	store, err := g.stores.of(key, held.DB())
	if err != nil {
		held.Release()
		return
	}
	t := &database{key: key, held: held, store: store}
	shared := store.db.Pool()
	if t.pool = g.pools[shared]; t.pool == nil {
		t.pool = &pool{databases: map[*database]bool{}, slots: newSlots(g.cfg.Dispatcher.mostOf(store.db.Conns().Max))}
		g.pools[shared] = t.pool
	}
	t.pool.databases[t] = true
	t.unhook = store.db.OnCommit(func(n core.Notification) {
		if n.Queue && t.woken.CompareAndSwap(false, true) {
			g.wokenMu.Lock()
			g.woken = append(g.woken, t)
			g.wokenMu.Unlock()
			g.signal()
		}
	})
	g.databases[key] = t
	g.wake(ctx, t)
}

// remove releases a database as soon as none of its work is in flight. mu must be held.
func (g *Group) remove(t *database) {
	delete(g.databases, t.key)
	t.unhook()
	shared := t.store.db.Pool()
	if delete(t.pool.databases, t); len(t.pool.databases) == 0 && g.pools[shared] == t.pool {
		delete(g.pools, shared)
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

// wake makes a database claim for itself. mu must be held.
func (g *Group) wake(ctx context.Context, t *database) {
	if t.awake != nil || g.databases[t.key] != t || ctx.Err() != nil {
		return
	}
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

// sleep must be called with mu held.
func (g *Group) sleep(t *database) {
	m := t.awake
	if m == nil {
		return
	}
	t.awake, t.pool.scanAt = nil, time.Time{}
	if !m.maintaining {
		t.cleanAt = m.maintainer.cleanAt
	}
	m.leaving = true
	m.end()
	g.workers = slices.DeleteFunc(g.workers, func(other *worker) bool { return other == m })
}

// wakeSignalled wakes the databases that were written to in this process. mu must be held.
func (g *Group) wakeSignalled(ctx context.Context) {
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
