//go:build unix

package integration_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

// chaosPlan is the duration of a run and the random source for the next fault, its process and its length. The same
// seed repeats the plan, but not the moments at which it meets processes on a real machine.
type chaosPlan struct {
	length time.Duration
	seed   uint64
	pause  time.Duration // between faults
	kinds  []chaosFault
	forget bool // published messages are deleted soon, so that the tables stop growing
}

// chaosPlanned parses "1h", "1h 17" or "1h 17 soak": a length, a seed, and a word that limits faults to stopping
// processes now and then.
func chaosPlanned(t testing.TB, asked string) chaosPlan {
	t.Helper()
	p := chaosPlan{
		length: 15 * time.Second, seed: rand.Uint64N(1_000_000), pause: time.Second, kinds: chaosInShort,
	}
	words := strings.Fields(asked)
	if len(words) > 0 {
		var err error
		p.length, err = time.ParseDuration(words[0])
		require.NoError(t, err)
		p.kinds, p.pause = chaosFaults, 3*time.Second
	}
	if len(words) > 1 {
		var err error
		p.seed, err = strconv.ParseUint(words[1], 10, 64)
		require.NoError(t, err)
	}
	if len(words) > 2 && words[2] == "soak" {
		p.kinds, p.pause, p.forget = chaosStops, 20*time.Second, true
	}
	return p
}

// TestChaos runs an outbox, an inbox, a queue and a JetStream subscriber on one database with a synchronous replica,
// through a proxy and PgBouncer, while processes, servers, connections, the disk and the clock fail, one after another
// and two at a time. A ledger outside all of them records which messages were committed, published and applied. Each
// run of the tests has a few faults; OUTBOX_CHAOS, set by make chaos, is the duration of a run with all of them.
func TestChaos(t *testing.T) {
	extended(t)
	parallel(t)
	plan := chaosPlanned(t, os.Getenv("OUTBOX_CHAOS"))
	c := newChaos(t, plan)
	stop := c.load()
	defer stop()
	c.works("at the beginning")
	for begun, n := time.Now(), 0; time.Since(begun) < plan.length || n < len(plan.kinds); n++ {
		kind := plan.kinds[n%len(plan.kinds)] // each once, then any
		if n >= len(plan.kinds) {
			kind = plan.kinds[c.rng.IntN(len(plan.kinds))]
		}
		c.inject(kind)
		took := c.works("after " + kind.name)
		f := c.faults[kind.name]
		f.slowest = max(f.slowest, took)
		t.Logf("%s: %s; everything works again after %s", time.Since(begun).Round(time.Second), kind.name,
			took.Round(100*time.Millisecond))
		if n%5 == 4 && !plan.forget {
			c.check(fmt.Sprintf("after %d faults", n+1))
		}
		time.Sleep(plan.pause)
	}
	stop()
	c.settles()
	report := c.report()
	t.Log("\n" + report)
	if file := os.Getenv("OUTBOX_CHAOS_REPORT"); file != "" {
		require.NoError(t, os.WriteFile(file, []byte(report), 0o644))
	}
}

// sample is a periodic measurement: memory of the processes, connections, sizes of tables, and waiting messages.
type sample map[string]float64

var sampled = []string{"memory, MiB", "connections", "outbox, MiB", "its indexes, MiB", "queue, MiB", "pending"}

func (c *chaos) sample() {
	s := sample{}
	for _, p := range c.pids() {
		if statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p)); err == nil {
			if pages, err := strconv.Atoi(strings.Fields(string(statm))[1]); err == nil {
				s["memory, MiB"] += float64(pages*os.Getpagesize()) / (1 << 20)
			}
		}
	}
	var outbox, indexes, queue, conns, pending float64
	if c.h.pool.QueryRow(c.t.Context(), `select pg_table_size('outbox'), pg_indexes_size('outbox'),
		pg_total_relation_size('inbox_queue'), (select count(*) from pg_stat_activity where backend_type = 'client backend'),
		(select count(*) from outbox where published_at is null)`).Scan(&outbox, &indexes, &queue, &conns, &pending) != nil {
		return // the next one
	}
	s["outbox, MiB"], s["its indexes, MiB"], s["queue, MiB"] = outbox/(1<<20), indexes/(1<<20), queue/(1<<20)
	s["connections"], s["pending"] = conns, pending
	c.told.Lock()
	defer c.told.Unlock()
	c.samples = append(c.samples, s)
}

// pids returns the current processes.
func (c *chaos) pids() (all []int) {
	c.live.Lock()
	defer c.live.Unlock()
	for _, p := range c.forwarding {
		all = append(all, p.cmd.Process.Pid)
	}
	for _, p := range c.queueing {
		all = append(all, p.cmd.Process.Pid)
	}
	for _, p := range c.reading {
		all = append(all, p.cmd.Process.Pid)
	}
	return all
}

