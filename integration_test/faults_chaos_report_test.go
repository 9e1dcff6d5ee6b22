//go:build unix

package integration_test

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
)

// sample is what is measured now and then: memory of the processes, connections, sizes of tables, and what waits.
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

// pids are the processes at this moment.
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

// report counts what became of all messages, in a table, and fails the test unless there are noughts where there must
// be.
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
		if !c.broker.letters[uuid] {
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

// chart draws each measure over time, from its least to its most.
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
