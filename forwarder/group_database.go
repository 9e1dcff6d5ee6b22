package forwarder

import (
	"container/heap"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/idle"
	"github.com/millrace-go/watermill-outbox/internal/breaker"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

type databaseState int

const (
	asleep databaseState = iota // it is polled
	queued                      // its forwarder is about to start
	awake                       // its forwarder runs
)

// database is a database of a Group. All fields but woken are guarded by Group.mu.
type database struct {
	key    string
	held   *fleet.Handle
	db     *core.DB
	server *server
	unhook func()
	logger watermill.LoggerAdapter
	woken  atomic.Bool // it is in Group.woken, or need not be

	state   databaseState
	leaving bool // it was removed from the fleet
	idle    idle.Tracker
	breaker breaker.Breaker
	pollAt  time.Time            // next poll, unless its server delays it
	allAt   time.Time            // next poll of everything
	ofAll   coordinator.Throttle // of polls of everything,
	ofOne   coordinator.Throttle // and of other polls
	dueAt   time.Time            // when the next message is due; zero = none
	tidyAt  time.Time            // when to start it for a clean-up, even without messages
	toTidy  bool                 // it was started only for a clean-up
	topics  []string             // of its forwarder
	drains  []wanted

	// While it is awake.
	engine  *engine // nil while it starts
	started time.Time
	stop    chan struct{} // closed when others need its slot, or it is leaving
	stopped bool
	changed time.Time // when it was started, or told to stop
}

// wanted is a waiting call of Drain.
type wanted struct {
	after int64 // only polls that begin later count
	done  chan error
}

// server is the shared state of the databases of one pool: one poll serves all of them.
type server struct {
	databases map[*database]bool
	polling   bool // therefore not in Group.soonest
	again     bool // poll it once more afterwards
	pollAt    time.Time
	breaker   breaker.Breaker
	at        int // index in Group.soonest
}

// servers is a heap of the servers to be polled, the soonest first.
type servers []*server

func (l servers) Len() int           { return len(l) }
func (l servers) Less(i, j int) bool { return l[i].pollAt.Before(l[j].pollAt) }
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

// pollAt schedules a poll of a server, unless one is scheduled earlier. mu must be held.
func (g *Group) pollAt(s *server, at time.Time) {
	switch {
	case s.polling:
		s.again = s.again || at.IsZero()
	case at.Before(s.pollAt):
		s.pollAt = at
		heap.Fix(&g.soonest, s.at)
	}
}

// sync updates the databases to match the fleet.
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
			if held, err := g.fleet.Acquire(key); err == nil { // otherwise it was just removed
				g.join(key, held)
			}
		}
	}
}

// join must be called with mu held.
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
	g.pollAt(d.server, time.Time{})
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

// leave releases a database that was removed from the fleet as soon as none of its work is in flight. mu must be held.
func (g *Group) leave(d *database) {
	switch d.state {
	case asleep, queued:
		d.answer(nil)
		g.remove(d)
	case awake:
		d.end()
	}
}

// remove must be called with mu held.
func (g *Group) remove(d *database) {
	if g.all[d.key] != d {
		return
	}
	delete(g.all, d.key)
	if delete(d.server.databases, d); len(d.server.databases) == 0 && g.servers[d.db.Pool()] == d.server {
		delete(g.servers, d.db.Pool())
		if !d.server.polling {
			heap.Remove(&g.soonest, d.server.at)
		}
	}
	d.unhook()
	d.held.Release()
}

// end stops its forwarder. mu must be held.
func (d *database) end() {
	if !d.stopped {
		d.stopped, d.changed = true, time.Now()
		close(d.stop)
	}
}

// drain must be called with mu held.
func (d *database) drain(begun int64) chan error {
	w := wanted{begun, make(chan error, 1)}
	d.drains = append(d.drains, w)
	return w.done
}

// answer ends all calls of Drain. mu must be held.
func (d *database) answer(err error) { d.answerBefore(1<<62, err) }

// answerBefore answers the calls that were made before a poll began. mu must be held.
func (d *database) answerBefore(poll int64, err error) {
	left := d.drains[:0]
	for _, w := range d.drains {
		if w.after < poll {
			w.done <- err
		} else {
			left = append(left, w)
		}
	}
	d.drains = left
}
