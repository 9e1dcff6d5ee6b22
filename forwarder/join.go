package forwarder

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
)

// waitReportInterval is how often a forwarder logs that it waits for others to leave.
const waitReportInterval = time.Minute

// waitReport records what was last logged about the forwarders that this one waits for.
type waitReport struct {
	since, said time.Time // zero = it is not waiting
}

// register writes the heartbeat row, and joins the forwarders of the scope unless others must leave first: those that
// read some of the same topics under another scope, or other topics under the same one.
func (k *keeper) register(ctx context.Context) error {
	e := k.e
	var ahead []string
	says := e.facts()
	err := e.withJoinLock(ctx, func(ctx context.Context, q drive.Querier) error {
		if _, err := q.Exec(ctx, e.sql.announce, e.owner, e.cfg.Scope, topicsArg(e.cfg.Topics), e.cfg.Name,
			e.cfg.LeaseTTL.Seconds(), says, ownTime()); err != nil {
			return err
		}
		err := drive.Collect(ctx, q, func(rows drive.Rows) error {
			var scope, name, topics string
			var waits bool
			if err := rows.Scan(&scope, &name, &topics, &waits); err != nil {
				return err
			}
			if topics == "" {
				topics = "all topics"
			}
			if waits {
				topics += ", which has waited for longer"
			}
			ahead = append(ahead, fmt.Sprintf("%s (scope %s with %s)", name, scope, topics))
			return nil
		}, e.sql.ahead, e.owner)
		if err != nil || len(ahead) > 0 {
			return err
		}
		if _, err := q.Exec(ctx, e.sql.createLanes, e.cfg.Scope); err != nil {
			return err
		}
		_, err = q.Exec(ctx, e.sql.join, e.owner, e.cfg.LeaseTTL.Seconds())
		return err
	})
	if err != nil {
		return fmt.Errorf("register forwarder: %w", err)
	}
	k.joined, k.told = len(ahead) == 0, says
	k.sayWaiting(ahead)
	return nil
}

// sayWaiting logs which forwarders this one waits for, immediately and then once a minute.
func (k *keeper) sayWaiting(ahead []string) {
	w, now := &k.waits, time.Now()
	switch {
	case k.joined && w.since.IsZero():
	case k.joined:
		k.e.logger.Info("the other forwarders have stopped: starting", watermill.LogFields{
			"waited": now.Sub(w.since).String(),
		})
		*w = waitReport{}
	case now.Sub(w.said) >= waitReportInterval:
		if w.said = now; w.since.IsZero() {
			w.since = now
		}
		k.e.logger.Info("waiting to start: other forwarders read some of the same topics: stop them, or give all of "+
			"them the same Config.Topics",
			watermill.LogFields{"for": strings.Join(ahead, "; "), "waited": now.Sub(w.since).String()})
	}
}
