package forwarder

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

const (
	// pauseInterval is how often paused topics are written to the database if they have changed.
	pauseInterval = time.Second
	// pauseAgain is how often their details are written.
	pauseAgain = time.Minute
)

// pauses keeps the paused topics in the database, so that SQL sees them. It belongs to the maintaining goroutine.
type pauses struct {
	told []string // topics that the database has
	at   time.Time
}

// tell writes the paused topics if they have changed, and their details once a minute.
func (p *pauses) tell(ctx context.Context, e *engine) error {
	var paused map[string]machine.Pause
	e.step(func(_ time.Time, m *machine.Machine) { paused = m.Paused() })
	now, topics := time.Now(), slices.Sorted(maps.Keys(paused))
	if slices.Equal(topics, p.told) && (len(topics) == 0 || now.Sub(p.at) < pauseAgain) {
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
	p.told, p.at = topics, now
	return nil
}
