package forwarder

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/schema"
)

const maxErrorBytes = 2000

// ofRows says whether an error may be caused by one row, so that the others can be settled without it: whatever the
// server answers, unless it is about the connection or the server as a whole.
func ofRows(err error) bool {
	state := schema.SQLState(err)
	if len(state) < 2 {
		return timedOut(err)
	}
	switch state[:2] {
	case "08", "25", "53", "58": // connection, read-only, resources, system
		return false
	case "57":
		return timedOut(err)
	}
	return true
}

// settlePublished settles rows that were published, and returns those that it passed by because somebody has locked them,
// if it is careful; else it waits for them.
func (e *engine) settlePublished(ctx context.Context, rows []*row, careful bool) (left []*row, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	begun := time.Now()
	locked, err := e.writePublished(ctx, rows, careful)
	e.obs.settle(SettleEnd{Published: len(rows) - len(locked), Took: time.Since(begun), Err: err})
	if err != nil {
		return nil, fmt.Errorf("settle %d published: %w", len(rows), err)
	}
	done := rows
	if len(locked) > 0 {
		done = nil
		for _, r := range rows {
			if locked[r.id] {
				left = append(left, r)
			} else {
				done = append(done, r)
			}
		}
	}
	e.settled(func() { e.board.settledPublished(done) })
	return left, nil
}

// writePublished returns the ids of the rows that it could not settle.
func (e *engine) writePublished(ctx context.Context, rows []*row, careful bool) (locked map[int64]bool, err error) {
	ids, uuids := make([]int64, len(rows)), make([]string, len(rows))
	e.mu.Lock()
	life := e.reader.life
	for i, r := range rows {
		ids[i], uuids[i] = r.id, r.uuid
		if r.lane.lost { // it may have been read in another one
			life = ""
		}
	}
	e.mu.Unlock()
	if !careful {
		_, err = e.db.Exec(ctx, e.sql.settlePublished, ids, uuids, life)
		return nil, err
	}
	locked = map[int64]bool{}
	err = schema.Collect(ctx, e.db, func(rows schema.Rows) error {
		var id int64
		err := rows.Scan(&id)
		locked[id] = true
		return err
	}, e.sql.settleUnlocked, ids, uuids)
	return locked, err
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

// settleFailed settles failures, and returns those that it passed by because somebody has locked their rows.
func (e *engine) settleFailed(ctx context.Context, failed []failure) (left []failure, err error) {
	begun := time.Now()
	end := SettleEnd{Failed: len(failed)}
	outcomes, err := e.writeFailed(ctx, failed)
	if err != nil {
		end.Took, end.Err = time.Since(begun), err
		e.obs.settle(end)
		return nil, err
	}
	now := time.Now()
	e.settled(func() {
		for _, f := range failed {
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
	for _, f := range failed {
		if outcomes[f.row.id] == outcomeDead {
			end.Dead++
			e.obs.dead(f)
		}
	}
	end.Failed -= len(left)
	end.Took = time.Since(begun)
	e.obs.settle(end)
	return left, nil
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
func errorText(err error) (text string) {
	defer func() {
		if p := recover(); p != nil {
			text = "the error's own text: " + ErrPublishPanic.Error()
		}
	}()
	text = err.Error()
	if len(text) > maxErrorBytes {
		text = text[:maxErrorBytes]
	}
	return strings.ReplaceAll(strings.ToValidUTF8(text, "?"), "\x00", "?")
}
