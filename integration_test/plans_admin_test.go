package integration_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/trend"
	"github.com/millrace-go/watermill-outbox/observe/prom"
)

// statementLog is a tracer that remembers statements with their arguments.
type statementLog struct {
	mu    sync.Mutex
	all   []statementSeen
	walks map[*pgx.Conn]bool // connections whose next statement must use indexes
}

type statementSeen struct {
	pgx.TraceQueryStartData
	walked bool // run by core.DB.Walk
}

func (l *statementLog) TraceQueryStart(
	ctx context.Context, conn *pgx.Conn, data pgx.TraceQueryStartData,
) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Value(explaining{}) == nil {
		l.all = append(l.all, statementSeen{data, l.walks[conn]})
	}
	delete(l.walks, conn)
	return ctx
}

func (l *statementLog) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart records statements sent with BEGIN or with their own settings.
func (l *statementLog) TraceBatchStart(
	ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData,
) context.Context {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.walks == nil {
		l.walks = map[*pgx.Conn]bool{}
	}
	queued := data.Batch.QueuedQueries
	for _, q := range queued {
		if len(q.Arguments) > 0 && ctx.Value(explaining{}) == nil {
			l.all = append(l.all, statementSeen{TraceQueryStartData: pgx.TraceQueryStartData{SQL: q.SQL, Args: q.Arguments}})
		}
	}
	l.walks[conn] = len(queued) > 0 && queued[len(queued)-1].SQL == sqltext.WalkIndexes
	return ctx
}

func (l *statementLog) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}
func (l *statementLog) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData)     {}

func (l *statementLog) take() []statementSeen {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.all
	l.all = nil
	return all
}

// mostBlocks is the number of pages that a statement may read, from disk or memory, independent of the machine's load.
const mostBlocks int64 = 100_000

// explaining marks the context of statements that are not recorded.
type explaining struct{}

// fillScale writes this many rows to the outbox, and others to the inbox and the queue.
func fillScale(t testing.TB, h handle, rows, others int) {
	t.Helper()
	for _, table := range []string{"outbox", "inbox", "inbox_queue"} {
		h.exec(t, "ALTER TABLE "+table+" SET UNLOGGED") // irrelevant to the planner
		h.exec(t, "ALTER TABLE "+table+" SET (autovacuum_enabled = off)")
	}
	// Of 20 rows 15 are published, 2 dead, 2 ready, and 1 is delayed or, one time in ten, failing.
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, created_at, due_at, attempts, last_error, published_at, dead_at)
		SELECT i, 'topic-' || i % 50, CASE WHEN i % 4 > 0 THEN 'key-' || i % 10007 ELSE '' END, '\x00', now() - ($1::int - i) * interval '1 ms',
		       CASE i % 20 WHEN 1 THEN now() + i % 1009 * interval '1 minute' WHEN 2 THEN now() WHEN 12 THEN now() END,
		       CASE i % 20 WHEN 1 THEN (i % 200 = 1)::int WHEN 2 THEN 10 WHEN 12 THEN 10 ELSE 0 END,
		       CASE WHEN i % 20 IN (2, 12) OR i % 200 = 1 THEN 'broker ' || i || ' says: topic "' || i % 50 || '" is away for the ' || i % 7 || 'th time, ' || repeat('x', i % 11) END,
		       CASE WHEN i % 20 NOT IN (1, 2, 12, 4, 14) THEN now() - ($1::int - i) * interval '1 ms' END,
		       CASE WHEN i % 20 IN (2, 12) THEN now() END
		  FROM generate_series(1, $1::int) i`, rows)
	h.exec(t, `INSERT INTO inbox (consumer, message_id, received_at, processed_at, dead_at, attempts, last_error)
		SELECT 'shop/' || i % 20, i, now() - i * interval '1 ms', CASE WHEN i % 20 > 1 THEN now() END, CASE WHEN i % 20 = 1 THEN now() END, 1, 'order ' || i || ' is bad'
		  FROM generate_series(1, $1::int) i`, others)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, first_seen_at, due_at, attempts, last_error, done_at)
		SELECT 'shop', i, 'topic-' || i % 20, CASE i % 20 WHEN 1 THEN 'dead' WHEN 2 THEN 'processing' WHEN 3 THEN 'processing' ELSE 'done' END, now(),
		       CASE i % 20 WHEN 3 THEN now() + interval '1 hour' END, 1, 'order ' || i || ' is bad', CASE WHEN i % 20 > 3 THEN now() END
		  FROM generate_series(1, $1::int) i`, others)
}

