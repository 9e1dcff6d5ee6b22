package forwarder

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

const (
	// pauseInterval is how often paused topics are written to the database if they have changed.
	pauseInterval = time.Second
	// pauseRefreshInterval is how often their details are written.
	pauseRefreshInterval = time.Minute
)

// pauseWriter keeps the paused topics in the database, so that SQL sees them. It belongs to the maintaining goroutine.
type pauseWriter struct {
	written []string // topics that the database has
	at      time.Time
}

// write writes the paused topics if they have changed, and their details once a minute.
func (p *pauseWriter) write(ctx context.Context, e *engine) error {
	var paused map[string]coordinator.Pause
	e.step(func(_ time.Time, c *coordinator.Coordinator) { paused = c.Paused() })
	now, topics := time.Now(), slices.Sorted(maps.Keys(paused))
	if slices.Equal(topics, p.written) && (len(topics) == 0 || now.Sub(p.at) < pauseRefreshInterval) {
		return nil
	}
	failures, since, reasons := make([]int64, len(topics)), make([]float64, len(topics)), make([]string, len(topics))
	for i, topic := range topics {
		was := paused[topic]
		failures[i], since[i], reasons[i] = int64(was.Failures), now.Sub(was.Since).Seconds(), text.OfError(was.Err)
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	if _, err := e.db.Exec(ctx, e.sql.pause, e.owner, topicsArg(topics), failures, since, reasons); err != nil {
		return fmt.Errorf("write paused topics: %w", err)
	}
	p.written, p.at = topics, now
	return nil
}

// operatorInterval is how often a forwarder reads which topics an operator has paused.
const operatorInterval = time.Second

// watchPauses is the goroutine that polls for topics that an operator has paused. It is separate because a pause must
// not wait for a sweep.
func (e *engine) watchPauses(ctx context.Context) {
	// Cause: the database.
	// Cure: pauses by operators are not noticed.
	reading := trouble.RetryLog{Logger: e.logger, What: "reading which topics are paused"}
	tick := time.NewTicker(operatorInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			reading.Report(e.readOperatorPauses(ctx))
		}
	}
}

// readOperatorPauses pauses the topics that an operator has paused.
func (e *engine) readOperatorPauses(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	topics := []string{}
	err := drive.Collect(ctx, e.db, func(rows drive.Rows) error {
		var topic string
		err := rows.Scan(&topic)
		topics = append(topics, topic)
		return err
	}, e.sql.operatorPauses)
	if err != nil {
		return fmt.Errorf("read paused topics: %w", err)
	}
	e.step(func(now time.Time, c *coordinator.Coordinator) { c.PauseByOperator(now, topics) })
	return nil
}
