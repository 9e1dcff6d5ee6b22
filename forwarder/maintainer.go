package forwarder

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

const (
	sweepBatch = 1000    // ids per lane and statement
	sweepSpan  = 1 << 18 // ids that a statement covers
)

// maintain is the goroutine for work that is not urgent: the sweep, rechecking the rows that block keys, and reporting
// topics that no forwarder reads. It deletes nothing, because that may take hours.
func (e *engine) maintain(ctx context.Context) {
	// Cause: the database.
	// Cure: rows changed by hand are not noticed.
	sweep := trouble.RetryLog{Logger: e.logger, What: "sweeping the outbox"}
	// Cause: the database.
	// Cure: keys unblocked by an operator stay blocked.
	blocked := trouble.RetryLog{Logger: e.logger, What: "checking blocked keys"}
	// Cause: the database.
	// Cure: keys of paused topics stay blocked.
	waiting := trouble.RetryLog{Logger: e.logger, What: "checking keys that wait for a topic"}
	var blockedThrottle, waitingThrottle, sweepThrottle coordinator.Throttle
	for core.Pause(ctx, e.cfg.CleanInterval) {
		e.unread.check(ctx, e)
		blocked.Report(e.recheckBlocked(ctx, &blockedThrottle))
		waiting.Report(e.recheckWaiting(ctx, &waitingThrottle))
		sweep.Report(e.sweepLanes(ctx, &sweepThrottle))
	}
}

// positions returns the start of each lane that is being read, by lane number.
func (e *engine) positions() (at []coordinator.Position) {
	e.step(func(_ time.Time, c *coordinator.Coordinator) { at = c.Positions() })
	return at
}

// firstLane reports whether this forwarder has the first lane: one forwarder is enough for work on whole tables.
func (e *engine) firstLane() bool {
	at := e.positions()
	return len(at) > 0 && at[0].Assignment.Lane == 0
}

// sweepLanes checks all pending rows below the cursors once for rows that the dispatcher does not know, using about a
// twentieth of the time. The rows that it finds are read by id after the next ordinary read: by then a row of a
// transaction that has just committed is already known, in its proper place.
func (e *engine) sweepLanes(ctx context.Context, throttle *coordinator.Throttle) error {
	for at := e.positions(); ; {
		begun := time.Now()
		var err error
		if at, err = e.sweepOnce(ctx, at); err != nil || len(at) == 0 {
			return err
		}
		if !core.Pause(ctx, throttle.Rest(time.Since(begun))) {
			return nil
		}
	}
}

// sweepOnce makes one step of the sweep and returns the positions that remain; none are left when it is done.
func (e *engine) sweepOnce(ctx context.Context, at []coordinator.Position) ([]coordinator.Position, error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	e.step(func(_ time.Time, c *coordinator.Coordinator) { at = c.NextSpans(at, sweepSpan) })
	if len(at) == 0 {
		return nil, nil
	}
	var lanes, cursors, upto []int64
	for _, p := range at {
		lanes, cursors, upto = append(lanes, int64(p.Assignment.Lane)), append(cursors, p.Cursor), append(upto, p.Upto)
	}
	found := map[int16][]dispatch.Orphan{}
	err := drive.Collect(ctx, e.db, func(rows drive.Rows) error {
		var lane int16
		var row dispatch.Orphan
		err := rows.Scan(&lane, &row.ID, &row.Key, &row.Topic)
		found[lane] = append(found[lane], row)
		return err
	}, e.sql.sweep, lanes, cursors, upto, int64(sweepBatch), topicsArg(e.cfg.Topics))
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	e.step(func(_ time.Time, c *coordinator.Coordinator) { c.Swept(at, found, sweepBatch) })
	return at, nil
}

// recheckBlocked compares the blocked keys with the rows that block them, which an operator may have settled, requeued
// or deleted.
func (e *engine) recheckBlocked(ctx context.Context, throttle *coordinator.Throttle) error {
	for at := e.positions(); len(at) > 0; {
		begun := time.Now()
		var lanes, cursors []int64
		for _, p := range at {
			lanes, cursors = append(lanes, int64(p.Assignment.Lane)), append(cursors, p.Cursor)
		}
		limit := max(1, blockedPerPage/len(lanes))
		pages, _, err := e.blockedRows(ctx, e.db, lanes, cursors, limit)
		if err != nil {
			return err
		}
		e.step(func(now time.Time, c *coordinator.Coordinator) { at = c.BlockedSeen(now, begun, at, pages, limit) })
		if !core.Pause(ctx, throttle.Rest(time.Since(begun))) {
			return nil
		}
	}
	return nil
}

