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
// statement at once. What fails is repeated: settling twice changes nothing.
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
		left := inParts(ctx, published, &report, e.settlePublished) + inParts(ctx, failed, &report, e.settleFailed)
		if left > 0 {
			e.logger.Error("Stopped before results were settled; the messages will be sent again", context.Cause(ctx),
				watermill.LogFields{"messages": left})
			return
		}
	}
}

// inParts settles a list: as a whole, or in smaller parts after one that took too long, since a row that somebody
// else keeps locked must not stop all others. It gives up, and returns how many are left, if the forwarder stops and
// the database does not answer.
func inParts[T any](ctx context.Context, list []T, report *errorLog, settle func(context.Context, []T) error) (left int) {
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 50*time.Millisecond, 5*time.Second
	for most := len(list); len(list) > 0; {
		n := min(most, len(list))
		err := settle(context.WithoutCancel(ctx), list[:n])
		report.report(err)
		switch {
		case err == nil:
			list, most = list[n:], 2*most
			retry.Reset()
			continue
		case timedOut(err) && n > 1:
			most = n / 2
		case timedOut(err):
			list = append(list[1:len(list):len(list)], list[0])
		}
		select {
		case <-ctx.Done():
			return len(list)
		case <-time.After(retry.NextBackOff()):
		}
	}
	return 0
}

func (e *engine) settlePublished(ctx context.Context, rows []*row) error {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	ids, uuids := make([]int64, len(rows)), make([]string, len(rows))
	e.mu.Lock()
	server := e.reader.server
	for i, r := range rows {
		ids[i], uuids[i] = r.id, r.uuid
		if r.lane.lost { // it may have been read from another one
			server = 0
		}
	}
	e.mu.Unlock()
	begun := time.Now()
	var settled int64
	var err error
	if server != 0 {
		settled, err = e.db.Exec(ctx, e.sql.settlePublished, ids, server, []string{})
	}
	if err == nil && settled < int64(len(ids)) {
		_, err = e.db.Exec(ctx, e.sql.settlePublished, ids, int64(0), uuids)
	}
	e.obs.settle(SettleEnd{Published: len(rows), Took: time.Since(begun), Err: err})
	if err != nil {
		return fmt.Errorf("settle %d published: %w", len(rows), err)
	}
	e.settled(func() { e.board.settledPublished(rows) })
	return nil
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

func (e *engine) settleFailed(ctx context.Context, failed []failure) error {
	begun := time.Now()
	end := SettleEnd{Failed: len(failed)}
	outcomes, err := e.writeFailed(ctx, failed)
	if err == nil {
		now := time.Now()
		e.settled(func() {
			for _, f := range failed {
				o, known := outcomes[f.row.id]
				if !known {
					o = outcomeGone
				}
				e.board.settledFailed(f, o, now)
			}
		})
		for _, f := range failed {
			if outcomes[f.row.id] == outcomeDead {
				end.Dead++
				e.obs.dead(f)
			}
		}
	}
	end.Took, end.Err = time.Since(begun), err
	e.obs.settle(end)
	return err
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
