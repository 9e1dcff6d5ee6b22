//go:build unix

package integration_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/services"
)

// chaosFault is one that can be injected: do returns when it is over, and has hold called while it lasts.
type chaosFault struct {
	name string
	do   func(c *chaos, hold func(least, most time.Duration)) (injected bool)
}

// faulted is what became of a fault.
type faulted struct {
	times   int
	slowest time.Duration // until all worked again
}

var (
	chaosKills = []chaosFault{
		{"service killed", (*chaos).killWorker}, {"queue process killed", (*chaos).killQueue},
		{"reader killed", (*chaos).killReader},
	}
	chaosStops = []chaosFault{
		{"service stopped", (*chaos).stopWorker}, {"queue process stopped", (*chaos).stopQueue},
		{"reader stopped", (*chaos).stopReader},
	}
	chaosServers = []chaosFault{
		{"Postgres killed", (*chaos).killPostgres}, {"failover to the replica", (*chaos).failOver},
		{"replica killed", (*chaos).killStandby},
		{"connections cut", (*chaos).cutConnections}, {"connections half open", (*chaos).halfOpen},
		{"PgBouncer killed", (*chaos).killPooler}, {"NATS restarted", (*chaos).restartNATS},
		{"publishers' broker away", (*chaos).takeBroker},
		{"disk full", (*chaos).fillDisk}, {"clock jumps", (*chaos).jump},
	}
	chaosFaults = append(append(append([]chaosFault{}, chaosServers...), chaosKills...), chaosStops...)
	// chaosInShort are those that cost little time.
	chaosInShort = []chaosFault{
		{"service killed", (*chaos).killWorker}, {"Postgres killed", (*chaos).killPostgres},
		{"failover to the replica", (*chaos).failOver}, {"PgBouncer killed", (*chaos).killPooler},
	}
)

// inject has a fault happen; while one of a server lasts, half of the time one of a process does as well.
func (c *chaos) inject(kind chaosFault) {
	c.t.Helper()
	c.told.Lock()
	c.under = append(c.under, stretch{from: time.Now()})
	last := len(c.under) - 1
	c.told.Unlock()
	injected := kind.do(c, func(least, most time.Duration) {
		length := least + time.Duration(c.rng.Int64N(int64(most-least)))
		begun := time.Now()
		if other := c.rng.IntN(2 * len(chaosStops)); other < len(chaosStops) && len(c.plan.kinds) == len(chaosFaults) {
			chaosStops[other].do(c, func(time.Duration, time.Duration) { time.Sleep(time.Second) })
			c.count(chaosStops[other].name)
		}
		time.Sleep(length - time.Since(begun))
	})
	if injected {
		c.count(kind.name)
	} else {
		c.count(kind.name).times = 0
	}
	c.told.Lock()
	c.under[last].to = time.Now()
	c.told.Unlock()
}

func (c *chaos) count(name string) *faulted {
	f := c.faults[name]
	if f == nil {
		f = &faulted{}
		c.faults[name] = f
	}
	f.times++
	return f
}

func (c *chaos) killWorker(func(time.Duration, time.Duration)) bool {
	i := c.rng.IntN(len(c.forwarding))
	c.forwarding[i].kill()
	replace(c, c.forwarding, i, c.start(c.worker(c.forwarding[i].cfg.Handle)))
	return true
}

func (c *chaos) killQueue(func(time.Duration, time.Duration)) bool {
	i := c.rng.IntN(len(c.queueing))
	c.queueing[i].kill()
	replace(c, c.queueing, i, c.startQueue())
	return true
}

func (c *chaos) killReader(func(time.Duration, time.Duration)) bool {
	i := c.rng.IntN(len(c.reading))
	c.reading[i].kill()
	replace(c, c.reading, i, c.inbound.spawn(c.inbound.config()))
	return true
}

func replace[P any](c *chaos, all []P, i int, by P) {
	c.live.Lock()
	defer c.live.Unlock()
	all[i] = by
}

// stop stops a process until after its leases, or a little before their end.
func (c *chaos) stop(p *os.Process, hold func(time.Duration, time.Duration)) bool {
	require.NoError(c.t, p.Signal(syscall.SIGSTOP))
	hold(time.Second, 6*time.Second)
	require.NoError(c.t, p.Signal(syscall.SIGCONT))
	return true
}

func (c *chaos) stopWorker(hold func(time.Duration, time.Duration)) bool {
	return c.stop(c.forwarding[c.rng.IntN(len(c.forwarding))].cmd.Process, hold)
}

