package admin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/leaves"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// look is what was found in a leaf before it is locked.
type look struct {
	acts       string // of operators until then, and the file
	old, young int64  // how many were settled before the retention, and since
	ids        string // of those that stay, at most one more than can be put back
	bytes      int64  // of their payloads
	triggers   bool
}

func (l look) stay() int {
	if l.ids == "" {
		return 0
	}
	return 1 + strings.Count(l.ids, ",")
}

// errLarge ends the transaction, with its connection, before what must stay fills the memory.
// Cause: the rows are larger than estimated.
// Cure: none is needed.
var errLarge = errors.New("the messages that stay are too large to be kept in memory")

// limited is a buffer that takes somewhat more than what must stay may have.
type limited struct{ bytes.Buffer }

func (l *limited) Write(b []byte) (int, error) {
	if l.Len()+len(b) > 2*mostBytes {
		return 0, errLarge
	}
	return l.Buffer.Write(b)
}

// emptyAll empties the leaves behind the current one that are due.
func (r *roll) emptyAll(ctx context.Context) error {
	if r.cfg.Retention == 0 {
		return nil
	}
	for _, l := range r.set.Leaves[:r.set.Current()] {
		switch {
		case l.Split:
			r.kept(ctx, l.Name, "it is in partitions itself: empty them by hand")
			continue
		case l.Locked:
			r.kept(ctx, l.Name, inUse)
			continue
		case l.Bytes == 0:
			continue
		}
		if err := r.empty(ctx, l); err != nil && text.SQLState(err) != text.UndefinedTable { // another one has dropped it
			return fmt.Errorf("leaf %s: %w", l.Name, err)
		}
	}
	return nil
}

// empty empties a leaf if it is due.
func (r *roll) empty(ctx context.Context, l leaves.Leaf) error {
	seen, free, err := r.lookAt(ctx, l)
	if text.SQLState(err) == lockNotAvailable {
		free, err = false, nil
	}
	switch {
	case err != nil:
		return err
	case !free:
		r.kept(ctx, l.Name, inUse)
		return nil
	case seen.old == 0 && seen.young > 0:
		r.kept(ctx, l.Name, "its messages are younger than the retention")
		return nil
	case seen.old == 0 && seen.ids != "":
		return nil // what stayed when it was emptied
	case seen.stay() > mostPutBack && seen.young > 0:
		r.kept(ctx, l.Name, "%d of its messages are younger than the retention", seen.young)
		return nil
	case seen.stay() > mostPutBack:
		return r.deleteOld(ctx, l, fmt.Sprintf("more than %d of its messages are not settled", mostPutBack))
	case seen.bytes > mostBytes:
		return r.deleteOld(ctx, l, fmt.Sprintf("the messages that stay have %d MiB", seen.bytes>>20))
	case seen.triggers && seen.ids != "":
		return r.deleteOld(ctx, l, "it has triggers that would take the messages that stay for new ones")
	case r.cfg.DryRun:
		r.did(ctx, RolledLeaf{Name: l.Name, Action: LeafEmptied, Removed: seen.old, PutBack: int64(seen.stay())})
		return nil
	}
	stayed, crowded := int64(0), false
	had, err := r.locked(ctx, []lock{{l.SQL, exclusive}}, func(t rawTx) (err error) {
		stayed, crowded, err = r.emptyLocked(t, l, seen)
		return err
	})
	switch {
	case errors.Is(err, errLarge):
		return r.deleteOld(ctx, l, fmt.Sprintf("the messages that stay have more than %d MiB", mostBytes>>20))
	case crowded:
		r.kept(ctx, l.Name, "its messages were changed meanwhile: the next run retries")
		return nil
	case err != nil:
		return err
	case !had:
		r.kept(ctx, l.Name, inUse)
		return nil
	}
	r.did(ctx, RolledLeaf{Name: l.Name, Action: LeafEmptied, Removed: seen.old, PutBack: stayed})
	return nil
}

// lookAt reads a leaf. A message that a transaction in progress has written could not be seen, and could be published
// before the leaf is locked: so there was none when it begins; false = there was one all the time.
func (r *roll) lookAt(ctx context.Context, l leaves.Leaf) (seen look, free bool, err error) {
	before := stamp(r.before)
	if !r.cfg.DryRun { // others may have locked it since it was listed, for long
		free, err = r.locked(ctx, []lock{{l.SQL, reads}}, func(rawTx) error { return nil })
		if err != nil || !free {
			return seen, false, err
		}
	}
	if err = r.fetch(ctx, func(rows drive.Rows) error { return rows.Scan(&seen.acts) },
		r.of(sqltext.RollActs, l.SQL)); err != nil {
		return seen, false, err
	}
	late := false
	if err = r.fetch(ctx, func(rows drive.Rows) error { return rows.Scan(&late) }, r.of(sqltext.RollTail, l.SQL),
		before, int64(mostPutBack+1)); err != nil {
		return seen, false, err
	}
	if late {
		seen.young = mostPutBack + 1
		return seen, true, nil
	}
	if !r.cfg.DryRun {
		free, err = r.locked(ctx, []lock{{l.SQL, writers}}, func(rawTx) error { return nil })
		if err != nil || !free {
			return seen, false, err
		}
	}
	err = r.patient(ctx, func(q drive.Querier) error {
		return drive.Collect(ctx, q, func(rows drive.Rows) error {
			return rows.Scan(&seen.old, &seen.young, &seen.ids, &seen.bytes, &seen.triggers)
		}, r.of(sqltext.RollLook, l.SQL), before, int64(mostPutBack+1))
	})
	return seen, true, explain(err)
}

