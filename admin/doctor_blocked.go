package admin

import (
	"context"
	"fmt"
	"time"
)

// longBlocked is how long a failing message may pause a partition before it probably needs an operator. The alert
// PartitionBlocked uses the same time.
const longBlocked = 5 * time.Minute

// checkBlocked reports partitions that subscribers have stopped reading because a message keeps failing or handlers do
// not return. Forwarders report the subscribers of their own process, whose handlers use the same handle. Ages are on
// the database's clock: each forwarder records how far ahead its own clock is.
func (e *doctorRun) checkBlocked(ctx context.Context) error {
	type id struct {
		group, topic string
		partition    int32
	}
	seen := map[id]bool{} // several forwarders may have one handle
	now, err := e.now(ctx)
	if err != nil {
		return err
	}
	for _, m := range e.members {
		for _, p := range m.says.Blocked {
			of := id{p.Group, p.Topic, p.Partition}
			if !m.alive() || seen[of] {
				continue
			}
			seen[of] = true
			there := now.Add(seconds(m.says.ClockAhead)) // the time on its clock
			paused := there.Sub(p.Since)
			severity := Warning
			if paused >= longBlocked {
				severity = Critical
			}
			if p.Hung {
				e.findOf(Inbox, p.Topic, "partition_blocked", Critical, fmt.Sprintf("partition %d of topic %q, read by consumer "+
					"group %q, has been paused for %s, and no handler has returned for five minutes or more; "+
					"lag %s", p.Partition, p.Topic, p.Group, span(paused), count(int(p.Lag), "message")),
					"find what the handlers wait for, in a goroutine dump of their process, and bound it by the message's "+
						"context; restart the process to get the messages redelivered")
				continue
			}
			e.findOf(Inbox, p.Topic, "partition_blocked", severity, fmt.Sprintf("partition %d of topic %q, read by consumer "+
				"group %q, has been paused for %s behind a message that keeps failing: blocked keys: %d, the oldest for %s; "+
				"lag %s", p.Partition, p.Topic, p.Group, span(paused), p.Keys, span(there.Sub(p.Failing)),
				count(int(p.Lag), "message")),
				"fix the error that the inbox shows, or have the handler return outbox.Poison; to keep other keys going "+
					"when one fails, raise MaxAhead, or, with Kafka, set SubscriberConfig.Park"+e.command("errors --in inbox"))
		}
	}
	return nil
}
