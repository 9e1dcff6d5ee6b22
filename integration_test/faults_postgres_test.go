//go:build unix

package integration_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPostgresKilled kills the server under load and brings it back. The worker processes recover by themselves.
func TestPostgresKilled(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	server := ownServer(t)
	w := newCrashWorld(t, newPgxHandle(t, server.URL()), 60)
	w.broker.answers(flaky)
	var workers []*worker
	for _, handle := range []string{"pgx", "sql-pgx", "sql-pq"} {
		workers = append(workers, w.start(childConfig{Handle: handle, Handlers: true, LeaseTTL: 2 * time.Second}))
	}
	stop := w.source.feed(5 * time.Millisecond)
	defer stop()
	works := func(round string) {
		t.Helper()
		for _, p := range workers {
			committed, settled := p.timesAt("committed"), p.timesAt("settled")
			eventually(t, func() bool { return p.timesAt("committed") > committed+5 && p.timesAt("settled") > settled+5 },
				"%s: %s handles, publishes and settles", round, p.cfg.Name)
		}
	}
	for i := range rounds(2, 30) {
		round := fmt.Sprintf("crash %d", i)
		works("before " + round)
		<-time.After(rand.N(200 * time.Millisecond))
		require.NoError(t, server.Kill())
		<-time.After(rand.N(500 * time.Millisecond))
		require.NoError(t, server.Restart(t.Context()))
		restarted := time.Now()
		w.h.pool.Reset()
		works("after " + round)
		t.Logf("%s: all work again after %s", round, time.Since(restarted).Round(time.Millisecond))
		w.check(round)
	}
	stop()
	w.finish()
	for _, p := range workers {
		p.shutDown()
	}
}
