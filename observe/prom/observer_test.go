package prom

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/observe"
)

func newObserver(t testing.TB, cfg ObserverConfig) (*observer, *prometheus.Registry) {
	t.Helper()
	c, err := NewObserver(cfg)
	if err != nil {
		t.Fatal(err)
	}
	o := c.(*observer)
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(o)
	return o, reg
}

// all reports one of each event to an observer.
func all(o *observer) {
	ctx, failed := context.Background(), errors.New("failed")
	msg := message.NewMessage("1", nil)
	for _, err := range []error{nil, failed, outbox.ErrRolledBack, fmt.Errorf("commit: %w", outbox.ErrCommitUnknown)} {
		o.TxEnd(o.TxStart(ctx, meter.TxStart{DB: "shop"}), meter.TxEnd{DB: "shop", Duration: time.Millisecond, Err: err})
	}
	o.WriteEnd(o.WriteStart(ctx, observe.WriteStart{DB: "shop", Topic: "orders"}),
		observe.WriteEnd{DB: "shop", Topic: "orders", Messages: 2, Bytes: 10})
	o.WriteEnd(ctx, observe.WriteEnd{DB: "shop", Topic: "orders", Messages: 1, Bytes: 5, Err: failed})
	start := observe.PublishStart{DB: "shop", Scope: "default", Topic: "orders", Message: msg}
	for _, end := range []observe.PublishEnd{
		{Age: time.Second}, {Err: failed, Verdict: "retry"}, {Err: failed, Verdict: "unavailable"}, {Err: failed},
	} {
		end.DB, end.Topic, end.Duration = "shop", "orders", time.Millisecond
		o.PublishEnd(o.PublishStart(ctx, start), end)
	}
	o.MessageDead(ctx, observe.MessageDead{DB: "shop", Topic: "orders"})
	for _, outcome := range []observe.Outcome{
		observe.Processed, observe.Duplicate, observe.Mismatch, observe.RolledBack, observe.Postponed,
	} {
		handled := observe.HandleEnd{
			DB: "shop", Service: "booking", Handler: "book", Topic: "orders", Outcome: outcome, Duration: time.Millisecond,
		}
		o.HandleEnd(o.HandleStart(ctx, observe.HandleStart{
			DB: "shop", Service: "booking", Handler: "book", Topic: "orders", Message: msg,
		}), handled)
	}
	for i := range 3 { // all from one call
		o.HandleEnd(ctx, observe.HandleEnd{
			DB: "shop", Service: "totals", Handler: "project", Topic: "orders", Outcome: observe.Processed, Batch: 3,
			Duration: []time.Duration{time.Millisecond, 0, 0}[i],
		})
	}
	o.TopicPaused(ctx, observe.TopicPaused{DB: "shop", Scope: "default", Topic: "orders", Failures: 1, Err: failed})
	o.ReadEnd(ctx, meter.ReadEnd{DB: "shop", Scope: "default", Rows: 3, Duration: time.Millisecond})
	o.ReadEnd(ctx, meter.ReadEnd{DB: "shop", Scope: "default", Err: failed})
	o.SettleEnd(ctx, meter.SettleEnd{
		DB: "shop", Scope: "default", Done: 4, Failed: 2, Dead: 1, Duration: time.Millisecond,
	})
	o.SettleEnd(ctx, meter.SettleEnd{DB: "shop", Scope: "default", Done: 4, Err: failed})
	o.CleanEnd(ctx, meter.CleanEnd{DB: "shop", Table: "outbox", Rows: 7})
	o.CleanEnd(ctx, meter.CleanEnd{DB: "shop", Table: "outbox", Err: failed})
	o.LanesOwned(ctx, meter.LanesOwned{DB: "shop", Scope: "default", Lanes: 64})
	o.PartitionState(ctx, meter.PartitionState{
		Group: "booking", Topic: "orders", Partition: 3, Owned: true, Lag: 100, Pending: 50, BlockedKeys: 2,
		OldestBlocked: time.Minute, Paused: meter.PausedByBlockedKey,
	})
}

