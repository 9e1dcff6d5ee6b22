package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace-go/watermill-outbox/internal/leaves"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// resetAhead has the planner forget what it knows of leaves that are still empty: that they have no pages. A plan that
// is made then reads them from end to end, and would go on to do so when they are full.
func (r *roll) resetAhead(ctx context.Context) error {
	for _, l := range r.set.Leaves[r.set.Current():] {
		if l.Split || l.Locked || l.Bytes > 0 || l.Rows < 0 || r.cfg.DryRun {
			continue
		}
		err := r.ifEmpty(ctx, l, []lock{{l.SQL, exclusive}}, sqltext.RollEmpty, LeafReset)
		if err != nil {
			return err
		}
	}
	return nil
}

// dropAll drops leaves that are empty and far behind.
func (r *roll) dropAll(ctx context.Context) error {
	for _, l := range r.set.Leaves[:max(0, r.set.Current()-dropBehind)] {
		if l.Split || l.Locked || l.Bytes > 0 { // whether one that is locked is empty is not known
			continue
		}
		if r.cfg.DryRun {
			r.did(ctx, RolledLeaf{Name: l.Name, Action: LeafDropped})
			continue
		}
		locks := []lock{{r.db.Render("{outbox}"), exclusive}, {l.SQL, exclusive}}
		if d := r.set.Default; d != nil {
			locks = []lock{locks[0], {d.SQL, exclusive}, locks[1]}
		}
		if err := r.ifEmpty(ctx, l, locks, sqltext.RollDrop, LeafDropped); err != nil {
			return err
		}
	}
	return nil
}

// ifEmpty does something to a leaf that is empty.
func (r *roll) ifEmpty(ctx context.Context, l leaves.Leaf, locks []lock, statement string, action LeafAction) error {
	had, err := r.locked(ctx, locks, func(t rawTx) error {
		empty, err := t.do(r.of(sqltext.RollIsEmpty, l.SQL))
		if err != nil {
			return err
		}
		if empty[0] != "t" {
			return errAgain
		}
		_, err = t.do(r.of(statement, l.SQL))
		return err
	})
	switch {
	case errors.Is(err, errAgain), text.SQLState(err) == text.UndefinedTable: // another one has dropped it
		return nil
	case err != nil:
		return fmt.Errorf("leaf %s: %w", l.Name, err)
	case !had:
		r.kept(ctx, l.Name, inUse)
		return nil
	}
	r.did(ctx, RolledLeaf{Name: l.Name, Action: action})
	return nil
}
