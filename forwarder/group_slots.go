package forwarder

import (
	"context"
	"slices"
	"time"
)

// How a Group shares its slots for forwarders: databases wait in a queue, and take turns if there are more than slots.

// woken queues a database whose forwarder must start. mu must be held.
func (g *Group) woken(_ context.Context, d *database) {
	g.queue = append(g.queue, d)
	g.scheduler.Signal()
}

// pass starts the forwarders for which there are slots, and stops others if there are not enough. It returns the time
// until it must be called again. mu must be held.
func (g *Group) pass(ctx context.Context, now time.Time) time.Duration {
	g.queue = slices.DeleteFunc(g.queue, func(d *database) bool { return d.Removed() })
	n := max(0, min(len(g.queue), g.free(now)))
	for _, d := range g.queue[:n] {
		g.start(ctx, d, now)
	}
	if g.queue = slices.Delete(g.queue, 0, n); len(g.queue) == 0 {
		return time.Hour
	}
	g.makeRoom(now)
	return checkInterval
}

// free returns how many forwarders may be started. Those that wait for their databases use no slot. mu must be held.
func (g *Group) free(now time.Time) int {
	if len(g.queue) == 0 {
		return 0
	}
	free := g.cfg.MaxActive
	for d := range g.active {
		if !d.stuck(now) {
			free--
		}
	}
	return min(free, stuckForwarders*g.cfg.MaxActive-len(g.active))
}

// start must be called with mu held.
func (g *Group) start(ctx context.Context, d *database, now time.Time) {
	d.started, d.changed = now, now
	d.stop, d.stopped = make(chan struct{}), false
	g.active[d] = true
	g.scheduler.Go(d.Database, func() { g.run(ctx, d) })
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
