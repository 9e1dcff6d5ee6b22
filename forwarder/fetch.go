package forwarder

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/board"
	"github.com/millrace-go/watermill-outbox/forwarder/internal/machine"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// fetch runs one of the reading statements. It must be its own transaction: Postgres computes the next transaction id
// once per transaction.
func (e *engine) fetch(
	ctx context.Context, q drive.Querier, apart bool, req *machine.ReadRequest, expected int,
) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.QueryTimeout)
	defer cancel()
	c := newCollector(req, expected)
	query, args := e.statement(req, apart)
	err := drive.Collect(ctx, q, c.collect, query, args...)
	switch {
	case text.SQLState(err) == featureNotSupported && onStandby(ctx, q):
		return c.answer, ErrStandby // unlogged tables cannot be read there
	case err != nil:
		return c.answer, err
	case !c.found:
		return c.answer, errors.New("the read returned no header")
	case c.Life == "":
		return c.answer, errNoLife
	}
	sortRows(c.Read.Ready)
	sortRows(c.Read.Caught)
	return c.answer, nil
}

// statement chooses the statement that reads only what was requested. apart is true for a dedicated connection.
func (e *engine) statement(req *machine.ReadRequest, apart bool) (query string, args []any) {
	w := &req.Window
	args = []any{
		e.cfg.Scope, e.owner, w.Xids, w.Bounds, w.Los, w.SegmentBounds, w.Epochs[:], w.Marks[:], w.Limits[:], w.Rewound[:],
		topicsArg(e.cfg.Topics), w.Stretch, w.Whole,
	}
	query, more := e.sql.fetch, e.sql.fetchMore
	if apart {
		query, more = e.sql.fetchApart, e.sql.fetchMoreApart
	}
	if w.Single {
		query, more = e.sql.fetchRange, e.sql.fetchRangeMore
	}
	catch := &req.Board.Catch
	if !req.Due && len(req.Board.IDs) == 0 && catch.None() {
		return query, args
	}
	due := []int64{}
	if req.Due {
		due = req.Board.Due[:]
	}
	limits := []int64{}
	if !catch.None() {
		limits = catch.Limits[:]
	}
	return more, append(args, sorted(req.Board.IDs), e.cfg.BlockKeyOnDead, due, topicsArg(req.Board.Closed),
		catch.From[:], catch.Upto[:], limits, int64(catch.All), topicsArg(catch.Keys),
		topicsArg(req.Board.Blocked), topicsArg(req.Board.Guessed))
}

const featureNotSupported = "0A000"

func onStandby(ctx context.Context, q drive.Querier) (standby bool) {
	err := drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&standby) }, "SELECT pg_is_in_recovery()")
	return err == nil && standby
}

func topicsArg(topics []string) []string {
	if topics == nil {
		return []string{}
	}
	return topics
}

// sorted returns sorted ids, as the statements that look ids up need them: only ids between the first and the last are
// found.
func sorted(ids []int64) []int64 {
	ids = append([]int64{}, ids...) // not nil
	slices.Sort(ids)
	return ids
}

// sortRows orders rows by id: the oldest are published first, and settled together.
func sortRows(rows []*board.Row) {
	slices.SortFunc(rows, func(a, b *board.Row) int { return cmp.Compare(a.ID, b.ID) })
}
