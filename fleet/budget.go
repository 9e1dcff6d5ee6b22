package fleet

import (
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	turn          = 50 * time.Millisecond // for which a new connection is not closed for other callers
	searchForIdle = 20 * time.Millisecond // between searches while a caller waits
	longWait      = time.Second           // before a wait is logged
	longWaitLine  = time.Minute           // between such log lines
	hangUp        = time.Second           // limit for closing a connection
)

// source is the pool of a DSN, for which connections are counted. Its name is the key of its first target.
type source struct {
	name    string
	failing bool // the last attempt to connect failed; guarded by budget.mu
}

// errNoSlot is the reason why a connection was not dialled.
// Cause: MaxConns connections are in use, by the databases in the error.
// Cure: raise it, or lower concurrency.
var errNoSlot = errors.New("fleet: no connection available")

// budget holds the slots for the connections of all pools. nil means no limit.
type budget struct {
	most       int
	logger     watermill.LoggerAdapter
	suspects   chan struct{} // slots for connecting to databases whose last attempt failed
	makingRoom sync.Mutex    // held by the caller that looks for an idle connection

	mu       sync.Mutex
	used     map[*source]int
	free     int
	queue    list.List // of *waiter
	leaving  int       // connections being closed for waiting callers
	idle     list.List // of *idle, longest idle first
	where    map[*pgx.Conn]*list.Element
	loggedAt time.Time
}

// waiter waits for a slot.
type waiter struct {
	source *source
	ready  chan struct{} // closed when it has a slot
}

// idle is a connection that is idle or about to be.
type idle struct {
	pool *pgxpool.Pool
	slot *connSlot
}

func newBudget(most int, logger watermill.LoggerAdapter) *budget {
	if most < 0 {
		return nil
	}
	return &budget{
		most: most, free: most, logger: logger, suspects: make(chan struct{}, max(1, most/8)),
		used: map[*source]int{}, where: map[*pgx.Conn]*list.Element{},
	}
}

// take waits for a slot, until ctx ends.
func (b *budget) take(ctx context.Context, s *source) error {
	b.mu.Lock()
	if b.free > 0 {
		b.free--
		b.used[s]++
		b.mu.Unlock()
		return nil
	}
	w := &waiter{s, make(chan struct{})}
	e := b.queue.PushBack(w)
	b.mu.Unlock()

	begun := time.Now()
	tick := time.NewTicker(searchForIdle)
	defer tick.Stop()
	for {
		b.makeRoom()
		select {
		case <-w.ready:
			return nil
		case <-tick.C: // a connection may have become idle, or old enough to be closed
			if time.Since(begun) > longWait {
				b.logWait(s)
			}
		case <-ctx.Done():
			b.mu.Lock()
			defer b.mu.Unlock()
			select {
			case <-w.ready: // granted just now
				return nil
			default:
			}
			b.queue.Remove(e)
			return fmt.Errorf("%w for %q within %s: %s: %w",
				errNoSlot, s.name, time.Since(begun).Round(time.Millisecond), b.holders(), ctx.Err())
		}
	}
}

// give releases a slot.
func (b *budget) give(s *connSlot) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.leaving {
		s.leaving = false
		b.leaving--
	}
	if b.used[s.source]--; b.used[s.source] == 0 {
		delete(b.used, s.source)
	}
	first := b.queue.Front()
	if first == nil {
		b.free++
		return
	}
	w := b.queue.Remove(first).(*waiter)
	b.used[w.source]++
	close(w.ready)
}

// yields reports whether a connection must be closed for a waiting caller. mu must be held.
func (b *budget) yields(s *connSlot) bool {
	if b.queue.Len() <= b.leaving || s.leaving || time.Since(s.opened) < turn {
		return false
	}
	s.leaving = true
	b.leaving++
	return true
}

// released is called when a connection returns to its pool. It closes the connection if a caller waits for its slot.
func (b *budget) released(p *pgxpool.Pool, conn *pgx.Conn) {
	s := slotOf(conn)
	if s == nil || conn.IsClosed() || conn.PgConn().IsBusy() || conn.PgConn().TxStatus() != 'I' {
		return
	}
	b.mu.Lock()
	yields := b.yields(s)
	if !yields && b.where[conn] == nil { // makeRoom releases unused connections
		b.where[conn] = b.idle.PushBack(&idle{p, s})
	}
	b.mu.Unlock()
	if yields {
		b.forget(conn)
		shut(conn)
	}
}

// forget is called when a connection is taken from its pool, or closed.
func (b *budget) forget(conn *pgx.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.where[conn]; e != nil {
		b.idle.Remove(e)
		delete(b.where, conn)
	}
}

// makeRoom closes as many connections as callers wait for, the longest idle first.
func (b *budget) makeRoom() {
	if !b.makingRoom.TryLock() {
		return
	}
	defer b.makingRoom.Unlock()
	var pools []*pgxpool.Pool
	b.mu.Lock()
	for e := b.idle.Front(); e != nil && len(pools) < b.queue.Len()-b.leaving; e = e.Next() {
		i := e.Value.(*idle)
		if time.Since(i.slot.opened) >= turn && !slices.Contains(pools, i.pool) {
			pools = append(pools, i.pool)
		}
	}
	b.mu.Unlock()
	for _, p := range pools {
		for _, c := range p.AcquireAllIdle(context.Background()) {
			go c.Release() // released decides, and waits for the server if it closes the connection
		}
	}
}

// holders lists the databases that have the slots. mu must be held.
func (b *budget) holders() string {
	names := slices.SortedFunc(maps.Keys(b.used), func(x, y *source) int {
		return cmp.Or(cmp.Compare(b.used[y], b.used[x]), cmp.Compare(x.name, y.name))
	})
	const most = 5
	var parts []string
	for _, s := range names[:min(most, len(names))] {
		parts = append(parts, fmt.Sprintf("%q has %d", s.name, b.used[s]))
	}
	if len(names) > most {
		parts = append(parts, fmt.Sprintf("%d others have the rest", len(names)-most))
	}
	all := fmt.Sprintf("all %d connections of Config.MaxConns are in use", b.most)
	if b.most == 1 {
		all = "the only connection of Config.MaxConns is in use"
	}
	return fmt.Sprintf("%s (%s), callers waiting: %d", all, strings.Join(parts, ", "), b.queue.Len())
}

// logWait logs that a caller waits.
func (b *budget) logWait(s *source) {
	b.mu.Lock()
	if now := time.Now(); now.Sub(b.loggedAt) < longWaitLine {
		b.mu.Unlock()
		return
	} else {
		b.loggedAt = now
	}
	text := b.holders()
	b.mu.Unlock()
	b.logger.Info("waiting for a connection: raise MaxConns or lower concurrency",
		watermill.LogFields{"db": s.name, "connections": text})
}
