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

// target is a database of a Group. One with nothing to do is asleep: it has no Dispatcher and no goroutine, and is
// looked at together with the others of its pool. All but woken is guarded by Group.mu.
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

// server is what the databases of one pool have in common: those of them that are asleep are looked at in one
// statement.
type server struct {
	targets map[*target]bool
	places  places // for messages at work at once, for the connections that their handlers keep
	looking bool
	scanAt  time.Time // nothing is to be done for any of them before
	lookAt  time.Time
	wait    time.Duration // between looks, before jitter
	breaker breaker.Breaker
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

// mostOf is how many messages may be at work at once in databases whose pool has some connections: handlers in
// transactions keep one each, and if they had all of them no lease would be renewed.
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
	t.unhook = store.db.OnCommit(func(n core.Notification) {
		if n.Queue && t.woken.CompareAndSwap(false, true) {
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
	i, _ := slices.BinarySearchFunc(g.members, m, func(a, b *member) int {
		return strings.Compare(a.status.Key, b.status.Key)
	})
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

// wakeThose wakes what was written to in this process. It is called under mu.
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
