package integration_test

import (
	"context"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
)

// orderTime returns the duration of the writers of one order test.
func orderTime(short time.Duration) time.Duration {
	if os.Getenv("OUTBOX_LONG") != "" {
		return 10 * short
	}
	return short
}

func manyConns(cfg *pgxpool.Config) { cfg.MaxConns = 100 }

// orderRun is one run of writers against forwarders.
type orderRun struct {
	name     string
	writers  int
	time     time.Duration
	prepared bool
	pooled   bool            // the forwarders connect through PgBouncer, where LISTEN does not work
	started  func(w handle)  // called when the forwarders run
	until    <-chan struct{} // ends the run early
}

// startDurable starts a server that flushes to disk as in production, so commits take as long.
var startDurable = shared(func(ctx context.Context) (*services.Postgres, error) {
	return services.StartPostgres(ctx, services.Options{
		PostgresSettings: []string{"max_prepared_transactions=100", "max_connections=600"},
	})
})

// newOrderDatabase returns a migrated database for an order test, whose long transactions delay only other order tests.
func newOrderDatabase(t testing.TB) (url string) {
	t.Helper()
	server, err := startDurable()
	require.NoError(t, err)
	url = newDatabaseOf(t, server)
	require.NoError(t, makeTables(t.Context(), newPgxHandle(t, url).db))
	return url
}

// TestOrder tests the order of keys under all conditions at once.
func TestOrder(t *testing.T) {
	t.Parallel()
	for _, run := range []orderRun{
		{name: "16 writers", writers: 16, time: orderTime(3 * time.Second)},
		{name: "80 writers, prepared commits", writers: 80, time: orderTime(6 * time.Second), prepared: true},
	} {
		t.Run(run.name, func(t *testing.T) {
			if run.name != "16 writers" {
				extended(t)
			}
			parallel(t)
			url := newOrderDatabase(t)
			writer := pgxHandle(t, "writer", url, manyConns)
			if run.prepared && writer.count(t, "select current_setting('max_prepared_transactions')::int") == 0 {
				t.Skip("max_prepared_transactions is 0 on this server")
			}
			sabotage := &fetchSaboteur{every: 20}
			reader := pgxHandle(t, "reader", url, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = sabotage })
			l := newLedger(true)
			checkOrder(t, run, writer, reader, l)
			t.Log(sabotage)
			assert.NotZero(t, sabotage.failed.Load())
		})
	}
}

// TestOrderOverLibPQ is TestOrder with database/sql and lib/pq, where the forwarder polls.
func TestOrderOverLibPQ(t *testing.T) {
	extended(t)
	parallel(t)
	url := newOrderDatabase(t)
	writer, reader := newSQLHandle(t, "postgres", url), newSQLHandle(t, "postgres", url)
	checkOrder(t, orderRun{writers: 16, time: orderTime(3 * time.Second)}, writer, reader, newLedger(true))
}

// TestOrderThroughPgBouncer is TestOrder with writers and forwarders behind PgBouncer in transaction mode.
func TestOrderThroughPgBouncer(t *testing.T) {
	extended(t)
	parallel(t)
	url := newOrderDatabase(t)
	bouncer := throughPgBouncer(t, url)
	exec := func(cfg *pgxpool.Config) { cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec }
	writer := pgxHandle(t, "writer", bouncer, exec)
	reader := pgxHandle(t, "reader", bouncer, exec)
	checkOrder(t, orderRun{writers: 12, pooled: true, time: orderTime(3 * time.Second)}, writer, reader, newLedger(true))
}

func checkOrder(t *testing.T, run orderRun, writer, reader handle, l *ledger) {
	run.write(t, writer, reader, l)
	stopped := time.Now()
	l.allArrive(t)
	committed, calls, repeated := l.total()
	t.Logf("%d committed, %d published, %d repeated; the last arrived %s after the writers stopped",
		committed, calls, repeated, time.Since(stopped).Round(time.Millisecond))
	assert.Empty(t, l.faults())
	assert.Greater(t, committed, enough)
}

// enough is the number of commits that make an order test meaningful. A busy machine gets more time for them.
const enough = 1000

// write runs the writers, and the forwarders until the test ends.
func (run orderRun) write(t *testing.T, writer, reader handle, l *ledger) {
	t.Helper()
	w := newOrderWriters(t, writer, l, 1000)
	w.prepared = run.prepared
	ctx, stop := context.WithCancel(context.Background())
	var forwarders sync.WaitGroup
	t.Cleanup(func() {
		stop()
		forwarders.Wait()
	})
	log := newLogCapture(t)
	t.Cleanup(func() { assert.Zero(t, log.count("message became pending again"), "the sweep had to find a message") })
	for _, life := range []time.Duration{time.Hour, 1500 * time.Millisecond, 700 * time.Millisecond} {
		forwarders.Go(func() { runForwarders(ctx, t, reader, l, run.pooled, life, log) })
	}
	if run.started != nil {
		run.started(writer)
	}
	writing, done := context.WithTimeout(context.Background(), run.time+2*patience)
	defer done()
	go func() {
		defer done()
		over := time.After(run.time)
		for {
			select {
			case <-over:
				if committed, _, _ := l.total(); committed > enough {
					return
				}
				over = time.After(100 * time.Millisecond)
			case <-run.until:
				return
			case <-writing.Done():
				return
			}
		}
	}()
	w.run(writing, run.writers)
	t.Log(w.kind.count)
}

// runForwarders runs one forwarder after another, each for some time.
func runForwarders(
	ctx context.Context, t *testing.T, h handle, l *ledger, pooled bool, life time.Duration, log watermill.LoggerAdapter,
) {
	cfg := orderConfig()
	cfg.DisableListen = pooled
	for ctx.Err() == nil {
		f, err := forwarder.New(h.db, l, cfg, log)
		if !assert.NoError(t, err) {
			return
		}
		alive, end := context.WithTimeout(ctx, life/2+rand.N(life))
		if err := f.Run(alive); alive.Err() == nil {
			assert.NoError(t, err)
		}
		end()
	}
}
