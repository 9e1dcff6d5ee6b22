package forwarder

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// jitter spreads events that would otherwise coincide: it returns d, varied by up to a fifth.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// schedule is the goroutine that decides which databases are polled and which forwarders run, until ctx ends.
func (g *Group) schedule(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	sync := time.NewTicker(g.cfg.IdlePollInterval)
	defer sync.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sync.C:
			g.sync()
		case <-timer.C:
		case <-g.now:
		}
		timer.Reset(g.pass(ctx, time.Now()))
	}
}

// pass starts everything that is due, and returns how long to sleep unless a signal arrives.
func (g *Group) pass(ctx context.Context, now time.Time) time.Duration {
	g.wokenMu.Lock()
	woken := g.woken
	g.woken = nil
	g.wokenMu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, d := range woken {
		if d.state == asleep { // otherwise it stays woken until it is asleep, so that commits do not signal
			d.woken.Store(false)
			g.rouse(d, now)
		}
	}
	wait := g.startPolls(ctx, now)
	for places := g.places(now); len(g.queue) > 0 && places > 0; places-- {
		d := g.queue[0]
		g.queue = g.queue[1:]
		if g.all[d.key] == d && d.state == queued {
			g.start(ctx, d, now)
		}
	}
	if len(g.queue) > 0 {
		g.makeRoom(now)
		wait = min(wait, checkInterval)
	}
	return wait
}

// startPolls starts the due polls for which there are slots. mu must be held.
func (g *Group) startPolls(ctx context.Context, now time.Time) (wait time.Duration) {
	for len(g.soonest) > 0 {
		s := g.soonest[0]
		if wait = s.pollAt.Sub(now); wait > 0 {
			return wait
		}
		suspect := s.breaker.Failures() > 0
		switch {
		case suspect && g.slow >= slowPolls:
			s.pollAt = now.Add(checkInterval)
			heap.Fix(&g.soonest, s.at)
			continue
		case suspect:
			g.slow++
		case g.polls >= pollsAtOnce:
			return time.Hour // the end of a poll signals
		default:
			g.polls++
		}
		heap.Pop(&g.soonest)
		s.polling, s.again = true, false
		g.begun++
		number := g.begun
		g.work.Go(func() { g.pollServer(ctx, s, number, suspect) })
	}
	return time.Hour
}

// places returns how many forwarders may be started. Those that wait for their databases use no slot. mu must be held.
func (g *Group) places(now time.Time) int {
	if len(g.queue) == 0 {
		return 0
	}
	places := g.cfg.MaxActive
	for d := range g.active {
		if !d.stuck(now) {
			places--
		}
	}
	return min(places, stuckForwarders*g.cfg.MaxActive-len(g.active))
}

// rouse starts the forwarder of a database when there is a free slot. mu must be held.
func (g *Group) rouse(d *database, now time.Time) {
	if d.state != asleep || d.leaving || g.all[d.key] != d || d.breaker.Open(now) && len(d.drains) == 0 {
		return // polls find the rest
	}
	d.state = queued
	g.queue = append(g.queue, d)
}

// start must be called with mu held.
func (g *Group) start(ctx context.Context, d *database, now time.Time) {
	d.state, d.started, d.changed = awake, now, now
	d.stop, d.stopped = make(chan struct{}), false
	g.active[d] = true
	g.work.Go(func() { g.run(ctx, d) })
}

// makeRoom stops as many forwarders as others wait for: first the idle ones, then those that have had their turn. mu
// must be held.
func (g *Group) makeRoom(now time.Time) {
	type candidate struct {
		d     *database
		quiet time.Duration
	}
	var all []candidate
	wanted := len(g.queue)
	for d := range g.active {
		switch {
		case d.stopped:
			if !d.stuck(now) { // otherwise its slot is already free
				wanted--
			}
		case d.engine != nil && len(d.drains) == 0:
			if m := d.engine.health(); m.quiet >= rest || now.Sub(d.started) >= turn {
				all = append(all, candidate{d, m.quiet})
			}
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		if a.quiet != b.quiet {
			return int(b.quiet - a.quiet)
		}
		return a.d.started.Compare(b.d.started)
	})
	for _, c := range all[:max(0, min(wanted, len(all)))] {
		c.d.end()
	}
}