func (c *chaos) stopQueue(hold func(time.Duration, time.Duration)) bool {
	return c.stop(c.queueing[c.rng.IntN(len(c.queueing))].cmd.Process, hold)
}

func (c *chaos) stopReader(hold func(time.Duration, time.Duration)) bool {
	return c.stop(c.reading[c.rng.IntN(len(c.reading))].cmd.Process, hold)
}

func (c *chaos) killPostgres(hold func(time.Duration, time.Duration)) bool {
	require.NoError(c.t, c.primary.Kill())
	hold(100*time.Millisecond, 3*time.Second)
	c.revive(c.primary)
	return true
}

// revive starts a server again, whatever it is doing.
func (c *chaos) revive(server *services.Postgres) {
	c.t.Helper()
	c.inServers(func() error { return server.Restart(c.t.Context()) })
}

func (c *chaos) killStandby(hold func(time.Duration, time.Duration)) bool {
	if c.standby == nil {
		return false
	}
	require.NoError(c.t, c.standby.Kill())
	hold(time.Second, 4*time.Second)
	c.revive(c.standby)
	return true
}

// failOver has the replica take over, without those commits that nobody was told of, and gets it a replica.
func (c *chaos) failOver(hold func(time.Duration, time.Duration)) bool {
	if c.standby == nil {
		return false
	}
	h := newPgxHandle(c.t, c.primary.URL())
	c.inSync(h)
	require.NoError(c.t, c.primary.Kill())
	h.pool.Close()
	hold(100*time.Millisecond, 2*time.Second)
	require.NoError(c.t, c.standby.Promote(c.t.Context()))
	old := c.primary
	c.primary = c.standby
	c.proxy.lead(c.t, c.primary.URL())
	c.proxy.cut()
	c.inServers(old.Close)
	c.follow()
	return true
}

func (c *chaos) cutConnections(hold func(time.Duration, time.Duration)) bool {
	for range 3 {
		c.proxy.cut()
		hold(100*time.Millisecond, time.Second)
	}
	return true
}

// halfOpen has connections say nothing, and then ends them or goes on.
func (c *chaos) halfOpen(hold func(time.Duration, time.Duration)) bool {
	c.proxy.freeze()
	hold(time.Second, 8*time.Second)
	if c.rng.IntN(2) == 0 {
		c.proxy.cut()
	}
	c.proxy.thaw()
	return true
}

func (c *chaos) killPooler(hold func(time.Duration, time.Duration)) bool {
	require.NoError(c.t, c.pooler.Kill())
	hold(100*time.Millisecond, 3*time.Second)
	require.NoError(c.t, c.pooler.Restart(c.t.Context()))
	return true
}

func (c *chaos) restartNATS(hold func(time.Duration, time.Duration)) bool {
	require.NoError(c.t, c.nats.Stop())
	hold(100*time.Millisecond, 5*time.Second)
	require.NoError(c.t, c.nats.Restart(c.t.Context()))
	eventually(c.t, func() bool { _, err := c.inbound.js.StreamInfo(c.inbound.stream); return err == nil }, "NATS answers")
	return true
}

func (c *chaos) takeBroker(hold func(time.Duration, time.Duration)) bool {
	away := make(chan struct{})
	c.outage.Store(&away)
	hold(time.Second, 5*time.Second)
	close(away)
	return true
}

// fillDisk leaves no room on the file system of both servers, and brings back those that did not survive.
func (c *chaos) fillDisk(hold func(time.Duration, time.Duration)) bool {
	if c.room == "" {
		return false
	}
	balloon, err := os.Create(filepath.Join(c.room, "balloon"))
	require.NoError(c.t, err)
	for block := make([]byte, 1<<20); err == nil; {
		_, err = balloon.Write(block)
	}
	require.ErrorIs(c.t, err, syscall.ENOSPC)
	hold(2*time.Second, 6*time.Second)
	require.NoError(c.t, errors.Join(balloon.Close(), os.Remove(balloon.Name())))
	if c.standby != nil {
		c.revive(c.standby)
	}
	c.revive(c.primary)
	return true
}

// jump puts the clock of the database ahead, by up to ten minutes: all leases are over at once.
func (c *chaos) jump(hold func(time.Duration, time.Duration)) bool {
	if c.clock == "" {
		return false
	}
	c.ahead += time.Duration(1+c.rng.IntN(600)) * time.Second
	require.NoError(c.t, os.WriteFile(c.clock, []byte("+"+strconv.Itoa(int(c.ahead.Seconds()))), 0o644))
	hold(2*time.Second, 4*time.Second)
	return true
}
