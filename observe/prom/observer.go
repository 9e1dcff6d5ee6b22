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
	// Buckets are the upper bounds of the buckets of all histograms, in seconds and in ascending order; default: 17 bounds
	// from 1 ms to 1 h.
	Buckets []float64
	// DBs and Topics are names of handles, and topics, whose series exist from the start, at zero; default none. Then
	// rate() sees even their first event. Topics requires DBs.
	DBs, Topics []string
}

// namespace is the prefix of all metric names.
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
			return fmt.Errorf("ObserverConfig.Buckets has %g after %g: sort the bounds in ascending order, without duplicates",
				c.Buckets[i], c.Buckets[i-1])
		}
	}
	if len(c.Topics) > 0 && len(c.DBs) == 0 {
		return fmt.Errorf("ObserverConfig.Topics is set and ObserverConfig.DBs is not: name the handles of these topics")
	}
	return nil
}

// observer counts the events of the handles that it is passed to.
type observer struct {
	cfg  ObserverConfig
	list []prometheus.Collector // all metrics

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

// NewObserver returns an observer that counts the events of handles and shows the partitions of subscribers. Pass it to
// any number of handles (outbox.DBConfig.Observers) and of subscribers of kafka and nats (SubscriberConfig.Observers),
// and register it with Prometheus, which NewObserver does not do. It is safe for concurrent use. An error names the
// invalid field of cfg.
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

// Describe implements prometheus.Collector.
func (o *observer) Describe(to chan<- *prometheus.Desc) {
	for _, c := range o.list {
		c.Describe(to)
	}
}

// Collect implements prometheus.Collector.
func (o *observer) Collect(to chan<- prometheus.Metric) {
	for _, c := range o.list {
		c.Collect(to)
	}
}

// family caches the series of each key, such as a topic. The first event of a key creates all its series, so that they
// begin at zero. They are cached because a lookup by labels costs more than counting.
type family[K comparable, S any] struct{ known sync.Map }

func (f *family[K, S]) of(key K, series func(K) S) S {
	if s, ok := f.known.Load(key); ok {
		return s.(S)
	}
	s, _ := f.known.LoadOrStore(key, series(key)) // of two concurrent calls, both get the same series
	return s.(S)
}

// labels returns values as valid UTF-8, because Prometheus refuses other label values.
func labels(values ...string) []string {
	values = slices.Clone(values)
	for i, v := range values {
		values[i] = strings.ToValidUTF8(v, "\uFFFD")
	}
	return values
}