// TestAdminAtScale makes every read call, and dry runs of every action, and checks the plan of each statement: none may
// scan a whole table. The long variant has 10,000,000 rows, or OUTBOX_ROWS, a tenth of them dead; no call from Go, the
// command line or the page may take two seconds, even if an index is missing. It prints the duration of each.
func TestAdminAtScale(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	rows, others, long := 100_020, 50_000, os.Getenv("OUTBOX_LONG") != ""
	if long {
		rows, others = 10_000_000, 1_000_000
	}
	if n, err := strconv.Atoi(os.Getenv("OUTBOX_ROWS")); err == nil && long {
		rows, others = n, n/10
	}
	slowest := slowestCalls{}
	var seen statementLog
	url := newMigratedDatabase(t)
	fillScale(t, newPgxHandle(t, url), rows, others)
	h := pgxHandle(t, "pgx", url, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = &seen })
	a := newAdmin(t, h)
	check := func(t *testing.T, name string, call func() error) {
		seen.take()
		best := time.Hour
		for range map[bool]int{false: 1, true: 3}[long] {
			begun := time.Now()
			require.NoError(t, call(), name)
			best = min(best, time.Since(begun))
		}
		if long {
			t.Logf("%s: %s", name, best.Round(time.Millisecond))
			slowest.record(name, best)
			if name != "outboxctl find nothing" { // it shows its progress and continues
				assert.Less(t, best, mostTime, name)
			}
		}
		known := map[string]bool{}
		for _, s := range seen.take() {
			if known[s.SQL] || strings.HasPrefix(s.SQL, "listen") || !strings.Contains(s.SQL, "outbox") &&
				!strings.Contains(s.SQL, "inbox") {
				continue
			}
			known[s.SQL] = true
			var text []byte
			ctx := context.WithValue(t.Context(), explaining{}, true)
			explain := "EXPLAIN (FORMAT JSON) "
			if long {
				explain = "EXPLAIN (FORMAT JSON, ANALYZE, BUFFERS, TIMING OFF) "
			}
			require.NoError(t, pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
				if s.walked {
					if _, err := tx.Exec(ctx, sqltext.WalkIndexes); err != nil {
						return err
					}
				}
				if err := tx.QueryRow(ctx, explain+s.SQL, s.Args...).Scan(&text); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, "ROLLBACK AND CHAIN") // it may have run an action
				return err
			}), name)
			var root []struct {
				Plan    plan
				Took    float64 `json:"Execution Time"`
				Planned float64 `json:"Planning Time"`
			}
			require.NoError(t, json.Unmarshal(text, &root))
			if of := root[0]; long {
				if of.Took > 40 {
					t.Logf("  %.0f ms, planned in %.0f ms, %d blocks: %.60s", of.Took, of.Planned, of.Plan.Hit+of.Plan.Read,
						strings.Join(strings.Fields(s.SQL), " "))
				}
				assert.Less(t, of.Plan.Hit+of.Plan.Read, mostBlocks, "%s reads too much: %s", name, s.SQL)
			}
			for _, table := range root[0].Plan.wholeTables(false) {
				assert.NotContains(t, []string{"outbox", "inbox", "inbox_queue"}, table, "%s scans all of it: %s", name, s.SQL)
			}
		}
	}
	all := func(t *testing.T) {
		for _, in := range []admin.Table{admin.Outbox, admin.Inbox, admin.Queue} {
			for _, state := range []admin.State{"", admin.Ready, admin.Delayed, admin.Failing, admin.Dead, admin.Done} {
				if in == admin.Inbox && (state == admin.Ready || state == admin.Delayed) {
					continue
				}
				for _, f := range []admin.Filter{
					{}, {Topic: "topic-2"}, {Key: "key-17"}, {Consumer: "shop/1"}, {ErrorContains: "no error has this text"},
					{ErrorGroup: "0123456789abcdef"}, {After: time.Now().Add(-time.Hour)}, {IDs: []string{"12"}},
				} {
					if in == admin.Inbox && f.Topic+f.Key != "" || in == admin.Outbox && f.Consumer != "" || in != admin.Outbox &&
						f.IDs != nil {
						continue
					}
					if f.In = in; state != "" {
						f.States = []admin.State{state}
					}
					name, _ := json.Marshal(f)
					check(t, "list "+string(name), func() error { _, err := a.List(t.Context(), f, admin.Page{}); return err })
					if state == admin.Dead || state == admin.Failing {
						check(t, "groups "+string(name), func() error { _, err := a.ErrorGroups(t.Context(), f); return err })
					}
				}
			}
		}
		check(t, "stats", func() error { _, err := a.Stats(t.Context(), admin.StatsConfig{}); return err })
		check(t, "doctor", func() error { _, err := a.Doctor(t.Context()); return err })
		collector := newCollector(t, h, prom.CollectorConfig{})
		check(t, "scrape", func() error {
			assert.Equal(t, 1.0, scraped(t, collector)["up{}"])
			return nil
		})
		for _, what := range []string{"12", "key-17", "nothing has this", "shop/1:12"} {
			check(t, "find "+what, func() error { _, err := a.Find(t.Context(), what, admin.Page{}); return err })
		}
		check(t, "get", func() error { _, err := a.Get(t.Context(), admin.Outbox, "12"); return err })
		for _, in := range []struct {
			of admin.Table
			id string
		}{{admin.Outbox, "12"}, {admin.Inbox, "shop/1:1"}, {admin.Queue, "shop:1"}} {
			check(t, "timeline in "+in.of.String(), func() error { _, err := a.Timeline(t.Context(), in.of, in.id); return err })
		}
		for _, cfg := range []trend.Config{
			{Over: time.Hour}, {Over: 24 * time.Hour}, {Over: 7 * 24 * time.Hour, Topic: "topic-2"},
		} {
			check(t, "trend over "+cfg.Over.String(), func() error {
				_, err := trend.Read(t.Context(), (*core.DB)(h.db), cfg)
				return err
			})
		}
		check(t, "blocked keys", func() error {
			_, _, err := a.BlockedKeys(t.Context(), admin.Filter{}, 50)
			return err
		})
		check(t, "redrive", func() error {
			few := admin.Action{Limit: 50, DryRun: true, Filter: admin.Filter{In: admin.Inbox, All: true}}
			if _, err := a.Redrive(t.Context(), few); !errors.Is(err, admin.ErrNoDeadLetter) {
				return err
			}
			return nil
		})
		operator := ctl{t: t, url: h.url}
		for _, command := range []string{
			"stats", "doctor", "find 12", "find nothing", "outbox list", "outbox list --state dead --limit 10",
			"outbox show 12", "errors", "errors --state dead", "inbox list --limit 10", "queue list --limit 10",
			"keys blocked", "audit", "outbox requeue --topic topic-2 --dry-run --limit 1000",
		} {
			check(t, "outboxctl "+command, func() error {
				if r := operator.run(words(command)...); r.code > 1 { // exit code 1: doctor has a finding
					return fmt.Errorf("exit code %d: %s", r.code, r.err)
				}
				return nil
			})
		}
		page := newSite(t, h, ui.Access{Act: true, Actor: "alice"}).handler
		for _, path := range []string{
			"", "errors", "errors?in=inbox", "errors?in=queue", "messages", "messages?state=failing", "messages?in=inbox",
			"messages?in=queue", "message?id=12", "find?q=nothing", "audit", "?range=day", "?topic=topic-2",
			"act?verb=requeue&state=dead&all=yes", "act?verb=discard&in=inbox&state=dead&all=yes",
			"act?verb=replay&state=done&topic=topic-2",
			"act?verb=skip&state=failing&topic=topic-2", "act?verb=pause&topic=topic-2",
		} {
			check(t, "page "+path, func() error {
				w := httptest.NewRecorder()
				page.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/"+path, nil))
				assert.Equal(t, http.StatusOK, w.Code, "%s: %s", path, textOf(t, w.Body.String()))
				return nil
			})
		}
		check(t, "audit", func() error { _, _, err := a.Audit(t.Context(), admin.Page{}); return err })
		for _, in := range []admin.Table{admin.Outbox, admin.Inbox, admin.Queue} {
			few := admin.Action{Limit: 50, Reason: "a try", Filter: admin.Filter{In: in, All: true}}
			check(t, "requeue in "+in.String(), func() error { _, err := a.Requeue(t.Context(), few); return err })
			check(t, "discard in "+in.String(), func() error { _, err := a.Discard(t.Context(), few); return err })
		}
		check(t, "replay", func() error {
			_, err := a.Replay(t.Context(), admin.Action{Limit: 50, Filter: admin.Filter{All: true}})
			return err
		})
		check(t, "retry now", func() error {
			_, err := a.RetryNow(t.Context(), admin.Action{Limit: 50, Filter: admin.Filter{All: true}})
			return err
		})
		check(t, "dry run", func() error {
			_, err := a.Requeue(t.Context(), admin.Action{DryRun: true, Limit: 1000, Filter: admin.Filter{Topic: "topic-2"}})
			return err
		})
	}
	if !long {
		for _, table := range []string{"outbox", "inbox", "inbox_queue"} {
			h.exec(t, "ANALYZE "+table)
		}
		all(t)
		r, err := a.Clean(t.Context(), admin.CleanConfig{OutboxRetention: 1000 * time.Hour, DryRun: true})
		require.NoError(t, err)
		assert.Equal(t, admin.Count{More: true}, r.Outbox, "it reads only the oldest 100,000")
		return
	}
	t.Run("never analyzed", all)
	for _, table := range []string{"outbox", "inbox", "inbox_queue"} {
		h.exec(t, "ANALYZE "+table)
	}
	t.Run("analyzed", all)
	begun := time.Now()
	r, err := a.Requeue(t.Context(), admin.Action{Filter: admin.Filter{Topic: "topic-2"}})
	require.NoError(t, err)
	t.Logf("requeued %d in %s", r.Touched, time.Since(begun).Round(time.Millisecond))

	h.exec(t, "DROP INDEX outbox_ready")
	page := newSite(t, h, ui.Access{})
	begun = time.Now()
	assert.Equal(t, http.StatusOK, page.get("").status, "the overview reports the missing index")
	page.get("").says(t, "overview", "The tables do not match the code")
	slowest.record("page with an index missing", time.Since(begun)/2)
	assert.Less(t, time.Since(begun), 2*judgeTimeout)
	slowest.print(t)
}

const (
	mostTime     = 2 * time.Second
	judgeTimeout = 10 * time.Second // as in package ui
)

// slowestCalls has the slowest call of each kind.
type slowestCalls map[string]time.Duration

func (s slowestCalls) record(name string, took time.Duration) {
	kind, _, _ := strings.Cut(name, " {")
	s[kind] = max(s[kind], took)
}

// print logs the slowest call of each kind.
func (s slowestCalls) print(t *testing.T) {
	t.Helper()
	var b strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintf(&b, "%6d ms  %s\n", s[kind].Milliseconds(), kind)
	}
	t.Log("\n" + b.String())
}

// wholeTables returns the tables, or whole indexes of them, that a plan scans completely; limited means that a parent
// node stops early.
func (p plan) wholeTables(limited bool) (list []string) {
	limited = limited || p.Type == "Limit"
	switch p.Type {
	case "Seq Scan", "Parallel Seq Scan":
		list = append(list, p.Relation)
	case "Index Scan", "Index Only Scan":
		if p.Cond == "" && !limited {
			list = append(list, p.Relation)
		}
	}
	for _, child := range p.Plans {
		list = append(list, child.wholeTables(limited)...)
	}
	return list
}
