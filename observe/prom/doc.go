// Package prom exports metrics of an outbox and an inbox to Prometheus: events as they happen, and the state of the
// tables.
//
// The observer counts the events of handles. Pass it to them (outbox.DBConfig.Observers), and register it:
//
//	seen, err := prom.NewObserver(prom.ObserverConfig{})
//	db, err := outbox.FromPgx(pool, outbox.DBConfig{Observers: []observe.Observer{seen}}, logger)
//	prometheus.MustRegister(seen)
//
// The collector exports the state of a handle's tables: backlog, age of the oldest message, dead messages and pauses.
// One process is enough to export it; several export the same, and the rules in dashboards/ take their maximum.
//
//	waiting, err := prom.NewCollector(db, prom.CollectorConfig{}, logger)
//	prometheus.MustRegister(waiting)
//
// docs/reference/metrics.md lists all metrics. dashboards/ has a dashboard for Grafana, and alerts.
//
// # Cost of a scrape
//
// The observer responds from memory. The collector runs one query in its own short transaction, and one to three more
// for partitions. It counts at most 10,000 dead messages of a topic, and 20,000 of all topics together; the same for
// failing messages, and for consumers of the inbox. Of ready and delayed messages it counts the oldest 100 of each of
// the 64 lanes. outbox_counts_bounded is 1 if a count stopped there. If the query fails or takes longer than
// CollectorConfig.QueryTimeout, outbox_up is 0 and the other series are left out, so that stale values do not pass for
// new ones. Its role needs the grants of the reader in schema.Roles.
//
// # Series start at zero
//
// To Prometheus a counter whose first value is 1 has not increased. So all series of a topic, handler or scope begin at
// zero with its first event, and series of ObserverConfig.Topics and CollectorConfig.Topics when the process starts.
// They stay until the process ends. Each topic has about 60 series of an Observer and 7 of a Collector, so keep the
// number of topic names low.
package prom