// counters are the values of all counters and gauges, and the counts of all histograms, after a call of all.
const counters = `
transaction_duration_seconds{db="shop",result="committed"} 1
transaction_duration_seconds{db="shop",result="failed"} 1
transaction_duration_seconds{db="shop",result="rolled_back"} 1
transaction_duration_seconds{db="shop",result="unknown"} 1
written_messages_total{db="shop",topic="orders"} 2
written_bytes_total{db="shop",topic="orders"} 10
write_errors_total{db="shop",topic="orders"} 1
publishes_total{db="shop",result="permanent",topic="orders"} 0
publishes_total{db="shop",result="published",topic="orders"} 1
publishes_total{db="shop",result="retry",topic="orders"} 1
publishes_total{db="shop",result="stopped",topic="orders"} 1
publishes_total{db="shop",result="unavailable",topic="orders"} 1
publishes_total{db="shop",result="unknown",topic="orders"} 0
publish_duration_seconds{db="shop",topic="orders"} 4
lag_seconds{db="shop",topic="orders"} 1
deaths_total{db="shop",topic="orders"} 1
owned_lanes{db="shop",scope="default"} 64
forwarder_paused{by="forwarder",db="shop",scope="default",topic="orders"} 1
forwarder_paused{by="operator",db="shop",scope="default",topic="orders"} 0
read_duration_seconds{db="shop",scope="default"} 2
read_rows_total{db="shop",scope="default"} 3
read_errors_total{db="shop",scope="default"} 1
settle_duration_seconds{db="shop",scope="default"} 2
settled_messages_total{db="shop",result="dead",scope="default"} 1
settled_messages_total{db="shop",result="done",scope="default"} 4
settled_messages_total{db="shop",result="failed",scope="default"} 2
settle_errors_total{db="shop",scope="default"} 1
cleaned_rows_total{db="shop",table="outbox"} 7
clean_errors_total{db="shop",table="outbox"} 1
handled_messages_total{db="shop",handler="book",outcome="dead",service="booking",topic="orders"} 0
handled_messages_total{db="shop",handler="book",outcome="duplicate",service="booking",topic="orders"} 1
handled_messages_total{db="shop",handler="book",outcome="failed",service="booking",topic="orders"} 0
handled_messages_total{db="shop",handler="book",outcome="mismatch",service="booking",topic="orders"} 1
handled_messages_total{db="shop",handler="book",outcome="postponed",service="booking",topic="orders"} 1
handled_messages_total{db="shop",handler="book",outcome="processed",service="booking",topic="orders"} 1
handled_messages_total{db="shop",handler="book",outcome="rolled_back",service="booking",topic="orders"} 1
handle_duration_seconds{db="shop",handler="book",service="booking",topic="orders"} 4
handled_messages_total{db="shop",handler="project",outcome="dead",service="totals",topic="orders"} 0
handled_messages_total{db="shop",handler="project",outcome="duplicate",service="totals",topic="orders"} 0
handled_messages_total{db="shop",handler="project",outcome="failed",service="totals",topic="orders"} 0
handled_messages_total{db="shop",handler="project",outcome="mismatch",service="totals",topic="orders"} 0
handled_messages_total{db="shop",handler="project",outcome="postponed",service="totals",topic="orders"} 0
handled_messages_total{db="shop",handler="project",outcome="processed",service="totals",topic="orders"} 3
handled_messages_total{db="shop",handler="project",outcome="rolled_back",service="totals",topic="orders"} 0
handle_duration_seconds{db="shop",handler="project",service="totals",topic="orders"} 1
partition_lag_messages{group="booking",partition="3",topic="orders"} 100
partition_pending_messages{group="booking",partition="3",topic="orders"} 50
partition_blocked_keys{group="booking",partition="3",topic="orders"} 2
partition_blocked_seconds{group="booking",partition="3",topic="orders"} 60
partition_paused{by="blocked_key",group="booking",partition="3",topic="orders"} 1
partition_paused{by="handlers",group="booking",partition="3",topic="orders"} 0
partition_paused{by="bytes",group="booking",partition="3",topic="orders"} 0
partition_paused{by="hung_handlers",group="booking",partition="3",topic="orders"} 0
`

