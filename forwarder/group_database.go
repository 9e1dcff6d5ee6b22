package forwarder

import (
	"container/heap"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/nap"
	"github.com/millrace-go/watermill-outbox/internal/breaker"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

type databaseState int

const (
	asleep databaseState = iota // it is looked at
	queued                      // its forwarder is to start
	awake                       // its forwarder runs
)

// database is a database of a Group. All but woken is guarded by Group.mu.
type database struct {
	key    string
	held   *fleet.Handle
	db     *core.DB
	server *server
	unhook func()
	logger watermill.LoggerAdapter
	woken  atomic.Bool // it is in Group.woken, or need not be

	state   databaseState
	leaving bool // it is gone from the fleet
	nap     nap.Memory
	breaker breaker.Breaker
	lookAt  time.Time    // when to look, but for what its server says
	allAt   time.Time    // when to look at everything
	ofAll   machine.Pace // of looks at everything,
	ofOne   machine.Pace // and of others
	dueAt   time.Time    // when something falls due; zero = nothing
	tidyAt  time.Time    // when to start it although there is nothing to do, to clean up
	toTidy  bool         // it is started for that alone
	topics  []string     // that its forwarder publishes
	drains  []wanted

	// While it is awake.
	engine  *engine // nil while it starts
	started time.Time
	stop    chan struct{} // closed when others want its place, or it is leaving
	stopped bool
	changed time.Time // when it was started, or stopped
}

// wanted is a call of Drain.
type wanted struct {
	after int64 // a look that began later counts
	done  chan error
}

// server is what the databases of one pool have in common: it is looked at for all of them at once.
type server struct {
	databases map[*database]bool
	looking   bool // and so not in Group.soonest
	again     bool // it is to be looked at once more then
	lookAt    time.Time
	breaker   breaker.Breaker
	at        int // in Group.soonest
}

// servers is a heap of those that are to be looked at, the soonest first.
type servers []*server

func (l servers) Len() int           { return len(l) }
func (l servers) Less(i, j int) bool { return l[i].lookAt.Before(l[j].lookAt) }
func (l servers) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].at, l[j].at = i, j
}

func (l *servers) Push(x any) {
	s := x.(*server)
	s.at = len(*l)
	*l = append(*l, s)
}

func (l *servers) Pop() any {
	last := len(*l) - 1
	s := (*l)[last]
	*l = (*l)[:last]
	return s
}

// lookAt says when a server is to be looked at, if that is sooner. It is called under mu.
func (g *Group) lookAt(s *server, at time.Time) {
	switch {
	case s.looking:
		s.again = s.again || at.IsZero()
	case at.Before(s.lookAt):
		s.lookAt = at
		heap.Fix(&g.soonest, s.at)
	}
}

// sync makes the databases those of the fleet.
func (g *Group) sync() {
	keys := g.fleet.Keys()
	known := make(map[string]bool, len(keys))
	for _, key := range keys {
		known[key] = true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ended {
		return
	}
	for key, d := range g.all {
		select {
		case <-d.held.Done():
			d.leaving = true
		default:
			d.leaving = d.leaving || !known[key]
		}
		if d.leaving {
			g.leave(d)
		}
	}
	for _, key := range keys {
		if g.all[key] == nil {
			if held, err := g.fleet.Acquire(key); err == nil { // else it has just gone
				g.join(key, held)
			}
		}
	}
}

// join is called under mu.
func (g *Group) join(key string, held *fleet.Handle) {
	d := &database{key: key, held: held, db: (*core.DB)(held.DB())}
	d.logger = d.db.Logger(g.logger)
	d.tidyAt, d.topics = time.Now().Add(jitter(g.tidyInterval())), g.cfg.Forwarder.Topics
	pool := d.db.Pool()
	if d.server = g.servers[pool]; d.server == nil {
		d.server = &server{databases: map[*database]bool{}}
		g.servers[pool] = d.server
		heap.Push(&g.soonest, d.server)
	}
	d.server.databases[d] = true
	g.lookAt(d.server, time.Time{})
	d.unhook = d.db.OnCommit(func(n core.Notification) {
		if n.Outbox && d.woken.CompareAndSwap(false, true) {
			g.wokenMu.Lock()
			g.woken = append(g.woken, d)
			g.wokenMu.Unlock()
			signal(g.now)
		}
	})
	g.all[key] = d
}

// leave lets go of a database that is gone as soon as nothing of it is under way. It is called under mu.
func (g *Group) leave(d *database) {
	switch d.state {
	case asleep, queued:
		d.answer(nil)
		g.remove(d)
	case awake:
		d.end()
	}
}

// remove is called under mu.
func (g *Group) remove(d *database) {
	if g.all[d.key] != d {
		return
	}
	delete(g.all, d.key)
	if delete(d.server.databases, d); len(d.server.databases) == 0 && g.servers[d.db.Pool()] == d.server {
		delete(g.servers, d.db.Pool())
		if !d.server.looking {
			heap.Remove(&g.soonest, d.server.at)
		}
	}
	d.unhook()
	d.held.Release()
}

// end has its forwarder stop. It is called under mu.
func (d *database) end() {
	if !d.stopped {
		d.stopped, d.changed = true, time.Now()
		close(d.stop)
	}
}

// drain is called under mu.
func (d *database) drain(begun int64) chan error {
	w := wanted{begun, make(chan error, 1)}
	d.drains = append(d.drains, w)
	return w.done
}

// answer answers all calls of Drain. It is called under mu.
func (d *database) answer(err error) { d.answerBefore(1<<62, err) }

// answerBefore answers those that were made before a look began. It is called under mu.
func (d *database) answerBefore(look int64, err error) {
	left := d.drains[:0]
	for _, w := range d.drains {
		if w.after < look {
			w.done <- err
		} else {
			left = append(left, w)
		}
	}
	d.drains = left
}
