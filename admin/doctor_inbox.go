package admin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// checkInboxRetention reports topics that the broker keeps for longer than the inbox keeps its rows. checkBroker
// reports a broker that does not respond.
func (e *doctorRun) checkInboxRetention(ctx context.Context) error {
	shortest := map[string]time.Duration{} // by topic
	for _, m := range e.members {
		if !m.alive() || m.says.InboxRetention <= 0 {
			continue
		}
		for _, topics := range m.says.Consumers {
			for _, topic := range topics {
				if was, known := shortest[topic]; !known || m.says.InboxRetention < was {
					shortest[topic] = m.says.InboxRetention
				}
			}
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(shortest)) {
		for _, b := range e.brokers {
			kept, known, err := b.Retention(ctx, topic)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil || !known || kept < 0 || kept <= shortest[topic] {
				continue
			}
			e.find("inbox_retention", Warning, fmt.Sprintf("the broker keeps messages of topic %q for %s, but the inbox "+
				"remembers handled messages for only %s: a consumer that is rewound further handles them again", topic, span(kept),
				span(shortest[topic])),
				"set forwarder.Config.InboxRetention of all forwarders of these tables to more than "+span(kept)+
					", or the topic's retention to less")
		}
	}
	return nil
}
