package prom

import (
	"github.com/prometheus/client_golang/prometheus"
)

// descs are the descriptions of a collector's metrics.
type descs struct {
	up, seconds, bounded       *prometheus.Desc
	messages, oldest, paused   *prometheus.Desc
	pausedFor, unread          *prometheus.Desc
	forwarders, lanes          *prometheus.Desc
	inboxMessages, inboxOldest *prometheus.Desc
	queueMessages, queueOldest *prometheus.Desc
	queueUnhandled             *prometheus.Desc
	partitions, ahead          *prometheus.Desc
}

func newDescs(db string) descs {
	own := prometheus.Labels{"db": labels(db)[0]}
	desc := func(name, help string, by ...string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(namespace, "", name), help, by, own)
	}
	return descs{
		up: desc("up", "1 if the tables could be read, else 0. While it is 0, the other figures from the tables are "+
			"missing."),
		seconds: desc("collect_duration_seconds", "Duration of the last read of the tables."),
		bounded: desc("counts_bounded", "1 if a count stopped at its limit, else 0. Limits for dead messages and for "+
			"failing messages: 10,000 per topic or consumer, 20,000 over all of them. For ready and for delayed messages: "+
			"100 per lane. For the queue: 10,000 per state."),

		messages: desc("messages", "Unpublished messages in the outbox, by state. A failing message waits for another "+
			"attempt.", "topic", "state"),
		oldest: desc("oldest_message_age_seconds", "Age of the oldest message that is ready or failing; 0 = none. A "+
			"delayed message ages from the time when it is due.", "topic", "state"),
		pausedFor: desc("topic_paused_seconds", "Time since the topic was paused; 0 = not paused.", "topic", "by"),
		unread: desc("topic_unread", "1 if messages of the topic are ready, but none of the running forwarders publishes "+
			"it; else 0.", "topic"),
		paused: desc("topic_paused", "1 if the topic is paused, by a running forwarder because it is unavailable or by an "+
			"operator; else 0.", "topic", "by"),

		forwarders: desc("forwarders", "Forwarders and Subscribers of the outbox that are alive, or that vanished within "+
			"the last hour.", "state"),
		lanes: desc("leased_lanes", "Lanes, out of 64 per scope, that running forwarders own.", "scope"),

		inboxMessages: desc("inbox_messages", "Failing and dead messages in the inbox.", "consumer", "state"),
		inboxOldest: desc("inbox_oldest_message_age_seconds", "Age of the oldest failing message in the inbox; 0 = none.",
			"consumer"),

		queueMessages: desc("queue_messages", "Messages in the queue that are not done, by state. A failing message waits "+
			"for another attempt.", "topic", "state"),
		queueOldest: desc("queue_oldest_message_age_seconds", "Age of the oldest message that is ready or failing and is "+
			"not being handled; 0 = none. A delayed message ages from the time when it is due.", "topic", "state"),
		queueUnhandled: desc("queue_topic_unhandled", "1 if messages of the topic have been due for a minute while none "+
			"is being handled; else 0.", "topic"),

		partitions: desc("table_partitions", "Partitions of the outbox table, without the default partition."),
		ahead: desc("table_partitions_ahead", "Partitions of the outbox table above the last id. At 0, the default "+
			"partition takes new messages, or will soon."),
	}
}

func (d descs) all() []*prometheus.Desc {
	return []*prometheus.Desc{
		d.up, d.seconds, d.bounded, d.messages, d.oldest, d.paused, d.forwarders, d.lanes, d.inboxMessages, d.inboxOldest,
		d.queueMessages, d.queueOldest, d.pausedFor, d.unread, d.queueUnhandled, d.partitions, d.ahead,
	}
}

// show sends the figures of a sample, and zeros for known names that the sample lacks.
func (c *collector) show(s sample, to chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, value float64, of ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels(of...)...)
	}
	// If no name is known yet, one series without a name lets dashboards show zeros.
	unnamed := func(all names) names {
		if len(all) == 0 {
			return names{"": true}
		}
		return all
	}
	messages := func(cells map[cell]counted, all names, messages, oldest *prometheus.Desc, states ...string) {
		for name := range unnamed(all) {
			for _, state := range states {
				send(messages, cells[cell{name, state}].n, name, state)
			}
			if oldest == c.descs.inboxOldest {
				send(oldest, cells[cell{name, "failing"}].oldest, name)
				continue
			}
			for _, state := range []string{"ready", "failing"} {
				send(oldest, cells[cell{name, state}].oldest, name, state)
			}
		}
	}
	d := c.descs
	messages(s.outbox, c.known.topics, d.messages, d.oldest, "ready", "delayed", "failing", "dead")
	messages(s.queue, c.known.queues, d.queueMessages, d.queueOldest, "ready", "delayed", "failing", "dead")
	messages(s.inbox, c.known.consumers, d.inboxMessages, d.inboxOldest, "failing", "dead")
	for topic := range unnamed(c.known.topics) {
		for _, by := range pausers {
			send(d.paused, min(s.paused[cell{topic, by}].n, 1), topic, by)
			send(d.pausedFor, s.paused[cell{topic, by}].oldest, topic, by)
		}
		send(d.unread, s.unread(topic), topic)
	}
	for topic := range unnamed(c.known.queues) {
		send(d.queueUnhandled, min(s.unhandled[cell{topic, ""}].n, 1), topic)
	}
	for _, state := range []string{"alive", "vanished"} {
		send(d.forwarders, s.forwarders[cell{"", state}].n, state)
	}
	for scope := range unnamed(c.known.scopes) {
		send(d.lanes, s.lanes[cell{scope, ""}].n, scope)
	}
	if p := s.partitions; p != nil {
		send(d.partitions, float64(len(p.Partitions)))
		if p.Known {
			send(d.ahead, float64(p.Ahead()))
		}
	}
	bounded := 0.0
	if s.bounded {
		bounded = 1
	}
	send(d.bounded, bounded)
}
