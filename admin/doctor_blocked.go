package admin

import (
	"context"
	"fmt"
	"time"
)

// longBlocked is how long a partition may be paused behind a failing message before nothing but an operator is likely
// to help. The alert PartitionBlocked waits as long.
const longBlocked = 5 * time.Minute

// checkBlocked looks at the partitions that subscribers read no further, because a message keeps failing. Forwarders
// tell of those of their own processes, whose handlers use the same handle.
func (e *exam) checkBlocked(context.Context) error {
	type id struct {
		group, topic string
		partition    int32
	}
	seen := map[id]bool{} // several forwarders may have one handle
	for _, m := range e.members {
		for _, p := range m.says.Blocked {
			of := id{p.Group, p.Topic, p.Partition}
			if !m.alive() || seen[of] {
				continue
			}
			seen[of] = true
			paused := time.Since(p.Since)
			severity := Warning
			if paused >= longBlocked {
				severity = Critical
			}
			e.findOf(Inbox, p.Topic, "partition_blocked", severity, fmt.Sprintf("partition %d of topic %q, read by consumer "+
				"group %q, has been paused for %s behind a message that keeps failing: blocked keys: %d, the oldest for %s; "+
				"lag %s", p.Partition, p.Topic, p.Group, span(paused), p.Keys, span(time.Since(p.Failing)),
				count(int(p.Lag), "message")),
				"fix the error that the inbox shows, or have the handler return outbox.Poison; to keep the others going "+
					"when one fails, raise MaxAhead, or, with Kafka, set SubscriberConfig.Park"+e.command("errors --in inbox"))
		}
	}
	return nil
}
