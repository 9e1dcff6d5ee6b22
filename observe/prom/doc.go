// Package prom exports metrics of an outbox and an inbox to Prometheus: events as they happen, and what is in the
// tables.
//
// An Observer counts what is done through handles. It is given to them (outbox.DBConfig.Observers), and registered:
//
//	seen, err := prom.NewObserver(prom.ObserverConfig{})
//	db, err := outbox.FromPgx(pool, outbox.DBConfig{Observers: []observe.Observer{seen}}, logger)
//	prometheus.MustRegister(seen)
//
// A Collector says what is in the tables of a handle: how much waits, how old the oldest is, what is dead and what is
// paused. Only the database knows that, and it knows it whichever process runs, so one process is enough to show it;
// several show the same, and the rules in dashboards/ take their maximum.
//
//	waiting, err := prom.NewCollector(db, prom.CollectorConfig{}, logger)
//	prometheus.MustRegister(waiting)
//
// docs/reference/metrics.md lists all metrics. In dashboards/ are a dashboard for Grafana, and alerts.
//
// # What a scrape costs
//
// An Observer answers from memory. A Collector runs one query on a connection of the handle's pool, in a short
// transaction of its own, however many topics there are, and one to three more that look at partitions. It counts at
// most 10,000 dead messages of a topic, and 20,000 of all together, so of each of several topics fewer; as many that
// are failing, and as many of the consumers of the inbox. Of ready and delayed ones it counts the first 100 of each of
// the 64 lanes, which are the oldest. outbox_counts_bounded says whether it stopped there. If it fails, or gets no
// connection within CollectorConfig.QueryTimeout, outbox_up is 0 and the other series are left out, so that nothing old
// passes for new. Its role needs what schema.Roles grants to the reader.
//
// # Series that are there before something happens
//
// A counter whose first value is 1 has not increased, as far as Prometheus can tell. So whatever is first heard of a
// topic, a handler or a scope, all its series begin at zero, and those of ObserverConfig.Topics and
// CollectorConfig.Topics do so when the process starts. A series stays until the process ends: a topic with nothing in
// it shows zeros. Each topic has about 60 series of an Observer and 7 of a Collector, so names of topics should be few.
//
// # Times
//
// outbox_lag_seconds is how long messages were in the outbox, from their INSERT, which travels with COMMIT where it
// can, until the publisher returned, on the database's clock. Messages that were delayed on purpose do not count there.
package prom
