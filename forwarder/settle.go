package forwarder

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"

	"github.com/millrace-go/watermill-outbox/schema"
)

const (
	maxSettle     = 10000 // rows per statement
	maxErrorBytes = 2000
	lockedPause   = 100 * time.Millisecond // before rows are tried again that somebody has locked
)

// settle is the goroutine that writes results back, all that have come together since its last
// statement at once. What fails is repeated: settling twice changes nothing. After a time-out it goes carefully:
// around the rows that somebody else's transaction has locked, and in smaller and smaller parts, until nothing is left.
func (e *engine) settle(ctx context.Context) {
	report := errorLog{logger: e.logger, what: "Settling messages"}
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 50*time.Millisecond, 5*time.Second
	var published []*row
	var failed []failure
	careful, most := false, maxSettle
	for {
		e.mu.Lock()
		newPublished, newFailed := e.board.takeResults(maxSettle)
		e.mu.Unlock()
		published, failed = append(published, newPublished...), append(failed, newFailed...)
		if len(published)+len(failed) == 0 {
			select {
			case <-e.settleNow:
				continue
			case <-ctx.Done():
				e.mu.Lock()
				left := len(e.board.published) + len(e.board.failed)
				e.mu.Unlock()
				if left == 0 {
					return
				}
				continue
			}
		}
		var err error
		before := len(published) + len(failed)
		published, err = e.settlePublished(context.WithoutCancel(ctx), published, most, careful)
		if err == nil {
			failed, err = e.settleFailed(context.WithoutCancel(ctx), failed, most)
		}
		report.report(err)
		left := len(published) + len(failed)
		pause := lockedPause
		switch {
		case timedOut(err):
			careful, most = true, max(1, min(most, max(len(published), len(failed)))/2)
			pause = retry.NextBackOff()
		case err != nil:
			pause = retry.NextBackOff()
		case left == 0:
			careful, most = false, maxSettle
			retry.Reset()
			continue
		default:
			most = min(2*most, maxSettle)
			if left < before {
				continue
			}
		}
		select {
		case <-ctx.Done():
			e.logger.Error("Stopped before results were settled; the messages will be sent again", context.DeadlineExceeded,
				watermill.LogFields{"messages": left})
			return
		case <-time.After(pause):
		}
	}
}

// settlePublished settles at most so many rows, and returns those that are left.
func (e *engine) settlePublished(ctx context.Context, rows []*row, most int, careful bool) (left []*row, err error) {
	if len(rows) == 0 {
		return nil, nil
	}
	part, rest := rows[:min(most, len(rows))], rows[min(most, len(rows)):]
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	begun := time.Now()
	locked, err := e.writePublished(ctx, part, careful)
	e.obs.settle(SettleEnd{Published: len(part) - len(locked), Took: time.Since(begun), Err: err})
	if err != nil {
		return rows, fmt.Errorf("settle %d published: %w", len(part), err)
	}
	done := part
	if len(locked) > 0 {
		done = nil
		for _, r := range part {
			if locked[r.id] {
				left = append(left, r)
			} else {
				done = append(done, r)
			}
		}
	}
	e.settled(func() { e.board.settledPublished(done) })
	return append(left, rest...), nil
}

// writePublished returns the rows that it could not settle because somebody has locked them, if it is careful;
// else it waits for them.
func (e *engine) writePublished(ctx context.Context, rows []*row, careful bool) (locked map[int64]bool, err error) {
	ids, uuids := make([]int64, len(rows)), make([]string, len(rows))
	for i, r := range rows {
		ids[i], uuids[i] = r.id, r.uuid
	}
	if careful {
		locked = map[int64]bool{}
		err := schema.Collect(ctx, e.db, func(rows schema.Rows) error {
			var id int64
			err := rows.Scan(&id)
			locked[id] = true
			return err
		}, e.sql.settleUnlocked, ids, uuids)
		return locked, err
	}
	_, err = e.db.Exec(ctx, e.sql.settlePublished, ids, uuids)
	return nil, err
}

// settled has the board note results that are in the database, and whoever waits for that look again.
func (e *engine) settled(note func()) {
	e.mu.Lock()
	note()
	if e.drains > 0 {
		e.wake()
	}
	e.offerDrained()
	e.mu.Unlock()
	signal(e.readNow) // a retry may be due sooner than the next read
}

// settleFailed settles at most so many failures, and returns those that are left.
func (e *engine) settleFailed(ctx context.Context, failed []failure, most int) (left []failure, err error) {
	if len(failed) == 0 {
		return nil, nil
	}
	part, rest := failed[:min(most, len(failed))], failed[min(most, len(failed)):]
	begun := time.Now()
	end := SettleEnd{Failed: len(part)}
	outcomes, err := e.writeFailed(ctx, part)
	if err != nil {
		end.Took, end.Err = time.Since(begun), err
		e.obs.settle(end)
		return failed, err
	}
	now := time.Now()
	e.settled(func() {
		for _, f := range part {
			switch o, known := outcomes[f.row.id]; {
			case o == outcomeLocked:
				left = append(left, f)
			case !known:
				e.board.settledFailed(f, outcomeGone, now)
			default:
				e.board.settledFailed(f, o, now)
			}
		}
	})
	for _, f := range part {
		if outcomes[f.row.id] == outcomeDead {
			end.Dead++
			e.obs.dead(f)
		}
	}
	end.Failed -= len(left)
	end.Took = time.Since(begun)
	e.obs.settle(end)
	return append(left, rest...), nil
}

func (e *engine) writeFailed(ctx context.Context, failed []failure) (map[int64]outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	n := len(failed)
	ids, lanes, epochs, attempts := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	delays, errs, permanent, uuids := make([]float64, n), make([]string, n), make([]bool, n), make([]string, n)
	for i, f := range failed {
		ids[i], lanes[i], epochs[i], attempts[i] = f.row.id, int64(f.row.lane.number), f.row.lane.epoch, int64(f.attempts)
		delays[i], errs[i], permanent[i] = f.delay.Seconds(), errorText(f.err), f.permanent
		uuids[i] = f.row.uuid
	}
	mostAttempts, minAge := int64(e.cfg.MaxAttempts), max(e.cfg.MinDeadAge, 0).Seconds()
	if mostAttempts < 0 {
		mostAttempts = 1 << 40
	}
	outcomes := make(map[int64]outcome, n)
	err := schema.Collect(ctx, e.db, func(rows schema.Rows) error {
		var id int64
		var o string
		if err := rows.Scan(&id, &o); err != nil {
			return err
		}
		outcomes[id] = outcome(o)
		return nil
	}, e.sql.settleFailed, e.cfg.Scope, e.owner, ids, lanes, epochs, attempts, delays, errs, permanent, mostAttempts, minAge, uuids)
	if err != nil {
		return nil, fmt.Errorf("settle %d failed: %w", n, err)
	}
	return outcomes, nil
}

// errorText makes an error storable: Postgres text takes neither NUL nor invalid UTF-8.
func errorText(err error) string {
	text := err.Error()
	if len(text) > maxErrorBytes {
		text = text[:maxErrorBytes]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, "?"), "\x00", "?")
}
