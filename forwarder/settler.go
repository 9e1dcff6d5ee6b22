package forwarder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/coordinator"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/cursor"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

const (
	maxSettle   = 10000 // rows per statement
	finalSettle = 500   // rows per statement in the last try
)

// settler is the goroutine that writes results back, each time all that arrived since its last statement. Failed writes
// are repeated: settling twice changes nothing. Only it uses these fields.
type settler struct {
	e         *engine
	published batch[*dispatch.Row]
	failed    batch[dispatch.Failure]
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
			if len(s.published.delayed)+len(s.failed.delayed) == 0 {
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
	var published []*dispatch.Row
	var failed []dispatch.Failure
	if room := maxSettle - len(s.published.rows) - len(s.failed.rows); room > 0 {
		s.e.step(func(_ time.Time, c *coordinator.Coordinator) { published, failed = c.Results(room) })
	}
	s.published.add(published, now)
	s.failed.add(failed, now)
}

// giveUp tries once more, skipping locked rows and in small parts, and logs how much is left.
func (s *settler) giveUp(ctx context.Context) {
	published, failed := s.published.final(ctx), s.failed.final(ctx)
	left := len(published) + len(failed)
	if left == 0 {
		return
	}
	s.e.step(func(_ time.Time, c *coordinator.Coordinator) { c.Unsettled(published, failed) })
	// Cause: the database.
	// Cure: inboxes skip the duplicates.
	s.e.logger.Error("stopped before all results were written: those messages are published again", errStopped,
		watermill.LogFields{"messages": left})
}

// writePublished returns the rows that it could not settle because they are locked, if it is careful; otherwise it
// waits for them.
func (s *settler) writePublished(
	ctx context.Context, rows []*dispatch.Row, careful bool,
) (locked []*dispatch.Row, err error) {
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
		e.obs.settled(meter.SettleEnd{Duration: time.Since(begun), Err: err})
		return nil, fmt.Errorf("settle %d published: %w", len(rows), err)
	}
	e.obs.settled(meter.SettleEnd{Done: len(done), Duration: time.Since(begun)})
	e.settled(done, nil)
	return locked, nil
}