// report prints a table with the outcomes of all messages, and fails the test if a count that must be zero is not.
func (c *chaos) report() string {
	var b strings.Builder
	commit, _ := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	fmt.Fprintf(&b, "seed %d, commit %s, %s, %s\n\n", c.plan.seed, bytes.TrimSpace(commit),
		time.Since(c.begun).Round(time.Second), strings.Fields(value[string](c.t, c.h, `select version()`))[1])
	fmt.Fprintf(&b, "%-24s %8s %8s %8s %8s %8s %8s\n", "", "messages", "lost", "invented", "twice", "disorder", "copies")
	row := func(name string, numbers ...int) {
		fmt.Fprintf(&b, "%-24s", name)
		for i, n := range numbers {
			fmt.Fprintf(&b, " %8d", n)
			if i > 0 && i < 5 {
				assert.Zero(c.t, n, "%s: %s", name, []string{"", "lost", "invented", "twice", "disorder"}[i])
			}
		}
		b.WriteString("\n")
	}
	minus := func(all, without map[string]bool) (n int) {
		for id := range all {
			if !without[id] {
				n++
			}
		}
		return n
	}
	count := func(query string) int { return c.h.count(c.t, query) }

	arrived := map[string]bool{}
	for uuid := range c.broker.arrivals() {
		if !c.broker.deadLetters[uuid] {
			arrived[uuid] = true
		}
	}
	events := set(column[string](c.t, c.h, `select uuid from events`))
	row("outbox, published", len(events), minus(events, arrived), minus(arrived, events), 0, len(c.broker.wrong),
		c.broker.duplicates())
	acked, booked := map[string]bool{}, set(column[string](c.t, c.h, `select order_id from bookings`))
	dead := set(column[string](c.t, c.h, `select message_id from inbox where dead_at is not null`))
	for id := range c.source.ackedOrders() {
		acked[id] = true
	}
	handled := maps.Clone(booked)
	maps.Copy(handled, dead)
	row("inbox, handled", len(acked), minus(acked, handled), minus(handled, acked),
		count(`select count(*) from (select from bookings group by order_id having count(*) > 1) t`), 0, c.source.copies)
	row("queue, handled", c.enqueued,
		c.enqueued-count(`select count(distinct message_id) from applied`),
		count(`select count(distinct message_id) from applied a where not exists (select from inbox_queue q
			where q.message_id = a.message_id)`),
		count(`select count(*) from (select from applied where topic <> 'calls' group by message_id having count(*) > 1) t`),
		count(`select count(*) from stolen`),
		count(`select count(*) - count(distinct message_id) from applied where topic = 'calls'`))
	row("JetStream, handled", c.inbound.settled,
		c.inbound.settled-count(`select count(distinct (key, seq)) from ledger`), 0,
		count(`select count(*) - count(distinct (key, seq)) from ledger`), c.inbound.disorder(), 0)
	fmt.Fprintf(&b, "\nCopies that no fault explains: %d. Of the outbox and the inbox, a copy is one more delivery to\n"+
		"the broker or the handler; of the queue, one more call of a detached handler. Disorder of the queue\n"+
		"is two owners at once.\n", len(c.unexplained))
	assert.Empty(c.t, c.unexplained)

	fmt.Fprintf(&b, "\n%-24s %8s %20s\n", "fault", "times", "all work again after")
	for _, name := range slices.Sorted(maps.Keys(c.faults)) {
		f := c.faults[name]
		fmt.Fprintf(&b, "%-24s %8d %20s\n", name, f.times, f.slowest.Round(100*time.Millisecond))
	}
	b.WriteString("\n" + chart(c.samples))
	return b.String()
}

// chart draws each measure over time, from its minimum to its maximum.
func chart(samples []sample) string {
	var b strings.Builder
	for _, name := range sampled {
		if len(samples) == 0 {
			break
		}
		least, most := samples[0][name], samples[0][name]
		for _, s := range samples {
			least, most = min(least, s[name]), max(most, s[name])
		}
		fmt.Fprintf(&b, "%-18s ", name)
		for _, s := range samples {
			level := 0
			if most > least {
				level = int((s[name] - least) / (most - least) * 7)
			}
			b.WriteRune([]rune("▁▂▃▄▅▆▇█")[level])
		}
		fmt.Fprintf(&b, " %.1f to %.1f, at last %.1f\n", least, most, samples[len(samples)-1][name])
	}
	return b.String()
}

// chaosFault is a fault to inject: do returns when it is over, and calls hold while it lasts.
type chaosFault struct {
	name string
	do   func(c *chaos, hold func(least, most time.Duration)) (injected bool)
}

// faulted is the outcome of a kind of fault.
type faulted struct {
	times   int
	slowest time.Duration // until everything worked again
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
	// chaosInShort are the faults that take little time.
	chaosInShort = []chaosFault{
		{"service killed", (*chaos).killWorker}, {"Postgres killed", (*chaos).killPostgres},
		{"failover to the replica", (*chaos).failOver}, {"PgBouncer killed", (*chaos).killPooler},
		{"service stopped", (*chaos).stopWorker},
	}
)

// inject causes a fault; half of the time a fault of a server is combined with one of a process.
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

// stop stops a process beyond its leases, or until shortly before their end.
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

// revive starts a server again, whatever its state.
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

// failOver promotes the replica, without commits that were not acknowledged, and starts a new replica for it.
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

// halfOpen silences connections, and then cuts or resumes them.
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

// fillDisk fills the file system of both servers, and restarts those that crash.
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

// jump advances the clock of the database by up to ten minutes, which expires all leases.
func (c *chaos) jump(hold func(time.Duration, time.Duration)) bool {
	if c.clock == "" {
		return false
	}
	c.ahead += time.Duration(1+c.rng.IntN(600)) * time.Second
	require.NoError(c.t, os.WriteFile(c.clock, []byte("+"+strconv.Itoa(int(c.ahead.Seconds()))), 0o644))
	hold(2*time.Second, 4*time.Second)
	return true
}
