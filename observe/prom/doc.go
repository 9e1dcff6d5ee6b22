// Package prom exports metrics of an outbox, an inbox and a queue to Prometheus: events as they happen, and the state
// of the tables.
//
//	events, err := prom.NewObserver(prom.ObserverConfig{})
//	db, err := outbox.FromPgx(pool, outbox.DBConfig{Observers: []observe.Observer{events}}, logger)
//	state, err := prom.NewCollector(db, prom.CollectorConfig{}, logger)
//	prometheus.MustRegister(events, state)
//
// An observer counts the events of the handles that it is passed to, in this process: use the sum over all processes.
//
// A collector exports the state of a handle's tables: backlog, age of the oldest message, dead messages and pauses. If
// several processes export it, their values are the same: use the maximum, as the dashboard and the alerts in
// dashboards/ do. docs/reference/metrics.md lists all metrics.
//
// # Cost of a scrape
//
// The observer only reads memory. The collector runs one query in a short transaction, and one to three more
// about partitions. It counts at most 10,000 dead messages per topic, and 20,000 over all topics. The same limits apply
// to failing messages, and to the consumers of the inbox. Of ready and delayed messages it counts the first 100 in each
// of the 64 lanes. If a count reaches its limit, outbox_counts_bounded is 1.
//
// If a query fails, or CollectorConfig.QueryTimeout passes, outbox_up is 0 and the other figures are missing, so that
// stale values cannot pass for current ones. The collector's role needs the grants of the reader in schema.Roles.
//
// # Series start at zero
//
// Prometheus sees no increase in a counter whose first value is 1. So the first event of a topic, handler or scope
// creates all its series, at zero. The series of ObserverConfig.Topics and CollectorConfig.Topics exist from the start.
// All of them last until the process ends. Each topic of the outbox has about 50 series in an observer and 11 in a
// collector, so keep the number of topics low.
package prom
