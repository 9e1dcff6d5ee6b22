package forwarder

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// pauseInterval is how often paused topics are written to the database if there are others than before.
const pauseInterval = time.Second

// pauses keeps the paused topics in the database, so that SQL sees them. It is of the maintaining goroutine.
type pauses struct {
	told []string // the topics that the database has
	at   time.Time
}

// tell writes the paused topics if they have changed, and each minute what has become of them.
func (p *pauses) tell(ctx context.Context, e *engine) error {
	var failures []int64
	var since []float64
	var errs []error
	now := time.Now()
	e.mu.Lock()
	topics := slices.Sorted(maps.Keys(e.board.topics))
	for _, name := range topics {
		t := e.board.topics[name]
		failures, since, errs = append(failures, int64(t.failures)), append(since, now.Sub(t.since).Seconds()), append(errs, t.err)
	}
	e.mu.Unlock()
	if slices.Equal(topics, p.told) && (len(topics) == 0 || now.Sub(p.at) < reportEvery) {
		return nil
	}
	reasons := make([]string, len(errs))
	for i, err := range errs {
		reasons[i] = errorText(err)
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	if _, err := e.db.Exec(ctx, e.sql.pauseTopics, e.owner, topicsArg(topics), failures, since, reasons); err != nil {
		return fmt.Errorf("write paused topics: %w", err)
	}
	p.told, p.at = topics, now
	return nil
}
