package forwarder

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

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

// readOperatorPauses pauses the topics on the board that an operator has paused.
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
	e.step(func(now time.Time, m *machine.Machine) { m.Hold(now, topics) })
	return nil
}