// emptyLocked empties a leaf that is locked, but for what must stay. It refuses if there is too much of that, or if an
// act of an operator or another roll may have changed what was seen.
func (r *roll) emptyLocked(t rawTx, l leaves.Leaf, seen look) (stayed int64, crowded bool, err error) {
	fill := func(statement, ids, columns string) string {
		return strings.NewReplacer("{ids}", ids, "{columns}", columns, "{n}", strconv.Itoa(mostPutBack+1)).
			Replace(r.of(statement, l.SQL))
	}
	found, err := t.do(fill(sqltext.RollStay, seen.ids, ""))
	if err != nil {
		return 0, false, err
	}
	if found[0] != seen.acts || strings.Count(found[1], ",") >= mostPutBack {
		return 0, true, errAgain
	}
	columns := found[2]
	stay := limited{}
	if found[1] != "" {
		tag, err := t.pg.CopyTo(t.ctx, &stay, fill(sqltext.RollTake, found[1], columns))
		if err != nil {
			return 0, false, err
		}
		stayed = tag.RowsAffected()
	}
	empty := fill(sqltext.RollEmpty, "", "") + "; " + r.noted(seen.old)
	if stayed == 0 {
		_, err = t.do(empty)
		return 0, false, err
	}
	// At once, while all others wait.
	tag, err := t.pg.CopyFrom(t.ctx, &stay, empty+"; "+fill(sqltext.RollPutBack, "", columns))
	if err == nil && tag.RowsAffected() != stayed {
		err = fmt.Errorf("%d messages were taken out and %d put back", stayed, tag.RowsAffected())
	}
	return stayed, false, err
}

// deleteOld deletes the old rows of a leaf as Clean does.
func (r *roll) deleteOld(ctx context.Context, l leaves.Leaf, why string) error {
	if r.cfg.DryRun {
		r.did(ctx, RolledLeaf{Name: l.Name, Action: LeafDeleted, Why: why})
		return nil
	}
	first, err := r.number(ctx, sqltext.FirstOutboxID)
	if err != nil {
		return err
	}
	n, err := r.deleteIDs(ctx, leaves.Range{From: max(l.From, first), To: l.To})
	if n > 0 {
		r.did(ctx, RolledLeaf{Name: l.Name, Action: LeafDeleted, Removed: n, Why: why})
	}
	return err
}

// deleteIDs deletes the old rows of a range, and counts them in the audit log.
func (r *roll) deleteIDs(ctx context.Context, ids leaves.Range) (n int64, err error) {
	n, err = r.cleanIDs(ctx, ids.From, ids.To, r.cfg.Retention, stamp(r.cfg.At))
	if n > 0 {
		err = errors.Join(err, r.exec(context.WithoutCancel(ctx), sqltext.CountClean, r.out.AuditID, n))
	}
	return n, err
}

// cleanDefault deletes old rows that have no leaf. Their ids may be far apart, so it goes from one that is there to the
// next.
func (r *roll) cleanDefault(ctx context.Context) error {
	d := r.set.Default
	if d == nil || d.Bytes == 0 && !d.Locked || r.cfg.Retention == 0 {
		return nil
	}
	if d.Locked {
		r.kept(ctx, d.Name, inUse)
		return nil
	}
	const why = "they have no leaf"
	if r.cfg.DryRun {
		r.did(ctx, RolledLeaf{Name: d.Name, Action: LeafDeleted, Why: why})
		return nil
	}
	removed := int64(0)
	for _, gap := range r.set.Gaps() {
		for at := gap.From; at < gap.To; {
			var next *int64
			err := r.fetch(ctx, func(rows drive.Rows) error { return rows.Scan(&next) },
				r.of(sqltext.RollNext, d.SQL), at)
			if err == nil && (next == nil || *next >= gap.To) {
				break
			}
			n := int64(0)
			if err == nil {
				at = min(gap.To, *next+min(cleanSpan, math.MaxInt64-*next))
				n, err = r.deleteIDs(ctx, leaves.Range{From: *next, To: at})
			}
			if removed += n; err != nil {
				return fmt.Errorf("default %s: %w", d.Name, err)
			}
		}
	}
	if removed > 0 {
		r.did(ctx, RolledLeaf{Name: d.Name, Action: LeafDeleted, Removed: removed, Why: why})
	}
	return nil
}
