package scheduler

import (
	"container/heap"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// Database is a database of a Scheduler. The fields are guarded by Config.Mu, and the first four never change.
type Database[D any] struct {
	Key    string
	Handle *fleet.Handle
	Logger watermill.LoggerAdapter
	Own    D // data of the owner
	// SkipUntil is the time before which it is neither polled nor woken. The owner sets it after a failure. WakeAt has
	// no effect until a poll works, which clears the field.
	SkipUntil time.Time

	pool    *pool[D]
	unhook  func()
	wakeAt  time.Time   // zero = never
	woken   atomic.Bool // a commit was recorded; further commits are not, until this is cleared
	asleep  bool
	removed bool
	work    sync.WaitGroup
}

// DB returns its handle.
func (d *Database[D]) DB() *core.DB { return (*core.DB)(d.Handle.DB()) }

// Asleep reports whether it belongs to the scheduler. mu must be held.
func (d *Database[D]) Asleep() bool { return d.asleep }

// Removed reports whether it has left the scheduler. mu must be held.
func (d *Database[D]) Removed() bool { return d.removed }

// Twin returns another database that shares its connection pool, if any. Config.Join may call it. mu must be held.
func (d *Database[D]) Twin() (other D, found bool) {
	for twin := range d.pool.databases {
		if twin != d {
			return twin.Own, true
		}
	}
	return other, false
}

// pool holds the databases that share a connection pool. It is in Scheduler.next unless it is empty.
type pool[D any] struct {
	databases map[*Database[D]]bool
	state     poolState
	index     int           // index in Scheduler.next
	at        time.Time     // of the next visit: when a poll or a database is due
	pollAt    time.Time     // of the next poll
	wait      time.Duration // wait between polls, before jitter
	again     bool          // poll again immediately after the poll in flight
	breaker   trouble.Breaker
}

type poolState int

const (
	scheduled poolState = iota // a poll is due at pool.pollAt
	waiting                    // is in Scheduler.waiting
	polling
)

// name returns the name for the log. mu must be held.
func (p *pool[D]) name() (name string, logger watermill.LoggerAdapter) {
	for d := range p.databases {
		if name == "" || d.Key < name {
			name, logger = d.Key, d.Logger
		}
	}
	if n := len(p.databases); n > 1 {
		name = fmt.Sprintf("%s and %d more with the same DSN", name, n-1)
	}
	return name, logger
}

// Sync updates the databases to match the fleet. It takes mu.
func (s *Scheduler[D]) Sync() {
	keys := s.cfg.Fleet.Keys()
	s.cfg.Mu.Lock()
	defer s.cfg.Mu.Unlock()
	if s.ended {
		return
	}
	for _, d := range s.databases {
		select {
		case <-d.Handle.Done():
			s.remove(d)
		default:
		}
	}
	for _, key := range keys {
		if s.databases[key] == nil {
			if handle, err := s.cfg.Fleet.Acquire(key); err == nil { // otherwise it was just removed
				s.join(key, handle)
			}
		}
	}
}

// join must be called with mu held.
func (s *Scheduler[D]) join(key string, handle *fleet.Handle) {
	d := &Database[D]{Key: key, Handle: handle, asleep: true}
	d.Logger = d.DB().Logger(s.cfg.Logger)
	shared := d.DB().Pool()
	if d.pool = s.pools[shared]; d.pool == nil {
		// Cause: the database.
		// Cure: the Group retries it.
		breaker := trouble.Breaker{What: "polling a database"}
		d.pool = &pool[D]{databases: map[*Database[D]]bool{}, breaker: breaker}
	}
	var err error
	if d.Own, err = s.cfg.Join(d); err != nil {
		handle.Release()
		return
	}
	if s.pools[shared] == nil {
		s.pools[shared] = d.pool
		heap.Push(&s.next, d.pool)
	}
	d.pool.databases[d] = true
	s.databases[key] = d
	s.pollIn(d.pool, time.Until(d.pool.breaker.Until()))
	d.unhook = d.DB().OnCommit(func(n core.Notification) {
		if s.cfg.Concerns(n) && d.woken.CompareAndSwap(false, true) {
			s.wokenMu.Lock()
			s.woken = append(s.woken, d)
			s.wokenMu.Unlock()
			s.Signal()
		}
	})
}

// remove must be called with mu held.
func (s *Scheduler[D]) remove(d *Database[D]) {
	delete(s.databases, d.Key)
	d.unhook()
	d.removed, d.asleep = true, false
	if delete(d.pool.databases, d); len(d.pool.databases) == 0 {
		delete(s.pools, d.DB().Pool())
		heap.Remove(&s.next, d.pool.index)
	}
	s.cfg.Removed(d.Own)
	s.work.Go(func() {
		d.work.Wait()
		d.Handle.Release()
	})
}

// Go starts work for a database that was not removed. Run does not return before it ends, and the handle stays open.
// mu must be held.
func (s *Scheduler[D]) Go(d *Database[D], fn func()) {
	d.work.Add(1)
	s.work.Go(func() {
		defer d.work.Done()
		fn()
	})
}

// Wake wakes a sleeping database, unless it is skipped. mu must be held.
func (s *Scheduler[D]) Wake(d *Database[D]) { s.wake(d, time.Now()) }

func (s *Scheduler[D]) wake(d *Database[D], now time.Time) {
	if d.asleep && !now.Before(d.SkipUntil) && s.ctx.Err() == nil {
		d.asleep = false
		s.cfg.Woken(s.ctx, d.Own)
	}
}

// WakeAt sets when to wake a database without a poll; zero = never. mu must be held.
func (s *Scheduler[D]) WakeAt(d *Database[D], at time.Time) {
	d.wakeAt = at
	if d.asleep && !at.IsZero() && at.Before(d.pool.at) {
		s.visit(d.pool)
	}
}

// Sleep returns a database to the scheduler, which polls it after the given time at the latest, unless polls of its
// pool fail. mu must be held.
func (s *Scheduler[D]) Sleep(d *Database[D], in time.Duration) {
	if d.removed {
		return
	}
	d.asleep = true
	d.woken.Store(false)
	d.pool.wait = 0
	s.pollIn(d.pool, max(in, time.Until(d.pool.breaker.Until())))
}

// Poll makes the scheduler poll a database immediately if it is asleep, even if it was skipped. mu must be held.
func (s *Scheduler[D]) Poll(d *Database[D]) {
	if !d.removed {
		d.SkipUntil = time.Time{}
		s.pollIn(d.pool, 0)
	}
}