// recheckWaiting checks whether the first rows of keys that wait for a paused topic are still pending: if an operator
// has settled or deleted such a row, the rest of its key may continue, on other topics.
func (e *engine) recheckWaiting(ctx context.Context, throttle *coordinator.Throttle) error {
	for _, p := range e.positions() {
		var waiting []int64
		e.step(func(_ time.Time, c *coordinator.Coordinator) { waiting = c.WaitingIDs(p.Assignment) })
		for page := range slices.Chunk(waiting, blockedPerPage) {
			begun := time.Now()
			pending, err := e.pending(ctx, page)
			if err != nil {
				return err
			}
			gone := slices.DeleteFunc(page, func(id int64) bool { return pending[id] })
			e.step(func(now time.Time, c *coordinator.Coordinator) { c.WaitingGone(now, p.Assignment, gone) })
			if !core.Pause(ctx, throttle.Rest(time.Since(begun))) {
				return nil
			}
		}
	}
	return nil
}

// pending returns which ids belong to pending messages.
func (e *engine) pending(ctx context.Context, ids []int64) (map[int64]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	pending := make(map[int64]bool, len(ids))
	err := drive.Collect(ctx, e.db, func(rows drive.Rows) error {
		var id int64
		err := rows.Scan(&id)
		pending[id] = true
		return err
	}, e.sql.pending, sorted(ids))
	if err != nil {
		return nil, fmt.Errorf("check which messages are pending: %w", err)
	}
	return pending, nil
}

const (
	// pauseInterval is how often a forwarder reads which topics an operator has paused, and writes its paused topics to
	// the database if they have changed.
	pauseInterval = time.Second
	// pauseRefreshInterval is how often their details are written.
	pauseRefreshInterval = time.Minute
)

// pauseWriter keeps the paused topics in the database, so that SQL sees them. It belongs to recordPauses.
type pauseWriter struct {
	written []string // topics that the database has
	at      time.Time
	unknown bool // the database may have other topics: no response to the last write has arrived
}

// write writes the paused topics if they have changed, and their details once a minute.
func (p *pauseWriter) write(ctx context.Context, e *engine) error {
	var paused map[string]coordinator.Pause
	e.step(func(_ time.Time, c *coordinator.Coordinator) { paused = c.Paused() })
	now, topics := time.Now(), slices.Sorted(maps.Keys(paused))
	if !p.unknown && slices.Equal(topics, p.written) && (len(topics) == 0 || now.Sub(p.at) < pauseRefreshInterval) {
		return nil
	}
	failures, since, reasons := make([]int64, len(topics)), make([]float64, len(topics)), make([]string, len(topics))
	for i, topic := range topics {
		was := paused[topic]
		failures[i], since[i], reasons[i] = int64(was.Failures), now.Sub(was.Since).Seconds(), text.OfError(was.Err)
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	p.unknown = true
	if _, err := e.db.Exec(ctx, e.sql.pause, e.owner, topicsArg(topics), failures, since, reasons); err != nil {
		return fmt.Errorf("write paused topics: %w", err)
	}
	p.written, p.at, p.unknown = topics, now, false
	return nil
}

// watchPauses is the goroutine that polls for topics that an operator has paused. It is separate because an operator's
// pause must not wait for a sweep.
func (e *engine) watchPauses(ctx context.Context) {
	// Cause: the database.
	// Cure: pauses by operators are not noticed.
	reading := trouble.RetryLog{Logger: e.logger, What: "reading which topics are paused"}
	for core.Pause(ctx, pauseInterval) {
		reading.Report(e.readOperatorPauses(ctx))
	}
}

// recordPauses is the goroutine that records the paused topics. It is separate because it may wait for a lock.
func (e *engine) recordPauses(ctx context.Context) {
	// Cause: the database.
	// Cure: no paused topics are shown.
	writing := trouble.RetryLog{Logger: e.logger, What: "writing paused topics"}
	var paused pauseWriter
	for core.Pause(ctx, pauseInterval) {
		writing.Report(paused.write(ctx, e))
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
