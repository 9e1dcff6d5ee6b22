package forwarder

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

const (
	sweepBatch = 1000    // ids per lane and statement
	sweepSpan  = 1 << 18 // ids that a statement covers
)

// maintain is the goroutine for work that is not urgent: the sweep, rechecking the rows that block keys, recording
// paused topics, reporting topics that no forwarder reads, and deleting old published messages.
func (e *engine) maintain(ctx context.Context) {
	// Cause: the database.
	// Cure: rows changed by hand are not noticed.
	sweep := trouble.RetryLog{Logger: e.logger, What: "sweeping the outbox"}
	// Cause: the database.
	// Cure: keys unblocked by an operator stay blocked.
	heads := trouble.RetryLog{Logger: e.logger, What: "checking blocked keys"}
	// Cause: the database.
	// Cure: keys of paused topics stay blocked.
	firsts := trouble.RetryLog{Logger: e.logger, What: "checking keys that wait for a topic"}
	// Cause: the database.
	// Cure: the table grows.
	deleting := trouble.RetryLog{Logger: e.logger, What: "deleting published messages"}
	// Cause: the database.
	// Cure: the inbox grows; without the grant, set InboxRetention to -1.
	inbox := trouble.RetryLog{Logger: e.logger, What: "deleting old rows of the inbox"}
	// Cause: the database.
	// Cure: the table grows.
	keys := trouble.RetryLog{Logger: e.logger, What: "deleting expired idempotency keys"}
	// Cause: the database.
	// Cure: nothing else depends on it.
	forget := trouble.RetryLog{Logger: e.logger, What: "deleting rows of stopped forwarders"}
	// Cause: the database.
	// Cure: unread topics are not reported.
	lonely := trouble.RetryLog{Logger: e.logger, What: "checking for topics without a forwarder"}
	// Cause: the database.
	// Cure: no paused topics are shown.
	told := trouble.RetryLog{Logger: e.logger, What: "writing paused topics"}
	var published cleaner
	dead := e.oldDead()
	var paused pauses
	var unread untaken
	var ofHeads, ofFirsts, ofSweep machine.Pace
	round := func() {
		heads.Report(e.recheckHeads(ctx, &ofHeads))
		firsts.Report(e.recheckFirsts(ctx, &ofFirsts))
		sweep.Report(e.sweepLanes(ctx, &ofSweep))
		if at := e.positions(); len(at) == 0 || at[0].Term.Lane != 0 { // one forwarder is enough
			return
		}
		lonely.Report(unread.poll(ctx, e))
		deleting.Report(published.clean(ctx, e))
		if e.cfg.InboxRetention > 0 {
			inbox.Report(e.cleanInbox(ctx))
		}
		keys.Report(e.cleanKeys(ctx))
		forget.Report(e.forgetForwarders(ctx))
		for _, d := range dead {
			d.Turn(ctx, deadShare)
		}
	}
	tick := time.NewTicker(e.cfg.CleanInterval)
	defer tick.Stop()
	pauseTick := time.NewTicker(pauseInterval)
	defer pauseTick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pauseTick.C:
			told.Report(paused.tell(ctx, e))
		case <-tick.C:
			round()
		case done := <-e.tidyNow:
			round()
			close(done)
		}
	}
}

// positions returns the start of each lane that is being read, by lane number.
func (e *engine) positions() (at []machine.Position) {
	e.step(func(_ time.Time, m *machine.Machine) { at = m.Positions() })
	return at
}

// sweepLanes checks all pending rows below the cursors once for rows that the board does not know, using about a
// twentieth of the time. The rows that it finds are read by id after the next ordinary read: by then a row of a
// transaction that has just committed is already known, in its proper place.
func (e *engine) sweepLanes(ctx context.Context, pace *machine.Pace) error {
	for at := e.positions(); ; {
		begun := time.Now()
		var err error
		if at, err = e.sweepOnce(ctx, at); err != nil || len(at) == 0 {
			return err
		}
		if !core.Pause(ctx, pace.Rest(time.Since(begun))) {
			return nil
		}
	}
}

// sweepOnce makes one step of the sweep and returns the positions that remain; none are left when it is done.
func (e *engine) sweepOnce(ctx context.Context, at []machine.Position) ([]machine.Position, error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	e.step(func(_ time.Time, m *machine.Machine) { at = m.Marks(at, sweepSpan) })
	if len(at) == 0 {
		return nil, nil
	}
	var lanes, cursors, upto []int64
	for _, p := range at {
		lanes, cursors, upto = append(lanes, int64(p.Term.Lane)), append(cursors, p.Cursor), append(upto, p.Upto)
	}
	found := map[int16][]board.Orphan{}
	err := drive.Collect(ctx, e.db, func(rows drive.Rows) error {
		var lane int16
		var row board.Orphan
		err := rows.Scan(&lane, &row.ID, &row.Key, &row.Topic)
		found[lane] = append(found[lane], row)
		return err
	}, e.sql.sweep, lanes, cursors, upto, int64(sweepBatch), topicsArg(e.cfg.Topics))
	if err != nil {
		return nil, fmt.Errorf("sweep: %w", err)
	}
	e.step(func(_ time.Time, m *machine.Machine) { m.Swept(at, found, sweepBatch) })
	return at, nil
}
