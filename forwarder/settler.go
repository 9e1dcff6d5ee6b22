package forwarder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/window"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
	"github.com/millrace-go/watermill-outbox/observe"
)

const (
	maxSettle  = 10000 // rows per statement
	lastSettle = 500   // rows per statement in the last try
)

// settler is the goroutine that writes results back, each time all that arrived since its last statement. Failed writes
// are repeated: settling twice changes nothing. Only it uses these fields.
type settler struct {
	e         *engine
	published batch[*board.Row]
	failed    batch[board.Failure]
}

// runSettler works until ctx has ended and nothing is left that can be settled.
func (e *engine) runSettler(ctx context.Context) {
	s := &settler{e: e}
	// Cause: the database, or locked rows.
	// Cure: run outboxctl doctor for the session; if the process ends now, messages are published again.
	report := trouble.RetryLog{Logger: e.logger, What: "settling messages"}
	// Cause: rows are locked, or refused by a constraint or trigger.
	// Cure: run outboxctl doctor for the session; if the process ends now, messages are published again.
	alone := trouble.RetryLog{Logger: e.logger, What: "settling messages one by one"}
	s.published, s.failed = newBatch(s.writePublished, alone.Report), newBatch(s.writeFailed, alone.Report)
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 50*time.Millisecond, 5*time.Second
	timer := time.NewTimer(0)
	defer timer.Stop()
	for over := false; ; {
		s.collect(time.Now())
		news := e.settleNow
		if len(s.published.rows)+len(s.failed.rows) > 0 {
			err := errors.Join(s.published.part(context.WithoutCancel(ctx)), s.failed.part(context.WithoutCancel(ctx)))
			report.Report(err)
			if err == nil {
				retry.Reset()
				continue
			}
			news = nil // not before the pause is over
			timer.Reset(retry.NextBackOff())
		} else {
			if len(s.published.later)+len(s.failed.later) == 0 {
				alone.Report(nil)
			}
			timer.Reset(min(s.published.pause(time.Now()), s.failed.pause(time.Now())))
		}
		if over {
			break
		}
		select {
		case <-ctx.Done():
			over = true
			s.published.careful = true // otherwise it would wait for locked rows
		case <-timer.C:
		case <-news:
		}
	}
	s.giveUp(context.WithoutCancel(ctx))
}

// collect adds new results, and those whose pause is over.
func (s *settler) collect(now time.Time) {
	var published []*board.Row
	var failed []board.Failure
	if room := maxSettle - len(s.published.rows) - len(s.failed.rows); room > 0 {
		s.e.step(func(_ time.Time, m *machine.Machine) { published, failed = m.Results(room) })
	}
	s.published.add(published, now)
	s.failed.add(failed, now)
}

// giveUp tries once more, skipping locked rows and in small parts, and logs how much is left.
func (s *settler) giveUp(ctx context.Context) {
	published, failed := s.published.last(ctx), s.failed.last(ctx)
	left := len(published) + len(failed)
	if left == 0 {
		return
	}
	s.e.step(func(_ time.Time, m *machine.Machine) { m.Unsettled(published, failed) })
	// Cause: the database.
	// Cure: inboxes skip the duplicates.
	s.e.logger.Error("stopped before all results were written: those messages are published again", errStopped,
		watermill.LogFields{"messages": left})
}

// writePublished returns the rows that it could not settle because they are locked, if it is careful; otherwise it
// waits for them.
func (s *settler) writePublished(
	ctx context.Context, rows []*board.Row, careful bool,
) (locked []*board.Row, err error) {
	e := s.e
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	begun, done := time.Now(), rows
	if careful {
		done, locked, err = s.writeUnlocked(ctx, rows)
	} else {
		err = s.writeAll(ctx, rows)
	}
	if err != nil {
		e.obs.settled(observe.SettleEnd{Duration: time.Since(begun), Err: err})
		return nil, fmt.Errorf("settle %d published: %w", len(rows), err)
	}
	e.obs.settled(observe.SettleEnd{Done: len(done), Duration: time.Since(begun)})
	e.settled(done, nil)
	return locked, nil
}

// writeAll settles rows. Rows of the span are settled again, one by one, if some were not found as they had been read,
// for example in another incarnation, or because an operator requeued them.
func (s *settler) writeAll(ctx context.Context, rows []*board.Row) error {
	e := s.e
	life, seq := e.lifeOf(rows)
	if life != "" {
		if sp, rest := spanOf(rows); sp.rows > 0 {
			n, err := e.db.Exec(ctx, e.sql.settleSpan, sp.lo, sp.hi, life, seq, sp.out)
			if err != nil {
				return err
			}
			if n == sp.rows {
				rows = rest
			}
		}
	}
	if len(rows) == 0 {
		return nil
	}
	ids, uuids := identities(rows)
	_, err := e.db.Exec(ctx, e.sql.settlePublished, ids, uuids, life, seq)
	return err
}

// writeUnlocked settles rows that no other transaction has locked.
func (s *settler) writeUnlocked(ctx context.Context, rows []*board.Row) (done, locked []*board.Row, err error) {
	ids, uuids := identities(rows)
	passed := map[int64]bool{}
	err = drive.Collect(ctx, s.e.db, func(rows drive.Rows) error {
		var id int64
		err := rows.Scan(&id)
		passed[id] = true
		return err
	}, s.e.sql.settleUnlocked, ids, uuids)
	for _, r := range rows {
		if passed[r.ID] {
			locked = append(locked, r)
		} else {
			done = append(done, r)
		}
	}
	return done, locked, err
}

// identities returns the ids and identities of rows, by rising id.
func identities(rows []*board.Row) (ids []int64, uuids []string) {
	rows = slices.Clone(rows)
	sortRows(rows)
	ids, uuids = make([]int64, len(rows)), make([]string, len(rows))
	for i, r := range rows {
		ids[i], uuids[i] = r.ID, identity(r)
	}
	return ids, uuids
}

// identity distinguishes a message from others with the same id: its uuid, and its generation if it has one.
func identity(r *board.Row) string {
	if r.Generation == "" {
		return r.UUID
	}
	return r.UUID + "/" + r.Generation
}

// lifeOf returns the incarnation in which all rows were read, as the server names it, and the sequence as of a read in
// it; "" = it is over, or they differ.
func (e *engine) lifeOf(rows []*board.Row) (life string, seq int64) {
	e.step(func(_ time.Time, m *machine.Machine) { life, seq = m.Life() })
	for _, r := range rows {
		if r.Life != life {
			return "", seq
		}
	}
	return window.ServersLife(life), seq
}

// settled reports results that are in the database.
func (e *engine) settled(published []*board.Row, failed []board.Outcome) {
	e.step(func(now time.Time, m *machine.Machine) { m.Settled(now, published, failed) })
}
