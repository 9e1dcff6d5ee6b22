package integration_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	outboxmw "github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/observe/prom"
	"github.com/millrace-go/watermill-outbox/queue"
)

// scraped returns the series of a collector with their values; for a histogram the number of observations and, as
// another series, their sum.
func scraped(t testing.TB, c prometheus.Collector) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	require.NoError(t, err)
	found := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var of []string
			for _, l := range m.GetLabel() {
				if l.GetName() != "db" {
					of = append(of, l.GetName()+"="+l.GetValue())
				}
			}
			series := strings.TrimPrefix(f.GetName(), "outbox_") + "{" + strings.Join(of, ",") + "}"
			found[series] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			if h := m.GetHistogram(); h != nil {
				found["sum of "+series] = h.GetSampleSum()
			}
		}
	}
	return found
}

// shows waits until an observer shows all of want; some events reach it a moment later.
func shows(t testing.TB, c prometheus.Collector, want map[string]float64) {
	t.Helper()
	found := map[string]float64{}
	eventually(t, func() bool {
		all := scraped(t, c)
		for series := range want {
			found[series] = all[series]
		}
		return maps.Equal(want, found)
	}, "%v is shown: %v", want, found)
}

func newCollector(t testing.TB, h handle, cfg prom.CollectorConfig) prometheus.Collector {
	t.Helper()
	c, err := prom.NewCollector(h.db, cfg, nil)
	require.NoError(t, err)
	return c
}

// somethingOfEverything fills the tables of a handle.
func somethingOfEverything(t testing.TB, h handle) {
	t.Helper()
	h.exec(t, `insert into outbox (uuid, topic, key, payload, created_at, due_at, attempts, last_error, published_at, dead_at)
		select i, 'orders', '', '\x00', now() - interval '1 minute',
		       case when i in (4, 5) then now() + interval '1 hour' when i = 3 then now() - interval '1 second' end,
		       case when i in (5, 6, 7) then 1 else 0 end, case when i in (5, 6, 7) then 'broken' end,
		       case when i = 8 then now() end, case when i in (6, 7) then now() end
		  from generate_series(1, 8) i`)
	h.exec(t, `insert into inbox (consumer, message_id, attempts, received_at, processed_at, dead_at)
		select 'booking/book', i, 1, now() - interval '1 hour', case when i = 1 then now() end, case when i < 4 then now() end from generate_series(2, 6) i`)
	h.exec(t, `insert into inbox_queue (source, message_id, topic, state, due_at, attempts, first_seen_at)
		select 'shop', i, 'payment', case when i < 6 then 'processing' else 'dead' end,
		       case when i > 2 then now() + interval '1 hour' end, case when i in (4, 5) then 1 else 0 end, now() - interval '1 minute'
		  from generate_series(1, 6) i`)
	h.exec(t, `insert into outbox_forwarders (id, scope, topics, name, expires_at) values
		('00000000-0000-0000-0000-000000000001', 'default', '{}', 'alive', now() + interval '1 hour'),
		('00000000-0000-0000-0000-000000000002', 'default', '{}', 'vanished', now() - interval '1 minute')`)
	h.exec(t, `insert into outbox_lanes (scope, lane, owner)
		select 'default', i, ('00000000-0000-0000-0000-00000000000' || 1 + (i < 4)::int)::uuid from generate_series(0, 63) i`)
	h.exec(t, `insert into outbox_topics (topic, forwarder, reason) values
		('orders', '00000000-0000-0000-0000-000000000001', 'down'), ('orders', '00000000-0000-0000-0000-000000000002', 'down'),
		('refunds', '00000000-0000-0000-0000-000000000000', 'alice: later')`)
}

