package prom

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/partitions"
)

// shown is a collector that exports a given sample.
type shown struct {
	*collector
	sample sample
}

func newShown(cfg CollectorConfig) *shown {
	cfg.setDefaults()
	c := &shown{collector: &collector{cfg: cfg, descs: newDescs("shop")}}
	for _, topic := range cfg.Topics {
		c.known.topics.add(topic)
	}
	return c
}

func (c *shown) Collect(to chan<- prometheus.Metric) {
	c.known.add(c.sample)
	c.show(c.sample, to)
	for _, d := range []*prometheus.Desc{c.descs.up, c.descs.seconds} {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, 1)
	}
}

// something returns a sample that has a value for every metric.
func something() sample {
	return sample{
		outbox: map[cell]counted{
			{"orders", "ready"}: {3, 60}, {"orders", "failing"}: {1, 90}, {"orders", "delayed"}: {2, 4000},
			{"orders", "dead"}: {5, 90000},
		},
		inbox:      map[cell]counted{{"booking/book", "failing"}: {1, 30}, {"booking/book", "dead"}: {2, 8000}},
		queue:      map[cell]counted{{"payment", "ready"}: {4, 20}, {"payment", "delayed"}: {1, 9000}},
		paused:     map[cell]counted{{"bookings", "forwarder"}: {2, 30}},
		forwarders: map[cell]counted{{"", "alive"}: {2, 0}},
		lanes:      map[cell]counted{{"default", ""}: {64, 0}},
		reads:      map[cell]counted{{"bookings", ""}: {1, 0}},
		unhandled:  map[cell]counted{{"payment", ""}: {4, 20}},
		partitions: &partitions.Set{Known: true, Last: 15, Partitions: []partitions.Partition{
			{Range: partitions.Range{From: 0, To: 10}}, {Range: partitions.Range{From: 10, To: 20}},
			{Range: partitions.Range{From: 20, To: 30}}}},
	}
}

func TestCollectorExportsItsSample(t *testing.T) {
	c := newShown(CollectorConfig{Topics: []string{"refunds"}})
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	for series, n := range values(t, reg) {
		if n != 0 && !strings.HasPrefix(series, "up") && !strings.HasPrefix(series, "collect_") {
			t.Errorf("%s is %v with empty tables", series, n)
		}
	}
	c.sample = something()
	lint(t, reg)
	want := map[string]float64{
		`messages{db="shop",state="ready",topic="orders"}`: 3, `messages{db="shop",state="dead",topic="orders"}`: 5,
		`messages{db="shop",state="failing",topic="orders"}`: 1, `messages{db="shop",state="delayed",topic="orders"}`: 2,
		// dead and delayed messages have no age
		`oldest_message_age_seconds{db="shop",state="ready",topic="orders"}`:        60,
		`oldest_message_age_seconds{db="shop",state="failing",topic="orders"}`:      90,
		`topic_paused_seconds{by="forwarder",db="shop",topic="bookings"}`:           30,
		`topic_unread{db="shop",topic="orders"}`:                                    1, // only bookings is read
		`topic_unread{db="shop",topic="bookings"}`:                                  0,
		`queue_topic_unhandled{db="shop",topic="payment"}`:                          1,
		`messages{db="shop",state="dead",topic="refunds"}`:                          0,
		`topic_paused{by="forwarder",db="shop",topic="bookings"}`:                   1,
		`topic_paused{by="operator",db="shop",topic="bookings"}`:                    0,
		`topic_paused{by="operator",db="shop",topic="orders"}`:                      0,
		`forwarders{db="shop",state="alive"}`:                                       2,
		`forwarders{db="shop",state="vanished"}`:                                    0,
		`leased_lanes{db="shop",scope="default"}`:                                   64,
		`inbox_messages{consumer="booking/book",db="shop",state="dead"}`:            2,
		`inbox_oldest_message_age_seconds{consumer="booking/book",db="shop"}`:       30,
		`queue_messages{db="shop",state="ready",topic="payment"}`:                   4,
		`queue_oldest_message_age_seconds{db="shop",state="ready",topic="payment"}`: 20,
		`counts_bounded{db="shop"}`:                                                 0,
	}
	check := func() {
		t.Helper()
		found := values(t, reg)
		for series, n := range want {
			if got, ok := found[series]; !ok || got != n {
				t.Errorf("%s is %v, want %v", series, got, n)
			}
		}
	}
	check()
	found := values(t, reg)
	for series, n := range map[string]float64{
		`table_partitions{db="shop"}`: 3, `table_partitions_ahead{db="shop"}`: 1,
	} {
		if found[series] != n {
			t.Errorf("%s is %v, want %v", series, found[series], n)
		}
	}
	c.sample = sample{bounded: true}
	for series := range want {
		want[series] = 0
	}
	want[`counts_bounded{db="shop"}`] = 1
	check() // an ended state is zero, not missing
	if _, shown := values(t, reg)[`table_partitions_ahead{db="shop"}`]; shown {
		t.Error("an unpartitioned outbox exports partitions ahead, which would raise an alert")
	}
}

func TestCollectorConfig(t *testing.T) {
	if _, err := NewCollector(nil, CollectorConfig{}, nil); !errors.Is(err, outbox.ErrNoDB) {
		t.Error(err)
	}
	for field, cfg := range map[string]CollectorConfig{
		"QueryTimeout": {QueryTimeout: -time.Second},
	} {
		if _, err := NewCollector(nil, cfg, nil); err == nil || !strings.Contains(err.Error(), "CollectorConfig."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
