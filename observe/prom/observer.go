package prom

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/observe"
)

// ObserverConfig configures NewObserver. The zero value is ready for use.
type ObserverConfig struct {
	// Buckets are the upper bounds of all histograms, in seconds; default: 17 from 1 ms to 1 h.
	Buckets []float64
	// DBs and Topics are handle names and topics whose series start with zero; default none. Then rate() sees the first
	// event. Topics need DBs.
	DBs, Topics []string
}

// namespace is the first part of all names.
const namespace = "outbox"

var defaultBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 3600}

func (c *ObserverConfig) setDefaults() {
	if c.Buckets == nil {
		c.Buckets = defaultBuckets
	}
}

func (c ObserverConfig) validate() error {
	for i := range c.Buckets {
		if i > 0 && !(c.Buckets[i] > c.Buckets[i-1]) {
			return fmt.Errorf("ObserverConfig.Buckets: %g follows %g: they must ascend", c.Buckets[i], c.Buckets[i-1])
		}
	}
	if len(c.Topics) > 0 && len(c.DBs) == 0 {
		return fmt.Errorf("ObserverConfig.Topics needs ObserverConfig.DBs: name the handles of these topics")
	}
	return nil
}

// observer counts the events of the handles that it is passed to.
type observer struct {
	cfg  ObserverConfig
	list []prometheus.Collector // what to collect

	dbs      family[string, *dbSeries]
	topics   family[topicKey, *topicSeries]
	scopes   family[scopeKey, *scopeSeries]
	handlers family[handlerKey, *handlerSeries]
	metrics  metrics

	partitions partitionGauges
}

var (
	_ prometheus.Collector    = (*observer)(nil)
	_ meter.TxObserver        = (*observer)(nil)
	_ observe.WriteObserver   = (*observer)(nil)
	_ observe.HandleObserver  = (*observer)(nil)
	_ observe.PublishObserver = (*observer)(nil)
	_ observe.DeadObserver    = (*observer)(nil)
	_ observe.TopicObserver   = (*observer)(nil)
	_ meter.ForwarderObserver = (*observer)(nil)

	_ meter.PartitionObserver = (*observer)(nil)
)

// NewObserver makes a collector that counts the events of the handles that it is passed to, any number of them
// (outbox.DBConfig.Observers), and the partitions of subscribers (SubscriberConfig.Observers of kafka and nats). It
// registers nothing, and is safe for concurrent use. NewObserver returns an error that names the invalid field.
func NewObserver(cfg ObserverConfig) (prometheus.Collector, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	o := &observer{cfg: cfg}
	o.define()
	o.definePartitions()
	for _, db := range cfg.DBs {
		o.dbs.of(db, o.newDB)
		for _, topic := range cfg.Topics {
			o.topics.of(topicKey{db, topic}, o.newTopic)
		}
	}
	return o, nil
}

// Describe is part of prometheus.Collector.
func (o *observer) Describe(to chan<- *prometheus.Desc) {
	for _, c := range o.list {
		c.Describe(to)
	}
}

// Collect is part of prometheus.Collector.
func (o *observer) Collect(to chan<- prometheus.Metric) {
	for _, c := range o.list {
		c.Collect(to)
	}
}

// family holds the series of each item, such as a topic, made at its first event: all together, so that they begin at
// zero, and kept, because looking them up by labels costs more than counting.
type family[K comparable, S any] struct{ known sync.Map }

func (f *family[K, S]) of(key K, series func(K) S) S {
	if s, ok := f.known.Load(key); ok {
		return s.(S)
	}
	s, _ := f.known.LoadOrStore(key, series(key)) // the same labels are the same series in every observer
	return s.(S)
}

// labels makes label values that Prometheus accepts.
func labels(values ...string) []string {
	values = slices.Clone(values)
	for i, v := range values {
		values[i] = strings.ToValidUTF8(v, "\uFFFD")
	}
	return values
}