// TestCollectorOverEachHandle: with every handle the collector shows the same figures as package admin.
func TestCollectorOverEachHandle(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		c := newCollector(t, h, prom.CollectorConfig{Topics: []string{"known"}})
		found := scraped(t, c)
		for series, n := range map[string]float64{
			"up{}": 1, "counts_bounded{}": 0, "forwarders{state=alive}": 0, "forwarders{state=vanished}": 0,
			"messages{state=dead,topic=known}": 0, "oldest_message_age_seconds{state=ready,topic=known}": 0,
			"topic_paused{by=forwarder,topic=known}": 0,
		} {
			got, there := found[series]
			assert.True(t, there && got == n, "in empty tables %s is %v", series, got)
		}

		somethingOfEverything(t, h)
		found = scraped(t, c)
		for series, n := range map[string]float64{
			"messages{state=ready,topic=orders}": 3, "messages{state=delayed,topic=orders}": 1,
			"messages{state=failing,topic=orders}": 1, "messages{state=dead,topic=orders}": 2,
			"inbox_messages{consumer=booking/book,state=failing}": 3, "inbox_messages{consumer=booking/book,state=dead}": 2,
			"queue_messages{state=ready,topic=payment}": 2, "queue_messages{state=delayed,topic=payment}": 1,
			"queue_messages{state=failing,topic=payment}": 2, "queue_messages{state=dead,topic=payment}": 1,
			"forwarders{state=alive}": 1, "forwarders{state=vanished}": 1, "leased_lanes{scope=default}": 60,
			"topic_paused{by=forwarder,topic=orders}": 1, "topic_paused{by=operator,topic=orders}": 0,
			"topic_paused{by=operator,topic=refunds}": 1, "topic_paused{by=forwarder,topic=refunds}": 0,
			"up{}": 1, "counts_bounded{}": 0,
		} {
			assert.Equal(t, n, found[series], series)
		}
		for series, age := range map[string]time.Duration{
			"oldest_message_age_seconds{state=ready,topic=orders}":        time.Minute,
			"inbox_oldest_message_age_seconds{consumer=booking/book}":     time.Hour,
			"queue_oldest_message_age_seconds{state=ready,topic=payment}": time.Minute,
		} {
			assert.InDelta(t, age.Seconds(), found[series], patience.Seconds(), series)
		}
		stats, err := newAdmin(t, h).Stats(t.Context(), admin.StatsConfig{})
		require.NoError(t, err)
		for _, s := range stats.Topics {
			assert.InDelta(t, s.Ready.N, found["messages{state=ready,topic="+s.Topic+"}"], 0)
			assert.Equal(t, s.Paused, found["topic_paused{by=forwarder,topic="+s.Topic+"}"]+
				found["topic_paused{by=operator,topic="+s.Topic+"}"] > 0, s.Topic)
		}

		h.exec(t, "truncate outbox, inbox, inbox_queue, outbox_forwarders, outbox_lanes, outbox_topics")
		for series, n := range scraped(t, c) {
			table := partitioned && strings.HasPrefix(series, "table_partitions")
			if series != "up{}" && series != "collect_duration_seconds{}" && !table {
				assert.Zero(t, n, "an ended state is zero: %s", series)
			}
		}
	})
}

// TestScrapeIsOneQuery, even with many topics, and counts that reach their limit are marked as such.
func TestScrapeIsOneQuery(t *testing.T) {
	needsPlainOutbox(t) // partitions are read by separate queries
	t.Parallel()
	var seen statementLog
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = &seen })
	h.exec(t, `insert into outbox (uuid, topic, payload, dead_at)
		select i, 'topic-' || i % 100, '\x00', case when i % 2 = 0 then now() end from generate_series(1, 1000) i`)
	c := newCollector(t, h, prom.CollectorConfig{})
	seen.take()
	found := scraped(t, c)
	assert.Len(t, seen.take(), 2, "the second statement checks for partitions")
	assert.Equal(t, 10.0, found["messages{state=dead,topic=topic-42}"])
	assert.Equal(t, 10.0, found["messages{state=ready,topic=topic-41}"])

	h.exec(t, `insert into outbox (uuid, topic, key, payload) select i, 'many', 'k', '\x00' `+
		`from generate_series(1001, 1600) i`)
	found = scraped(t, c)
	assert.Equal(t, 1.0, found["counts_bounded{}"], "more messages wait in one lane than are counted")
	assert.LessOrEqual(t, found["messages{state=ready,topic=many}"], 100.0)
	assert.Positive(t, found["messages{state=ready,topic=many}"])
}

