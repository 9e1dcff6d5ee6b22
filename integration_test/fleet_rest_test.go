package integration_test

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestFleetAtRest measures what both Groups cost where nothing happens, in schemas that share a DSN: their own
// statements, as the pool sees them. OUTBOX_LONG measures 20, 100 and 400 schemas at the defaults.
func TestFleetAtRest(t *testing.T) {
	extended(t)
	noLeaks(t)
	sizes := []int{8}
	if long {
		sizes = []int{20, 100, 400}
	}
	all := newTenants(t, "rest", slices.Max(sizes))
	for _, n := range sizes {
		t.Run(fmt.Sprintf("%d schemas", n), func(sub *testing.T) { measureRest(sub, t, all[:n]) })
	}
}

func measureRest(t, labelled *testing.T, all []tenant) {
	seen := &restTracer{}
	cfg, err := pgxpool.ParseConfig(all[0].DSN)
	require.NoError(t, err)
	cfg.MaxConns, cfg.ConnConfig.Tracer = 16, seen
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	memory, goroutines := footprint()
	f := runFleet(t, fleet.Static(targetsOf(all...)...), fleet.Config{
		Open: func(_ context.Context, who fleet.Target) (*outbox.DB, func(), error) {
			db, err := outbox.FromPgx(pool, outbox.DBConfig{Name: who.Key, Tables: who.Tables}, nil)
			return db, nil, err
		},
	}, nil)
	var queues queue.GroupConfig
	var outboxes forwarder.GroupConfig
	looks, window := 10, time.Minute
	if !long {
		queues.Dispatcher.PollInterval = 20 * time.Millisecond
		outboxes.LookInterval, outboxes.IdleAfter = 50*time.Millisecond, 200*time.Millisecond
		window = 0
	}
	queues.Dispatcher.Handlers = map[string]queue.Handler{
		"events": {Handle: func(context.Context, *queue.Message) error { return nil }},
	}
	log := newLogCapture(t)
	runGroup(t, f, newFakeBroker(), outboxes, log)
	runQueueGroup(t, f, queues, log)
	untilRest(t, labelled, all)
	var took float64
	var count, texts map[string]int
	for cleans := true; cleans; { // a minute after the start queues are cleaned once more, and then every hour
		begun := seen.reset()
		time.Sleep(window) // what is measured
		eventually(t, func() bool {
			count, texts = seen.counts()
			return count[queueLooks] >= looks && count[outboxLooks] >= looks
		}, "all are looked at %d times", looks)
		took = time.Since(begun).Seconds()
		cleans = slices.ContainsFunc(slices.Collect(maps.Keys(texts)), func(text string) bool {
			return strings.HasPrefix(text, "WITH old AS")
		})
	}
	total := 0
	for _, n := range count {
		total += n
	}
	bytes, routines := footprint()
	schemas := float64(len(all))
	rate := func(n int) float64 { return float64(n) / took }
	t.Logf("at rest, both Groups: %.2f statements a second, of which %.2f look at all queues, %.2f at all outboxes, "+
		"and %.2f at one schema, %.4f for each; %.1f kB and %.2f goroutines for each",
		rate(total), rate(count[queueLooks]), rate(count[outboxLooks]), rate(count[oneSchema]),
		rate(count[oneSchema])/schemas, (bytes-memory)/1000/schemas, float64(routines-goroutines)/schemas)
	for _, text := range slices.Sorted(maps.Keys(texts)) {
		t.Logf("%d times at one schema: %s", texts[text], text)
	}
	if !long {
		assert.Less(t, count[oneSchema], count[queueLooks]+count[outboxLooks], "%v", texts)
	}
}

// untilRest waits until neither Group has anything running for a schema. At the defaults that takes a minute.
func untilRest(t, labelled *testing.T, all []tenant) {
	awake := func() bool {
		return strings.Contains(strings.Join(goroutinesOf(labelled), ""), "queue.(*loop).renew") ||
			slices.ContainsFunc(all, func(who tenant) bool { return !who.asleep(t) })
	}
	for deadline := time.Now().Add(3 * time.Minute); long && awake() && time.Now().Before(deadline); {
		time.Sleep(time.Second)
	}
	eventually(t, func() bool { return !awake() }, "all are at rest")
}

// footprint is what this process has in memory, in bytes, and how many goroutines.
func footprint() (memory float64, goroutines int) {
	runtime.GC()
	runtime.GC() // what finalizers let go of
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc), runtime.NumGoroutine()
}

// The kinds of statements that restTracer tells apart.
const (
	queueLooks  = "queues"
	outboxLooks = "outboxes"
	oneSchema   = "one schema"
)

// restTracer counts the statements of a pool.
type restTracer struct {
	mu    sync.Mutex
	count map[string]int
	texts map[string]int // beginnings of those at one schema
}

func (r *restTracer) reset() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count, r.texts = map[string]int{}, map[string]int{}
	return time.Now()
}

func (r *restTracer) counts() (count, texts map[string]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.count), maps.Clone(r.texts)
}

func (r *restTracer) saw(statement string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kind := oneSchema
	switch {
	case r.count == nil:
		return
	case strings.Contains(statement, "pg_stat_get_tuples_updated"):
		kind = queueLooks
	case strings.Contains(statement, "pg_sequence_last_value"):
		kind = outboxLooks
	default:
		words := strings.Fields(statement)
		r.texts[strings.Join(words[:min(len(words), 8)], " ")]++
	}
	r.count[kind]++
}

func (r *restTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	r.saw(data.SQL)
	return ctx
}

func (r *restTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (r *restTracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (r *restTracer) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	r.saw(data.SQL)
}

func (r *restTracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}