// writeAll settles rows. Rows of the span are settled again, one by one, if some were not found as they had been read,
// for example in another incarnation, or because an operator requeued them.
func (s *settler) writeAll(ctx context.Context, rows []*dispatch.Row) error {
	e := s.e
	incarnation, seq := e.incarnationOf(rows)
	if incarnation != "" {
		if sp, rest := spanOf(rows); sp.rows > 0 {
			n, err := e.db.Exec(ctx, e.sql.settleSpan, sp.lo, sp.hi, incarnation, seq, sp.out)
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
	_, err := e.db.Exec(ctx, e.sql.settlePublished, ids, uuids, incarnation, seq)
	return err
}

// writeUnlocked settles rows that no other transaction has locked.
func (s *settler) writeUnlocked(ctx context.Context, rows []*dispatch.Row) (done, locked []*dispatch.Row, err error) {
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
func identities(rows []*dispatch.Row) (ids []int64, uuids []string) {
	rows = slices.Clone(rows)
	sortRows(rows)
	ids, uuids = make([]int64, len(rows)), make([]string, len(rows))
	for i, r := range rows {
		ids[i], uuids[i] = r.ID, identity(r)
	}
	return ids, uuids
}

// identity distinguishes a message from others with the same id: its uuid, and its generation if it has one.
func identity(r *dispatch.Row) string {
	if r.Generation == "" {
		return r.UUID
	}
	return r.UUID + "/" + r.Generation
}

// incarnationOf returns the incarnation in which all rows were read, as the server names it, and the sequence as of a
// read in it; "" = it is over, or they differ.
func (e *engine) incarnationOf(rows []*dispatch.Row) (incarnation string, seq int64) {
	e.step(func(_ time.Time, c *coordinator.Coordinator) { incarnation, seq = c.Incarnation() })
	for _, r := range rows {
		if r.Incarnation != incarnation {
			return "", seq
		}
	}
	return cursor.ServerIncarnation(incarnation), seq
}

// settled reports results that are in the database.
func (e *engine) settled(published []*dispatch.Row, failed []dispatch.Outcome) {
	e.step(func(now time.Time, c *coordinator.Coordinator) { c.Settled(now, published, failed) })
}

// writeFailed returns the failures that it could not settle because their rows are locked.
func (s *settler) writeFailed(
	ctx context.Context, failed []dispatch.Failure, _ bool,
) (locked []dispatch.Failure, err error) {
	e := s.e
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	begun := time.Now()
	answers := make([]string, len(failed))
	err = drive.Collect(ctx, e.db, func(rows drive.Rows) error {
		var n int64
		var answer string
		err := rows.Scan(&n, &answer)
		if err == nil {
			answers[n-1] = answer
		}
		return err
	}, e.sql.settleFailed, e.failedArgs(failed)...)
	if err != nil {
		e.obs.settled(meter.SettleEnd{Duration: time.Since(begun), Err: err})
		return nil, fmt.Errorf("settle %d failed: %w", len(failed), err)
	}
	outcomes, locked, dead := outcomesOf(failed, answers)
	e.obs.settled(meter.SettleEnd{Failed: len(outcomes), Dead: dead, Duration: time.Since(begun)})
	e.settled(nil, outcomes)
	if dead > 0 && e.cfg.DeadLetterTopic != "" {
		e.db.Wake()
	}
	return locked, nil
}

// failedArgs returns the arguments of the statement that settles failures.
func (e *engine) failedArgs(failed []dispatch.Failure) []any {
	n := len(failed)
	ids, lanes, epochs, attempts := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	delays, errs, fatalAges, uuids := make([]float64, n), make([]string, n), make([]float64, n), make([]string, n)
	for i, f := range failed {
		ids[i], attempts[i] = f.Row.ID, int64(f.Attempts)
		lanes[i], epochs[i] = int64(f.Row.Assignment.Lane), f.Row.Assignment.Epoch
		delays[i], errs[i], uuids[i] = f.Delay.Seconds(), text.OfError(f.Err), identity(f.Row)
		switch {
		case f.Permanent:
		case e.to != nil && e.cfg.MaxAttempts >= 0 && f.Attempts >= e.cfg.MaxAttempts: // else see isLast
			fatalAges[i] = max(e.cfg.MinDeadAge, 0).Seconds()
		default:
			fatalAges[i] = -1
		}
	}
	args := []any{e.cfg.Scope, e.owner, ids, uuids, lanes, epochs, attempts, delays, errs, fatalAges}
	if e.cfg.DeadLetterTopic != "" {
		args = append(args, e.cfg.DeadLetterTopic)
	}
	return args
}

// outcomesOf interprets the database's answers: the outcomes of failures, the failures whose rows are locked, and how
// many messages are now dead.
func outcomesOf(
	failed []dispatch.Failure, answers []string,
) (outcomes []dispatch.Outcome, locked []dispatch.Failure, dead int) {
	outcomes = make([]dispatch.Outcome, 0, len(failed))
	for i, f := range failed {
		o := dispatch.Outcome{Failure: f, Kind: dispatch.Gone} // no answer means that another settled it
		switch answers[i] {
		case "waiting":
			o.Kind = dispatch.Waiting
		case "dead":
			o.Kind = dispatch.Dead
			dead++
		case "fenced":
			o.Kind = dispatch.Fenced
		case "locked":
			locked = append(locked, f)
			continue
		}
		outcomes = append(outcomes, o)
	}
	return outcomes, locked, dead
}

const (
	minSpan       = 64 // rows; fewer are not worth a separate statement
	maxGap        = 16 // ids between two rows of a span
	minRowsPerGap = 16 // minimum number of rows for each id that is left out
)

// span is a range of ids that are all settled, except the listed ones: scanning it costs a half or a third of looking
// up each id. It may contain ids that no read has seen yet, of transactions that commit later, so each id between the
// ends either belongs to one of our rows or is left out.
type span struct {
	lo, hi int64
	out    []int64
	rows   int64
}

// spanOf finds the longest span in rows that were published in one incarnation, and returns the rows outside it.
// Requeued rows are never in a span.
func spanOf(all []*dispatch.Row) (s span, rest []*dispatch.Row) {
	var rows, again []*dispatch.Row
	for _, r := range all {
		if r.Generation == "" {
			rows = append(rows, r)
		} else {
			again = append(again, r)
		}
	}
	slices.SortFunc(rows, func(a, b *dispatch.Row) int { return cmp.Compare(a.ID, b.ID) })
	from, to, first := 0, 0, 0
	for i := range rows {
		if i+1 < len(rows) && rows[i+1].ID-rows[i].ID <= maxGap+1 {
			continue
		}
		if i+1-first > to-from {
			from, to = first, i+1
		}
		first = i + 1
	}
	if to-from < minSpan {
		return span{}, all
	}
	s = span{lo: rows[from].ID, hi: rows[to-1].ID, out: []int64{}}
	next := s.lo
	for _, r := range rows[from:to] {
		for ; next < r.ID; next++ {
			s.out = append(s.out, next)
		}
		next = r.ID + 1
	}
	s.rows = s.hi - s.lo + 1 - int64(len(s.out)) // a row that was published twice counts once
	if s.rows < int64(minRowsPerGap*len(s.out)) {
		return span{}, all
	}
	return s, slices.Concat(rows[:from], rows[to:], again)
}

// prepareSettling returns an error if dead letters must be written and the connection's role may not write them: every
// death would fail, again and again.
func (e *engine) prepareSettling(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	mayWrite := false
	err := drive.Collect(ctx, e.db, func(rows drive.Rows) error { return rows.Scan(&mayWrite) }, e.sql.mayWrite)
	if err == nil && !mayWrite && e.cfg.DeadLetterTopic != "" {
		err = fmt.Errorf("forwarder: DeadLetterTopic is set and the role may not insert into %s: "+
			"grant it what schema.Roles grants a writer",
			e.cfg.tables.OutboxName())
	}
	return err
}