// TestCollectorSurvivesWhatItWatches: an unreachable database is up = 0 and one log line, and no old values are shown.
func TestCollectorSurvivesWhatItWatches(t *testing.T) {
	h := onPgx(t)
	log := newLogCapture(t)
	c, err := prom.NewCollector(h.db, prom.CollectorConfig{Topics: []string{"orders"}, QueryTimeout: patience}, log)
	require.NoError(t, err)
	require.Equal(t, 1.0, scraped(t, c)["up{}"])
	h.exec(t, "alter table outbox rename to away")
	for range 3 {
		found := scraped(t, c)
		_, there := found["up{}"]
		assert.True(t, there && found["up{}"] == 0)
		assert.NotContains(t, found, "messages{state=ready,topic=orders}")
	}
	assert.Equal(t, 1, log.count("reading the tables for metrics failed: retrying at the next scrape"))
	h.exec(t, "alter table away rename to outbox")
	assert.Contains(t, scraped(t, c), "messages{state=ready,topic=orders}")
	assert.Equal(t, 1, log.count("reading the tables for metrics works again"))

	busy := pgxHandle(t, "busy", h.url, func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	conn, err := busy.pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	c = newCollector(t, busy, prom.CollectorConfig{QueryTimeout: 10 * time.Millisecond})
	assert.Equal(t, 0.0, scraped(t, c)["up{}"], "a pool without a free connection does not delay a scrape")
}

// TestPausedOutlivesItsForwarder: any process shows an unreachable topic as paused until the outage is over, even a
// process that starts during the outage.
func TestPausedOutlivesItsForwarder(t *testing.T) {
	parallel(t)
	observer, err := prom.NewObserver(prom.ObserverConfig{})
	require.NoError(t, err)
	h := newPgxHandle(t, newMigratedDatabase(t)).seenBy(t, observer)
	const paused, own = "topic_paused{by=forwarder,topic=down}", "forwarder_paused{by=forwarder,scope=default,topic=down}"
	var mended atomic.Bool
	down := func(topic string, _ *message.Message) error {
		if topic == "down" && !mended.Load() {
			return errDown
		}
		return nil
	}
	first := startForwarderOn(t, h, classifyingConfig(), down)
	first.publish(t, "down", "", "waits")
	elsewhere := newCollector(t, newPgxHandle(t, h.url), prom.CollectorConfig{})
	eventually(t, func() bool { return scraped(t, elsewhere)[paused] == 1 && scraped(t, observer)[own] == 1 },
		"it is paused")

	require.NoError(t, first.Forwarder.Close())
	eventually(t, func() bool { _, there := scraped(t, observer)[own]; return !there },
		"a stopped forwarder pauses nothing")
	second := startForwarderOn(t, h, classifyingConfig(), down)
	anew := newCollector(t, newPgxHandle(t, h.url), prom.CollectorConfig{})
	eventually(t, func() bool { return scraped(t, anew)[paused] == 1 }, "it is paused again")
	mended.Store(true)
	second.arrives(t, "waits")
	eventually(t, func() bool {
		n, there := scraped(t, anew)[paused]
		return there && n == 0 && scraped(t, observer)[own] == 0
	}, "and the pause is over")
}

// TestObserverOfAWholeService: one observer sees messages written, published and handled, by a Router and by a
// Dispatcher.
func TestObserverOfAWholeService(t *testing.T) {
	parallel(t)
	observer, err := prom.NewObserver(prom.ObserverConfig{})
	require.NoError(t, err)
	h := newPgxHandle(t, newMigratedDatabase(t)).seenBy(t, observer)

	w := startForwarderOn(t, h, classifyingConfig(), func(_ string, msg *message.Message) error {
		switch string(msg.Payload) {
		case "malformed":
			return errMalformed
		}
		return nil
	})
	w.publish(t, "orders", "", "a", "b", "malformed")
	w.arrives(t, "a", "b")
	h.exec(t, `insert into outbox (uuid, topic, payload, created_at) values ('old', 'orders', 'old', `+
		`now() - interval '2 hours')`)
	w.arrives(t, "old")
	w.idle(t)
	eventually(t, func() bool { return scraped(t, observer)["deaths_total{topic=orders}"] == 1 }, "the death is observed")
	shows(t, observer, map[string]float64{
		"written_messages_total{topic=orders}": 3, "written_bytes_total{topic=orders}": 11,
		"publishes_total{result=published,topic=orders}": 3, "publishes_total{result=permanent,topic=orders}": 1,
		"publishes_total{result=unavailable,topic=orders}": 0,
		"lag_seconds{topic=orders}":                        3, "owned_lanes{scope=default}": 64,
		"settled_messages_total{result=done,scope=default}": 3, "settled_messages_total{result=dead,scope=default}": 1,
		"transaction_duration_seconds{result=committed}": 1,
	})
	lag := scraped(t, observer)["sum of lag_seconds{topic=orders}"]
	assert.InDelta(t, 2*time.Hour.Seconds(), lag, patience.Seconds(), "the age uses the database's clock")

	store, err := queue.NewStore(h.db, queue.StoreConfig{}, nil)
	require.NoError(t, err)
	_, err = store.Enqueue(t.Context(), queue.Item{ID: queue.ID{Source: "shop", MessageID: "1"}, Topic: "payment"})
	require.NoError(t, err)
	dispatcher, err := queue.NewDispatcher(store, queue.DispatcherConfig{
		Service: "booking", Handlers: map[string]queue.Handler{
			"payment": {Handle: func(context.Context, *queue.Message) error { return nil }},
		},
	}, nil)
	require.NoError(t, err)
	require.NoError(t, dispatcher.Drain(t.Context()))

	handle := chain(func(msg *message.Message) ([]*message.Message, error) {
		if string(msg.Payload) == "bad" {
			return nil, errHandler
		}
		return nil, nil
	}, stack(t, h, outboxmw.StackConfig{Service: "booking"})...)
	good, bad := newMessage("good"), newMessage("bad")
	for _, msg := range []*message.Message{good, good.Copy(), bad} {
		_, err = handle(msg)
		assert.Equal(t, string(msg.Payload) == "bad", err != nil, fmt.Sprint(err))
	}
	shows(t, observer, map[string]float64{
		"handled_messages_total{handler=payment,outcome=processed,service=booking,topic=payment}": 1,
		"handled_messages_total{handler=,outcome=processed,service=booking,topic=}":               1,
		"handled_messages_total{handler=,outcome=duplicate,service=booking,topic=}":               1,
		"handled_messages_total{handler=,outcome=failed,service=booking,topic=}":                  1,
		"handled_messages_total{handler=,outcome=dead,service=booking,topic=}":                    0,
		"handle_duration_seconds{handler=,service=booking,topic=}":                                3,
	})
}

var (
	selectorShape  = regexp.MustCompile(`\boutbox_(\w+)\{([^}]*)\}`)
	conditionShape = regexp.MustCompile(`(\w+)=~?"([^"]*)"`)
)

// TestFirstScrapeFillsTheTiles: the first scrape of a service without messages has every series of the dashboard's
// tiles, so that no tile shows "No data".
func TestFirstScrapeFillsTheTiles(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("../dashboards/grafana.json")
	require.NoError(t, err)
	var board struct {
		Panels []struct {
			Type, Title string
			Targets     []struct{ Expr string }
		}
	}
	require.NoError(t, json.Unmarshal(content, &board))
	series := scraped(t, newCollector(t, newPgxHandle(t, newMigratedDatabase(t)), prom.CollectorConfig{}))
	tiles := 0
	for _, p := range board.Panels {
		if p.Type != "stat" {
			continue
		}
		tiles++
		for _, q := range p.Targets {
			selectors := selectorShape.FindAllStringSubmatch(q.Expr, -1)
			require.NotEmpty(t, selectors, q.Expr)
			for _, s := range selectors {
				assert.True(t, anySeries(series, s[1], s[2]), "tile %q has no data: %s of %v", p.Title, s[0], series)
			}
		}
	}
	assert.GreaterOrEqual(t, tiles, 6)
}

// anySeries reports whether a series of this name meets the conditions of a selector. Dashboard variables match
// anything.
func anySeries(all map[string]float64, name, conditions string) bool {
	for series := range all {
		labels, ok := strings.CutPrefix(series, name+"{")
		if !ok {
			continue
		}
		met := true
		for _, c := range conditionShape.FindAllStringSubmatch(conditions, -1) {
			if !strings.HasPrefix(c[2], "$") {
				met = met && regexp.MustCompile(`(^|,)`+c[1]+`=(`+c[2]+`)[,}]`).MatchString(labels)
			}
		}
		if met {
			return true
		}
	}
	return false
}

// contextless is an observer that returns a nil context.
type contextless struct{ ended chan context.Context }

func (contextless) HandleStart(context.Context, observe.HandleStart) context.Context { return nil }
func (c contextless) HandleEnd(ctx context.Context, _ observe.HandleEnd)             { c.ended <- ctx }

// TestDispatcherIgnoresNilContexts: messages are handled even if an observer returns no context.
func TestDispatcherIgnoresNilContexts(t *testing.T) {
	t.Parallel()
	eye := contextless{make(chan context.Context, 10)}
	h := newPgxHandle(t, newMigratedDatabase(t)).seenBy(t, eye)
	store, err := queue.NewStore(h.db, queue.StoreConfig{}, nil)
	require.NoError(t, err)
	_, err = store.Enqueue(t.Context(), queue.Item{ID: queue.ID{Source: "shop", MessageID: "1"}, Topic: "payment"})
	require.NoError(t, err)
	handled := 0
	dispatcher, err := queue.NewDispatcher(store, queue.DispatcherConfig{
		Service: "booking", Handlers: map[string]queue.Handler{
			"payment": {Handle: func(context.Context, *queue.Message) error { handled++; return nil }},
		},
	}, nil)
	require.NoError(t, err)
	require.NoError(t, dispatcher.Drain(t.Context()))
	require.Equal(t, 1, handled)
	require.NotNil(t, <-eye.ended)
}
