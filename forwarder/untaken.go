package forwarder

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
)

const (
	untakenInterval = time.Minute      // between two checks for topics without a forwarder
	untakenAge      = 30 * time.Second // of a message before it counts
	untakenPerLane  = 200              // messages
)

// Cause: it is misspelt, missing in Config.Topics, or its forwarder has stopped.
// Cure: add it, or discard the messages.
var errUntaken = errors.New("no running forwarder reads this topic: check its spelling in Config.Topics, " +
	"and that its forwarder runs")

// untaken checks for topics without a forwarder, such as one that is misspelt in Config.Topics. It belongs to the
// maintaining goroutine.
type untaken struct{ at time.Time }

// poll logs, at most once a minute, topics that no forwarder reads. If a forwarder reads all topics, there are none.
func (u *untaken) poll(ctx context.Context, e *engine) error {
	if len(e.cfg.Topics) == 0 || time.Since(u.at) < untakenInterval {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	u.at = time.Now()
	err := drive.Collect(ctx, e.db, func(rows drive.Rows) error {
		var topic string
		var messages int64
		var oldest float64
		if err := rows.Scan(&topic, &messages, &oldest); err != nil {
			return err
		}
		// Cause: it is misspelt, missing in Config.Topics, or its forwarder has stopped.
		// Cure: add it, or discard the messages.
		e.logger.Error("no forwarder publishes this topic: its messages stay pending", errUntaken, watermill.LogFields{
			"topic": topic, "messages_at_least": messages,
			"oldest":     time.Duration(oldest * float64(time.Second)).Round(time.Second).String(),
			"own_topics": e.cfg.Topics,
		})
		return nil
	}, e.sql.untaken, int64(untakenPerLane), untakenAge.Seconds())
	if err != nil {
		return fmt.Errorf("check for topics without a forwarder: %w", err)
	}
	return nil
}