// values returns the value of each series of a registry; for a histogram, its number of observations.
func values(t testing.TB, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var of []string
			for _, l := range m.GetLabel() {
				of = append(of, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			series := strings.TrimPrefix(f.GetName(), "outbox_") + "{" + strings.Join(of, ",") + "}"
			found[series] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return found
}

func TestObserverCountsEverything(t *testing.T) {
	o, reg := newObserver(t, ObserverConfig{})
	all(o)
	found := values(t, reg)
	for _, line := range strings.Split(strings.TrimSpace(counters), "\n") {
		series, want, _ := strings.Cut(line, " ")
		if got, ok := found[series]; !ok || fmt.Sprint(got) != want {
			t.Errorf("%s is %v, want %s", series, got, want)
		}
		delete(found, series)
	}
	for series := range found {
		t.Errorf("unexpected series %s", series)
	}
}

// TestObserverRemovesRevokedPartitions: only the new owner exports a partition.
func TestObserverRemovesRevokedPartitions(t *testing.T) {
	o, reg := newObserver(t, ObserverConfig{})
	for partition := range int32(2) {
		o.PartitionState(t.Context(), meter.PartitionState{Group: "g", Topic: "t", Partition: partition, Owned: true})
	}
	before := len(values(t, reg))
	o.PartitionState(t.Context(), meter.PartitionState{Group: "g", Topic: "t", Partition: 1})
	if after := len(values(t, reg)); before == 0 || after != before/2 {
		t.Errorf("%d series for two partitions, and %d after one of them was revoked", before, after)
	}
}

func TestObserverPassesTheLinter(t *testing.T) {
	o, reg := newObserver(t, ObserverConfig{})
	all(o)
	lint(t, reg)
}

func lint(t testing.TB, reg prometheus.Gatherer) {
	t.Helper()
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestObserverBeginsAtZero: the first event of a topic creates all series of the topic.
func TestObserverBeginsAtZero(t *testing.T) {
	const dead = `deaths_total{db="shop",topic="orders"}`
	for name, known := range map[string]func(*observer){
		"written": func(o *observer) { o.WriteStart(t.Context(), observe.WriteStart{DB: "shop", Topic: "orders"}) },
		"published": func(o *observer) {
			o.PublishStart(t.Context(), observe.PublishStart{DB: "shop", Topic: "orders", Message: &message.Message{}})
		},
	} {
		o, reg := newObserver(t, ObserverConfig{})
		known(o)
		if n, ok := values(t, reg)[dead]; !ok || n != 0 {
			t.Errorf("after the first message was %s, %s is %v (exported: %t)", name, dead, n, ok)
		}
	}
	_, reg := newObserver(t, ObserverConfig{DBs: []string{"shop"}, Topics: []string{"orders"}})
	found := values(t, reg)
	for _, series := range []string{dead, `transaction_duration_seconds{db="shop",result="unknown"}`} {
		if n, ok := found[series]; !ok || n != 0 {
			t.Errorf("at the start %s is %v (exported: %t)", series, n, ok)
		}
	}
}

// TestLagIsWithoutDelays: messages delayed on purpose do not count.
func TestLagIsWithoutDelays(t *testing.T) {
	o, reg := newObserver(t, ObserverConfig{})
	for _, key := range []string{"other", delay.DelayedForKey, delay.DelayedUntilKey} {
		msg := message.NewMessage("1", nil)
		msg.Metadata.Set(key, "1h")
		ctx := o.PublishStart(t.Context(), observe.PublishStart{DB: "shop", Topic: "orders", Message: msg})
		o.PublishEnd(ctx, observe.PublishEnd{DB: "shop", Topic: "orders", Age: time.Hour})
	}
	if n := values(t, reg)[`lag_seconds{db="shop",topic="orders"}`]; n != 1 {
		t.Errorf("%v messages count, want 1: the other two were delayed on purpose", n)
	}
}

func TestPausesEnd(t *testing.T) {
	o, reg := newObserver(t, ObserverConfig{})
	paused := func(scope, by string) float64 {
		n, ok := values(t, reg)[fmt.Sprintf("forwarder_paused{by=%q,db=%q,scope=%q,topic=%q}", by, "shop", scope, "orders")]
		if !ok {
			return -1
		}
		return n
	}
	for _, scope := range []string{"a", "b"} {
		o.TopicPaused(t.Context(), observe.TopicPaused{DB: "shop", Scope: scope, Topic: "orders"})
		o.TopicPaused(t.Context(), observe.TopicPaused{DB: "shop", Scope: scope, Topic: "orders", ByOperator: true})
	}
	o.TopicResumed(t.Context(), observe.TopicResumed{DB: "shop", Scope: "a", Topic: "orders"})
	if paused("a", "forwarder") != 0 || paused("a", "operator") != 1 || paused("b", "forwarder") != 1 {
		t.Error("the end of one pause ended other pauses")
	}
	o.LanesOwned(t.Context(), meter.LanesOwned{DB: "shop", Scope: "b"})
	if paused("a", "operator") != 1 || paused("b", "forwarder") != -1 {
		t.Error("a stopped forwarder still pauses its topic, or a running one no longer does")
	}
}

// TestObserverAcceptsAnyName: users choose the names of handles, topics and handlers.
func TestObserverAcceptsAnyName(t *testing.T) {
	o, reg := newObserver(t, ObserverConfig{})
	for _, topic := range []string{"", "a\xffb", "x\x00y", `quote " and \`, strings.Repeat("long", 300)} {
		o.WriteEnd(t.Context(), observe.WriteEnd{DB: topic, Topic: topic, Messages: 1})
		o.LanesOwned(t.Context(), meter.LanesOwned{DB: topic, Scope: topic})
	}
	if n := testutil.CollectAndCount(o, "outbox_written_messages_total"); n != 5 {
		t.Errorf("%d of 5 topics were counted", n)
	}
	if _, err := reg.Gather(); err != nil {
		t.Error(err)
	}
}

func TestObserverIsSafeForConcurrentUse(t *testing.T) {
	o, reg := newObserver(t, ObserverConfig{})
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 50 {
				all(o)
				if _, err := reg.Gather(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if n := values(t, reg)[`deaths_total{db="shop",topic="orders"}`]; n != 400 {
		t.Errorf("%v of 400 deaths were counted", n)
	}
}

func TestObserverConfig(t *testing.T) {
	for field, cfg := range map[string]ObserverConfig{
		"Buckets": {Buckets: []float64{1, 1}},
		"Topics":  {Topics: []string{"orders"}},
	} {
		if _, err := NewObserver(cfg); err == nil || !strings.Contains(err.Error(), "ObserverConfig."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	_, reg := newObserver(t, ObserverConfig{Buckets: []float64{1}, DBs: []string{"a"}})
	if n, err := testutil.GatherAndCount(reg, "outbox_transaction_duration_seconds"); n != 4 || err != nil {
		t.Error(n, err)
	}
}

// BenchmarkObserver measures a message that is written, published and handled.
func BenchmarkObserver(b *testing.B) {
	o, _ := newObserver(b, ObserverConfig{})
	ctx, msg := context.Background(), message.NewMessage("1", nil)
	for b.Loop() {
		o.WriteEnd(o.WriteStart(ctx, observe.WriteStart{DB: "shop", Topic: "orders"}),
			observe.WriteEnd{DB: "shop", Topic: "orders", Messages: 1})
		o.PublishEnd(o.PublishStart(ctx, observe.PublishStart{DB: "shop", Topic: "orders", Message: msg}),
			observe.PublishEnd{DB: "shop", Topic: "orders"})
		o.HandleEnd(ctx, observe.HandleEnd{DB: "shop", Service: "booking", Handler: "book", Topic: "orders"})
		o.TxEnd(ctx, meter.TxEnd{DB: "shop"})
	}
}
