package admin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	defaultRetention = 7 * 24 * time.Hour // the default of forwarder.Config
	cleanLate        = time.Hour
)

// checkRetention reports old messages that are not deleted.
func (e *doctorRun) checkRetention(ctx context.Context) error {
	if !e.counted {
		return nil // the intended retention is unknown
	}
	var oldest float64
	if err := e.rows(ctx, []any{&oldest}, func() {}, sqltext.DoctorOldest, int64(sampleSize)); err != nil {
		return err
	}
	keep, alive := time.Duration(0), slices.ContainsFunc(e.members, member.alive)
	for _, m := range e.members { // a forwarder that is not alive also shows the intended retention, if no other does
		if m.alive() || !alive {
			keep = max(keep, cmp.Or(m.says.Retention, defaultRetention))
		}
	}
	age := seconds(oldest)
	evidence := fmt.Sprintf("table %s has messages that were published %s ago", e.db.Render("{outbox}"), span(age))
	cure := "run a forwarder, and check in its log that it may delete; or delete them with admin.Clean " +
		"with OutboxRetention "
	if alive && keep <= 0 {
		cure = "call admin.Clean once, with OutboxRetention "
		evidence += "; the running forwarders delete only messages that they publish themselves (Retention -1)"
	}
	if keep <= 0 {
		keep = defaultRetention
	} else {
		evidence += fmt.Sprintf("; the retention is %s", keep)
	}
	if !alive {
		evidence += "; no running forwarder deletes them"
	}
	if age > keep+cleanLate {
		e.find("retention", Warning, evidence, cure+keep.String()+e.command("clean --outbox", keep.String()))
	}
	return nil
}

// checkBroker runs the checks of the brokers, and reports whether messages that they may lose could be published again.
func (e *doctorRun) checkBroker(ctx context.Context) error {
	if e.stats == nil || len(e.brokers) == 0 {
		return nil
	}
	published := map[string]time.Time{}
	err := e.collect(ctx, func(rows drive.Rows) error {
		var topic string
		var last time.Time
		err := rows.Scan(&topic, &last)
		published[topic] = last
		return err
	}, sqltext.PublishedTopics)
	if err != nil {
		return err
	}
	topics := slices.Collect(maps.Keys(published))
	for _, t := range e.stats.Topics {
		topics = append(topics, t.Topic)
	}
	slices.Sort(topics)
	topics = slices.Compact(topics)
	loses, nowhere := false, maps.Clone(published)
	for _, b := range e.brokers {
		risks, missing, err := b.Check(ctx, topics)
		if err != nil {
			if ctx.Err() != nil {
				return err
			}
			clear(nowhere) // the broker that failed may have them
			if e.brokerDown {
				continue // forwarders have reported it
			}
			e.find("broker", Critical, "could not check the broker: "+err.Error(),
				"fix the cause that the error names; until then messages stay pending, and no attempt is counted if the publisher "+
					"classifies its errors")
			continue
		}
		maps.DeleteFunc(nowhere, func(topic string, _ time.Time) bool { return !slices.Contains(missing, topic) })
		for _, r := range risks {
			loses = loses || r.Severity > Info
			e.find("broker", r.Severity, r.Evidence, r.Cure)
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(nowhere)) {
		loses = true
		e.find("broker", Warning,
			fmt.Sprintf("no broker that was checked has topic %q, to which messages were published, last "+
				"at %s: acknowledged messages are lost; the topic was deleted, or was an in-memory JetStream stream that a "+
				"restart "+
				"removed", topic, published[topic].UTC().Format(time.RFC3339)),
			"create the topic again, a stream with file storage, and publish the kept messages again "+
				"(outboxctl outbox replay); "+
				"if the topic is on another broker, pass that broker to doctor too")
	}
	for _, m := range e.members {
		if loses && m.alive() && m.says.Retention == -1 {
			e.find("retention", Critical,
				fmt.Sprintf("%s deletes messages on publish, and the broker may lose acknowledged messages: "+
					"these could not be published again", m),
				"fix the findings about the broker, or set forwarder.Config.Retention to longer than it takes you to notice")
		}
	}
	return nil
}
