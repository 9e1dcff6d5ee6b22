package forwarder

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
)

// recheckHeads compares the blocked keys with the rows that block them, which an operator may have settled, requeued or
// deleted.
func (e *engine) recheckHeads(ctx context.Context, pace *machine.Pace) error {
	for at := e.positions(); len(at) > 0; {
		begun := time.Now()
		var lanes, cursors []int64
		for _, p := range at {
			lanes, cursors = append(lanes, int64(p.Term.Lane)), append(cursors, p.Cursor)
		}
		limit := max(1, headsPerPage/len(lanes))
		pages, _, err := e.heads(ctx, e.db, lanes, cursors, limit)
		if err != nil {
			return err
		}
		e.step(func(now time.Time, m *machine.Machine) { at = m.HeadsSeen(now, begun, at, pages, limit) })
		if !core.Pause(ctx, pace.Rest(time.Since(begun))) {
			return nil
		}
	}
	return nil
}

// recheckFirsts checks whether the first rows of keys that wait for a paused topic are still pending: if an operator
// has settled or deleted such a row, the rest of its key may continue, on other topics.
func (e *engine) recheckFirsts(ctx context.Context, pace *machine.Pace) error {
	for _, p := range e.positions() {
		var firsts []int64
		e.step(func(_ time.Time, m *machine.Machine) { firsts = m.Firsts(p.Term) })
		for page := range slices.Chunk(firsts, headsPerPage) {
			begun := time.Now()
			pending, err := e.pending(ctx, page)
			if err != nil {
				return err
			}
			gone := slices.DeleteFunc(page, func(id int64) bool { return pending[id] })
			e.step(func(now time.Time, m *machine.Machine) { m.FirstsGone(now, p.Term, gone) })
			if !core.Pause(ctx, pace.Rest(time.Since(begun))) {
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
