package forwarder

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

const (
	// pauseInterval is how often paused topics are written to the database if there are others than before.
	pauseInterval = time.Second
	// pauseAgain is how often what has become of them is.
	pauseAgain = time.Minute
)

// pause is what the board reported of a paused topic.
type pause struct {
	since    time.Time // the first failure
	failures int
	err      error // the last
}

// notePauses remembers what reports say of paused topics. It is called under mu.
func (e *engine) notePauses(now time.Time, reports []board.Report) {
	for _, r := range reports {
		if r.ByOperator {
			continue // that is in the database
		}
		switch r.Kind {
		case board.TopicPaused:
			p, ok := e.paused[r.Topic]
			if !ok {
				p.since = now
			}
			p.failures, p.err = r.Failures, r.Err
			e.paused[r.Topic] = p
		case board.TopicResumed:
			delete(e.paused, r.Topic)
		}
	}
}

// pauses keeps the paused topics in the database, so that SQL sees them. It is of the maintaining goroutine.
type pauses struct {
	told []string // the topics that the database has
	at   time.Time
}

// tell writes the paused topics if they have changed, and each minute what has become of them.
func (p *pauses) tell(ctx context.Context, e *engine) error {
	var paused map[string]pause
	e.step(func(time.Time) { paused = maps.Clone(e.paused) })
	now, topics := time.Now(), slices.Sorted(maps.Keys(paused))
	if slices.Equal(topics, p.told) && (len(topics) == 0 || now.Sub(p.at) < pauseAgain) {
		return nil
	}
	failures, since, reasons := make([]int64, len(topics)), make([]float64, len(topics)), make([]string, len(topics))
	for i, topic := range topics {
		was := paused[topic]
		failures[i], since[i], reasons[i] = int64(was.failures), now.Sub(was.since).Seconds(), text.OfError(was.err)
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	if _, err := e.db.Exec(ctx, e.sql.pause, e.owner, topicsArg(topics), failures, since, reasons); err != nil {
		return fmt.Errorf("write paused topics: %w", err)
	}
	p.told, p.at = topics, now
	return nil
}
