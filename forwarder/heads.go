package forwarder

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/drive"
)

// headsPerPage is how many blocked keys one statement loads.
const headsPerPage = 5000

// loading is a lane that was taken, with the blocked keys that are loaded so far.
type loading struct {
	term  board.Term
	life  string // server incarnation in which they were loaded
	heads []board.Head
}

// loadHeads loads a page of the messages that block keys in newly taken lanes, and starts the lanes that are complete.
// The reading goroutine calls it, so its statement begins after the taking committed and ends before the first read.
// Lanes with few blocked keys go first, so that their messages are published while the others still load.
func (r *reader) loadHeads(ctx context.Context, load []board.Term) error {
	e, old := r.e, r.loading
	if len(load)+len(old) == 0 {
		return nil
	}
	r.loading = make(map[int16]*loading, len(load))
	for _, t := range load {
		if r.loading[t.Lane] = old[t.Lane]; r.loading[t.Lane] == nil || r.loading[t.Lane].term != t {
			r.loading[t.Lane] = &loading{term: t}
		}
	}
	if len(r.loading) == 0 {
		return nil
	}
	lanes, cursors := make([]int64, 0, len(r.loading)), make([]int64, 0, len(r.loading))
	for n, l := range r.loading {
		cursor := int64(0)
		if k := len(l.heads); k > 0 {
			cursor = l.heads[k-1].ID
		}
		lanes, cursors = append(lanes, int64(n)), append(cursors, cursor)
	}
	limit := max(1, headsPerPage/len(lanes))
	pages, life, err := e.heads(ctx, r.q, lanes, cursors, limit)
	if err != nil {
		return err
	}
	for n, l := range r.loading {
		if l.life = cmp.Or(l.life, life); l.life != life {
			r.loading = nil // rows loaded before a crash of the server may be lost: start again from the first page
			return errNewLife
		}
		if l.heads = append(l.heads, pages[n]...); len(pages[n]) == limit {
			continue
		}
		delete(r.loading, n)
		lane := board.NewTaken(time.Now(), l.term, l.heads) // the others need not wait for this
		e.step(func(now time.Time, m *machine.Machine) { m.LaneLoaded(now, l.term, l.life, lane) })
	}
	return nil
}

// heads reads a page of the messages that block keys, above a cursor in each lane, and the incarnation of the server.
func (e *engine) heads(
	ctx context.Context, q drive.Querier, lanes, cursors []int64, limit int,
) (pages map[int16][]board.Head, life string, err error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	pages = map[int16][]board.Head{}
	err = drive.Collect(ctx, q, func(rows drive.Rows) error {
		var lane int16
		var h board.Head
		var wait float64
		if err := rows.Scan(&lane, &h.ID, &h.Key, &h.Topic, &h.Attempts, &wait, &h.Dead); err != nil {
			return err
		}
		if lane < 0 {
			if life = h.Topic; h.Dead {
				return ErrStandby
			}
			return nil
		}
		h.Wait = time.Duration(wait * float64(time.Second))
		pages[lane] = append(pages[lane], h)
		return nil
	}, e.sql.loadHeads, lanes, cursors, int64(limit), topicsArg(e.cfg.Topics), e.cfg.BlockKeyOnDead)
	if err != nil {
		return nil, "", fmt.Errorf("load blocked keys: %w", err)
	}
	for _, page := range pages {
		slices.SortFunc(page, func(a, b board.Head) int { return cmp.Compare(a.ID, b.ID) })
	}
	return pages, life, nil
}
