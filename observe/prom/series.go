package prom

import (
	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of an observer.
type metrics struct {
	txSeconds, publishSeconds, lag, readSeconds, settleSeconds, handleSeconds *prometheus.HistogramVec

	written, writtenBytes, writeErrors *prometheus.CounterVec
	published, dead, handled           *prometheus.CounterVec
	readRows, readErrors               *prometheus.CounterVec
	settled, settleErrors              *prometheus.CounterVec
	cleaned, cleanErrors               *prometheus.CounterVec

	lanes, paused *prometheus.GaugeVec
}

// The values of labels that have a fixed set of values.
var (
	txResults      = []string{"committed", "rolled_back", "failed", "unknown"}
	publishResults = []string{"published", "retry", "unavailable", "permanent", "unknown", "stopped"}
	settleResults  = []string{"done", "failed", "dead"}
	outcomes       = []string{"processed", "failed", "duplicate", "mismatch", "rolled_back", "dead", "postponed"}
	pausers        = []string{"forwarder", "operator"}
)

// define creates the metrics.
func (o *observer) define() {
	of := func(labels []string) []string { return append([]string{"db"}, labels...) }
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, of(labels))
		o.list = append(o.list, v)
		return v
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help}, of(labels))
		o.list = append(o.list, v)
		return v
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		opts := prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: o.cfg.Buckets}
		v := prometheus.NewHistogramVec(opts, of(labels))
		o.list = append(o.list, v)
		return v
	}
	o.metrics = metrics{
		txSeconds: histogram("transaction_duration_seconds", "Duration of transactions of InTx and middleware.Tx, from "+
			"BEGIN to COMMIT or ROLLBACK. Result unknown: the reply to COMMIT was lost.", "result"),

		written: counter("written_messages_total", "Messages written to the outbox, including messages that were rolled "+
			"back later.", "topic"),
		writtenBytes: counter("written_bytes_total", "Payload bytes written to the outbox, including messages that were "+
			"rolled back later.", "topic"),
		writeErrors: counter("write_errors_total", "Failed writes to the outbox, by Publish or for the messages that a "+
			"handler returned.", "topic"),

		published: counter("publishes_total", "Attempts to publish a message, or to deliver it to a Subscriber, by "+
			"result. Result stopped: the forwarder stopped or lost the lane before the attempt had a result.", "topic",
			"result"),
		publishSeconds: histogram("publish_duration_seconds", "Duration of calls to the publisher, including failed calls.",
			"topic"),
		lag: histogram("lag_seconds", "Time from INSERT until the publisher returned, on the database's clock. Messages "+
			"delayed on purpose are not counted.", "topic"),
		dead: counter("deaths_total", "Messages of the outbox that died. They are not retried until an operator requeues "+
			"them.", "topic"),

		lanes: gauge("owned_lanes", "Lanes, out of 64 per scope, that the forwarder in this process owns.", "scope"),
		paused: gauge("forwarder_paused", "1 if the topic is paused, by the forwarder in this process or by an operator; "+
			"else 0.", "scope", "topic", "by"),

		readSeconds: histogram("read_duration_seconds", "Duration of the forwarder's reads of the outbox.", "scope"),
		readRows:    counter("read_rows_total", "Messages that the forwarder read into memory.", "scope"),
		readErrors:  counter("read_errors_total", "Failed reads of the outbox.", "scope"),
		settleSeconds: histogram("settle_duration_seconds", "Duration of the statements in which the forwarder records "+
			"results.", "scope"),
		settled: counter("settled_messages_total", "Messages whose result was recorded. A message that died counts as "+
			"dead and as failed.", "scope", "result"),
		settleErrors: counter("settle_errors_total", "Failed statements to record results. They are retried.", "scope"),
		cleaned:      counter("cleaned_rows_total", "Rows deleted because their retention was over.", "table"),
		cleanErrors:  counter("clean_errors_total", "Failed deletions of old rows.", "table"),

		handled: counter("handled_messages_total", "Deliveries to handlers of a Router or a Dispatcher, by outcome. A "+
			"mismatch also counts as a duplicate.", "service", "handler", "topic", "outcome"),
		handleSeconds: histogram("handle_duration_seconds", "Duration of deliveries, from the first middleware of this "+
			"library to the end of the transaction. For middleware.Batch: duration of each batch, from BEGIN to COMMIT.",
			"service", "handler", "topic"),
	}
}

// dbSeries are the series of a handle.
type dbSeries struct {
	tx map[string]prometheus.Observer
}

func (o *observer) newDB(db string) *dbSeries {
	return &dbSeries{tx: each(txResults, func(result string) prometheus.Observer {
		return o.metrics.txSeconds.WithLabelValues(labels(db, result)...)
	})}
}

// topicSeries are the series of a topic.
type topicSeries struct {
	written, writtenBytes, writeErrors, dead prometheus.Counter
	published                                map[string]prometheus.Counter
	publishSeconds, lag                      prometheus.Observer
}

type topicKey struct{ db, topic string }

func (o *observer) newTopic(k topicKey) *topicSeries {
	m, own := &o.metrics, labels(k.db, k.topic)
	return &topicSeries{
		written: m.written.WithLabelValues(own...), writtenBytes: m.writtenBytes.WithLabelValues(own...),
		writeErrors: m.writeErrors.WithLabelValues(own...), dead: m.dead.WithLabelValues(own...),
		published: each(publishResults, func(result string) prometheus.Counter {
			return m.published.WithLabelValues(append(own, result)...)
		}),
		publishSeconds: m.publishSeconds.WithLabelValues(own...), lag: m.lag.WithLabelValues(own...),
	}
}

// scopeSeries are the series of a forwarder's scope.
type scopeSeries struct {
	lanes                              prometheus.Gauge
	readSeconds, settleSeconds         prometheus.Observer
	readRows, readErrors, settleErrors prometheus.Counter
	settled                            map[string]prometheus.Counter
}

type scopeKey struct{ db, scope string }

func (o *observer) newScope(k scopeKey) *scopeSeries {
	m, own := &o.metrics, labels(k.db, k.scope)
	return &scopeSeries{
		lanes:       m.lanes.WithLabelValues(own...),
		readSeconds: m.readSeconds.WithLabelValues(own...), settleSeconds: m.settleSeconds.WithLabelValues(own...),
		readRows: m.readRows.WithLabelValues(own...), readErrors: m.readErrors.WithLabelValues(own...),
		settleErrors: m.settleErrors.WithLabelValues(own...),
		settled: each(settleResults, func(result string) prometheus.Counter {
			return m.settled.WithLabelValues(append(own, result)...)
		}),
	}
}

// handlerSeries are the series of a handler.
type handlerSeries struct {
	handled map[string]prometheus.Counter
	seconds prometheus.Observer
}

type handlerKey struct{ db, service, handler, topic string }

func (o *observer) newHandler(k handlerKey) *handlerSeries {
	own := labels(k.db, k.service, k.handler, k.topic)
	return &handlerSeries{
		handled: each(outcomes, func(outcome string) prometheus.Counter {
			return o.metrics.handled.WithLabelValues(append(own, outcome)...)
		}),
		seconds: o.metrics.handleSeconds.WithLabelValues(own...),
	}
}

// each returns a metric for each value of a label.
func each[M any](values []string, metric func(value string) M) map[string]M {
	all := make(map[string]M, len(values))
	for _, v := range values {
		all[v] = metric(v)
	}
	return all
}
