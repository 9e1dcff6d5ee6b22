//go:build unix

package integration_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// chaosPlan is how long to go on, and what decides which fault is next, in which process and for how long. The seed
// repeats the plan, and not the moments at which processes on a real machine meet it.
type chaosPlan struct {
	length time.Duration
	seed   uint64
	pause  time.Duration // between faults
	kinds  []chaosFault
	forget bool // published messages are deleted soon, so that the size of the tables comes to rest
}

// chaosPlanned reads "1h", "1h 17" or "1h 17 soak": a length, a seed, and a word for faults that only stop processes
// now and then.
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

// TestChaos has an outbox, an inbox, a queue and a subscriber of JetStream work on one database with a synchronous
// replica, through a proxy and PgBouncer, while processes, servers, connections, the disk and the clock fail, one after
// another and two at a time. A ledger outside of all of them knows what was committed, published and applied. Each run
// of the tests has a few faults; OUTBOX_CHAOS says how long to go on with all of them, and make chaos sets it.
func TestChaos(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	plan := chaosPlanned(t, os.Getenv("OUTBOX_CHAOS"))
	c := newChaos(t, plan)
	stop := c.load()
	defer stop()
	c.works("at the beginning")
	for begun, n := time.Now(), 0; time.Since(begun) < plan.length || n < len(plan.kinds); n++ {
		kind := plan.kinds[n%len(plan.kinds)] // each once, and then any
		if n >= len(plan.kinds) {
			kind = plan.kinds[c.rng.IntN(len(plan.kinds))]
		}
		c.inject(kind)
		took := c.works("after " + kind.name)
		f := c.faults[kind.name]
		f.slowest = max(f.slowest, took)
		t.Logf("%s: %s, and all work after %s", time.Since(begun).Round(time.Second), kind.name,
			took.Round(100*time.Millisecond))
		if n%5 == 4 && !plan.forget {
			c.check(fmt.Sprintf("after %d faults", n+1))
		}
		c.wait(plan.pause)
	}
	stop()
	c.settles()
	report := c.report()
	t.Log("\n" + report)
	if file := os.Getenv("OUTBOX_CHAOS_REPORT"); file != "" {
		require.NoError(t, os.WriteFile(file, []byte(report), 0o644))
	}
}
