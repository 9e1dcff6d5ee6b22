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
)

// settle is the goroutine that writes results back, all that have come together since its last
// statement at once. A batch that fails is repeated as it is: settling twice changes nothing.
func (e *engine) settle(ctx context.Context) {
	report := errorLog{logger: e.logger, what: "Settling messages"}
	for {
		e.mu.Lock()
		published, failed := e.board.takeResults(maxSettle)
		e.mu.Unlock()
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
		if !e.settleBatch(ctx, published, failed, &report) {
			return
		}
	}
}

// settleBatch returns false if it gave up because the forwarder stops and the database does not answer.
func (e *engine) settleBatch(ctx context.Context, published []*row, failed []failure, report *errorLog) bool {
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 50*time.Millisecond, 5*time.Second
	for {
		err := e.settleOnce(context.WithoutCancel(ctx), &published, &failed)
		report.report(err)
		if err == nil {
			return true
		}
		select {
		case <-ctx.Done():
			e.logger.Error("Stopped before results were settled; the messages will be sent again", err,
				watermill.LogFields{"messages": len(published) + len(failed)})
			return false
		case <-time.After(retry.NextBackOff()):
		}
	}
}

// settleOnce empties both batches as far as it gets.
func (e *engine) settleOnce(ctx context.Context, published *[]*row, failed *[]failure) error {
	begun := time.Now()
	end := SettleEnd{Published: len(*published), Failed: len(*failed)}
	var outcomes map[int64]outcome
	err := e.settlePublished(ctx, *published)
	if err == nil {
		e.mu.Lock()
		e.board.settledPublished(*published)
		e.mu.Unlock()
		*published = nil
		outcomes, err = e.settleFailed(ctx, *failed)
	}
	if err == nil {
		now := time.Now()
		e.mu.Lock()
		for _, f := range *failed {
			o, known := outcomes[f.row.id]
			if !known {
				o = outcomeGone
			}
			e.board.settledFailed(f, o, now)
		}
		if e.drains > 0 {
			e.wake()
		}
		e.offerDrained()
		e.mu.Unlock()
		for _, f := range *failed {
			if outcomes[f.row.id] == outcomeDead {
				end.Dead++
				e.obs.dead(f)
			}
		}
		*failed = nil
		signal(e.readNow) // a retry may be due sooner than the next read
	}
	end.Took, end.Err = time.Since(begun), err
	e.obs.settle(end)
	return err
}

func (e *engine) settlePublished(ctx context.Context, rows []*row) error {
	if len(rows) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	ids := make([]int64, len(rows))
	for i, r := range rows {
		ids[i] = r.id
	}
	if _, err := e.db.Exec(ctx, e.sql.settlePublished, ids); err != nil {
		return fmt.Errorf("settle %d published: %w", len(ids), err)
	}
	return nil
}

func (e *engine) settleFailed(ctx context.Context, failed []failure) (map[int64]outcome, error) {
	if len(failed) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	n := len(failed)
	ids, lanes, epochs, attempts := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	delays, errs, permanent := make([]float64, n), make([]string, n), make([]bool, n)
	for i, f := range failed {
		ids[i], lanes[i], epochs[i], attempts[i] = f.row.id, int64(f.row.lane.number), f.row.lane.epoch, int64(f.attempts)
		delays[i], errs[i], permanent[i] = f.delay.Seconds(), errorText(f.err), f.permanent
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
	}, e.sql.settleFailed, e.cfg.Scope, e.owner, ids, lanes, epochs, attempts, delays, errs, permanent, mostAttempts, minAge)
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
