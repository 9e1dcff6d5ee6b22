package prom

import (
	"github.com/prometheus/client_golang/prometheus"
)

// descs are all that a Collector shows.
type descs struct {
	up, seconds, bounded       *prometheus.Desc
	messages, oldest, paused   *prometheus.Desc
	forwarders, lanes          *prometheus.Desc
	inboxMessages, inboxOldest *prometheus.Desc
	queueMessages, queueOldest *prometheus.Desc
}

func newDescs(namespace, db string) descs {
	own := prometheus.Labels{"db": labels(db)[0]}
	desc := func(name, help string, by ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, by, own)
	}
	return descs{
		up:      desc("up", "Whether the tables could be read. If not, the others of these gauges are left out."),
		seconds: desc("collect_duration_seconds", "How long it took to read the tables."),
		bounded: desc("counts_bounded", "Whether there is more of something than is counted: 10,000 dead or failing messages of a topic or consumer, fewer of each where there are several, 20,000 of all; 100 ready or delayed ones of a lane."),

		messages: desc("messages", "Messages in the outbox that were not published, by state: ready, delayed on purpose, failing (waiting for another attempt), dead.", "topic", "state"),
		oldest:   desc("oldest_message_age_seconds", "Age of the oldest message that is ready or failing; 0 = there is none.", "topic"),
		paused: desc("topic_paused", "Whether the topic is paused by a forwarder that is alive, because it is unavailable, or by an operator. 1 = paused. "+
			"It is kept in the database, so it outlives the process that shows it.", "topic", "by"),

		forwarders: desc("forwarders", "Forwarders and subscribers of the outbox that are alive, or vanished less than an hour ago.", "state"),
		lanes:      desc("leased_lanes", "How many of the 64 lanes of a scope belong to a forwarder that is alive.", "scope"),

		inboxMessages: desc("inbox_messages", "Messages of the inbox that failed and were not handled since, or are dead.", "consumer", "state"),
		inboxOldest:   desc("inbox_oldest_message_age_seconds", "Age of the oldest message that is failing; 0 = there is none.", "consumer"),

		queueMessages: desc("queue_messages", "Messages in the queue of package queue that are not done, by state: ready, delayed on purpose, failing (waiting for another attempt), dead.", "topic", "state"),
		queueOldest:   desc("queue_oldest_message_age_seconds", "Age of the oldest message that is ready or failing; 0 = there is none.", "topic"),
	}
}

func (d descs) all() []*prometheus.Desc {
	return []*prometheus.Desc{
		d.up, d.seconds, d.bounded, d.messages, d.oldest, d.paused, d.forwarders, d.lanes, d.inboxMessages, d.inboxOldest, d.queueMessages, d.queueOldest,
	}
}

// show sends what was found, with zeros where nothing was.
func (c *Collector) show(s sample, to chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, value float64, of ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels(of...)...)
	}
	messages := func(cells map[cell]counted, all names, messages, oldest *prometheus.Desc, states ...string) {
		for name := range all {
			for _, state := range states {
				send(messages, cells[cell{name, state}].n, name, state)
			}
			send(oldest, max(cells[cell{name, "ready"}].oldest, cells[cell{name, "failing"}].oldest), name)
		}
	}
	d := c.descs
	messages(s.outbox, c.known.topics, d.messages, d.oldest, "ready", "delayed", "failing", "dead")
	messages(s.queue, c.known.queues, d.queueMessages, d.queueOldest, "ready", "delayed", "failing", "dead")
	messages(s.inbox, c.known.consumers, d.inboxMessages, d.inboxOldest, "failing", "dead")
	for topic := range c.known.topics {
		for _, by := range pausers {
			send(d.paused, min(s.paused[cell{topic, by}].n, 1), topic, by)
		}
	}
	for _, state := range []string{"alive", "vanished"} {
		send(d.forwarders, s.forwarders[cell{"", state}].n, state)
	}
	for scope := range c.known.scopes {
		send(d.lanes, s.lanes[cell{scope, ""}].n, scope)
	}
	bounded := 0.0
	if s.bounded {
		bounded = 1
	}
	send(d.bounded, bounded)
}
