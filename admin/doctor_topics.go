package admin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// Ages from which a pause is reported.
const (
	outageLong     = 5 * time.Minute // by forwarders
	pauseLong      = 4 * time.Hour
	pauseForgotten = 24 * time.Hour // if messages wait
)

// pauses reports paused topics: a finding for each topic that an operator paused, and one for each outage, which may
// concern many topics.
func (e *doctorRun) pauses() {
	outages := map[string]*outage{}
	var order []string
	for _, t := range e.stats.Topics {
		for _, p := range t.PausedBy {
			if p.By == byOperator {
				e.pausedByOperator(t, p)
				continue
			}
			cause := groupID(strings.ReplaceAll(p.Reason, t.Topic, "topic"))
			o := outages[cause]
			if o == nil {
				o = &outage{since: p.Since, by: p.By, reason: p.Reason}
				outages[cause] = o
				order = append(order, cause)
			}
			o.add(t, p)
		}
	}
	for _, cause := range order {
		e.unavailable(outages[cause])
	}
}

// outage is a broker that forwarders cannot reach, all with the same error.
type outage struct {
	since      time.Time
	by, reason string
	forwarders []string
	topics     []string
	ready      Count
}

func (o *outage) add(t TopicStats, p Pause) {
	if p.Since.Before(o.since) {
		o.since, o.by, o.reason = p.Since, p.By, p.Reason
	}
	if !slices.Contains(o.forwarders, p.By) {
		o.forwarders = append(o.forwarders, p.By)
	}
	if !slices.Contains(o.topics, t.Topic) {
		o.topics = append(o.topics, t.Topic)
		o.ready = Count{N: o.ready.N + t.Ready.N, More: o.ready.More || t.Ready.More}
	}
}

func (e *doctorRun) unavailable(o *outage) {
	e.brokerDown = true
	age, subject, others, it := e.stats.At.Sub(o.since), "", "", "them"
	if n := len(o.forwarders) - 1; n > 0 {
		others = fmt.Sprintf(" (and %d others)", n)
	}
	if len(o.topics) == 1 {
		subject, it = o.topics[0], "it"
	}
	s := Warning
	if age > outageLong {
		s = Critical
	}
	e.findOf(Outbox, subject, "topic_unavailable", s,
		fmt.Sprintf("forwarder %q%s could not publish to %s for %s: %s; %s", o.by, others,
			strings.TrimPrefix(ofTopics(o.topics), "of "), span(age), o.reason,
			messages(o.ready, "of "+it, "is ready", "are ready")),
		"fix the cause that the error names; the forwarder then resumes the topic on its own, and counts no attempt")
}

// pausedByOperator grades a pause by its age, and by the messages that wait.
func (e *doctorRun) pausedByOperator(t TopicStats, p Pause) {
	age, waits := e.stats.At.Sub(p.Since), Count{N: t.Ready.N + t.Failing.N, More: t.Ready.More || t.Failing.More}
	for _, q := range e.stats.Queue {
		if q.Topic == t.Topic {
			waits = Count{
				N: waits.N + q.Ready.N + q.Failing.N, More: waits.More || q.Ready.More || q.Failing.More,
			}
		}
	}
	s := Info
	switch {
	case age > pauseForgotten && waits.N > 0:
		s = Critical
	case age > pauseLong:
		s = Warning
	}
	topic := shell(t.Topic)
	if strings.HasPrefix(t.Topic, "-") {
		topic = "-- " + topic
	}
	e.findOf(Outbox, t.Topic, "topic_paused", s,
		fmt.Sprintf("an operator paused topic %q %s ago (%s); %s", t.Topic, span(age), p.Reason,
			messages(waits, "of it", "is pending", "are pending")),
		"resume it when its messages may be published"+e.command("topics resume", topic)+
			": DELETE FROM "+e.db.Render("{outbox_topics}")+
			" WHERE forwarder = '00000000-0000-0000-0000-000000000000' AND topic = "+literal(t.Topic))
}

// manyOfKey is the number of messages of one key that makes the key the reason for a backlog, if they are also a fifth
// of the next messages. A sample of a lane may consist of one key.
const manyOfKey = 100

// backlog reports messages that stay ready for long although a forwarder reads them.
func (e *doctorRun) backlog(ctx context.Context, t, ready TopicStats) error {
	if ready.Oldest < slow {
		return nil
	}
	var next, most, behind int64
	var key string
	err := e.rows(ctx, []any{&next, &most, &key, &behind}, func() {}, sqltext.DoctorKeys, t.Topic, int64(sampleSize))
	if err != nil || next > 0 && behind == next && t.Failing.N > 0 {
		return err // they wait behind failing messages of their keys, which have their own finding
	}
	var written float64
	err = e.rows(ctx, []any{&written}, func() {}, sqltext.DoctorWritten, t.Topic, int64(rateSample))
	evidence := fmt.Sprintf("%s, the oldest for %s; %.1f per second are published",
		messages(ready.Ready, ofTopic(t.Topic), "is ready", "are ready"), span(ready.Oldest), t.Rate)
	if written > t.Rate {
		evidence += fmt.Sprintf(" and %.1f per second are written: the backlog grows", written)
	}
	cure := "raise forwarder.Config.Concurrency, or run more forwarders; messages without a key are published in parallel"
	if most >= manyOfKey && most*5 >= next {
		evidence += fmt.Sprintf("; of the %d that are next, %d have the key %q", next, most, key)
		cure = fmt.Sprintf("make publishing of key %q faster, or give its messages several keys: a key is published in "+
			"sequence, so that neither Concurrency nor more forwarders help", key)
	}
	for _, scope := range slices.Sorted(maps.Keys(e.stats.UnownedLanes)) {
		if slices.ContainsFunc(e.members, func(m member) bool { return m.scope == scope && m.reads(t.Topic) }) {
			evidence += fmt.Sprintf("; no forwarder reads %d of the 64 lanes of scope %s", e.stats.UnownedLanes[scope], scope)
			cure = "check the log of the forwarders of that scope: they take over lanes within the LeaseTTL of a forwarder " +
				"that stopped; restart them if the log does not show why they do not"
		}
	}
	if obstacles := e.obstaclesOn("{outbox}"); t.Rate == 0 && len(obstacles) > 0 {
		evidence += "; forwarders may not see or settle them, because of " + strings.Join(obstacles, ", ")
		cure = "look for the error in the log of a forwarder: give its role a policy or BYPASSRLS, or fix the " +
			"trigger, rule or constraint"
	}
	if t.Failing.N > 0 || t.Dead.N > 0 {
		evidence += "; some may wait behind a failing message of their key"
	}
	e.findOf(Outbox, t.Topic, "backlog", max(Warning, byAge(ready.Oldest)), evidence, cure)
	return err
}
