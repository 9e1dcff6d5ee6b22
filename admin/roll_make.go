package admin

import (
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

const (
	duplicateTable  = "42P07"
	duplicateObject = "42710" // a domain, since each table is a type too
	overlaps        = "42P17" // what another roll has made
)

// makeAll makes leaves until there are enough ahead.
func (r *roll) makeAll(ctx context.Context) error {
	size := r.cfg.PartitionSize
	if size == 0 {
		size = r.set.Size()
	}
	if size == 0 {
		r.notMade(ctx, "there is none that says how many ids one has: set RollConfig.PartitionSize")
		return nil
	}
	for number, tries := r.newest(), 0; tries < 10*leavesAhead; tries++ {
		next, err := r.next(ctx, size)
		if err != nil || next == (leaves.Range{}) {
			return err
		}
		if d := r.set.Default; d != nil && d.Locked {
			r.notMade(ctx, inUse)
			return nil
		}
		name := r.db.Tables().Outbox + "_p" + strconv.Itoa(number)
		if r.cfg.DryRun {
			r.did(ctx, RolledLeaf{Name: name, Action: LeafMade})
			r.set.Leaves = append(r.set.Leaves, leaves.Leaf{Name: name, Range: next})
			number++
			continue
		}
		had, err := r.makeLeaf(ctx, name, next)
		switch {
		case errors.Is(err, errAgain), text.SQLState(err) == overlaps, text.SQLState(err) == text.UndefinedTable:
			err = nil
		case text.SQLState(err) == duplicateTable, text.SQLState(err) == duplicateObject: // of another program
			err = nil
			number++
			continue
		case err != nil:
			return fmt.Errorf("make leaf %s: %w", name, err)
		case !had:
			r.notMade(ctx, inUse)
			return nil
		default:
			r.did(ctx, RolledLeaf{Name: name, Action: LeafMade})
		}
		if err = r.read(ctx); err != nil {
			return err
		}
		number = max(number, r.newest())
	}
	return nil
}

// notMade notes why no leaf is made, or no more.
func (r *roll) notMade(ctx context.Context, why string) {
	r.out.NotMade = why
	r.kept(ctx, r.db.Render("{outbox}"), "no leaf is made: %s", why)
}

// newest is the number of the next leaf: one above those of all.
func (r *roll) newest() (n int) {
	for _, l := range r.set.Leaves {
		_, digits, _ := strings.Cut(l.Name, r.db.Tables().Outbox+"_p")
		if i, err := strconv.Atoi(digits); err == nil {
			n = max(n, i+1)
		}
	}
	return n
}

// next is the range of the next leaf; nothing if there are enough.
//
// A statement that began before the leaf was made does not know it. If it wrote an id that belongs there it would fail,
// and if it read it would miss the row: so a leaf begins a whole leaf above the ids that are handed out now, and leaves
// a gap to the default if there are no others in between. Ids go on while locks are tried for: when they are had, half
// a leaf must be left.
func (r *roll) next(ctx context.Context, size int64) (next leaves.Range, err error) {
	last, end := r.set.Last, int64(0)
	if n := len(r.set.Leaves); n > 0 {
		end = r.set.Leaves[n-1].To
	}
	if end == math.MaxInt64 || size > (math.MaxInt64-max(end, last))/8 || end >= last+leavesAhead*size {
		return next, nil
	}
	from := max(end, last+r.room(size))
	for {
		far, err := r.inDefault(ctx, from+size)
		if err != nil || far < from {
			return leaves.Range{From: from, To: from + size}, err
		}
		from = far + 1
	}
}

// room is how far above the ids that are handed out a leaf begins: a leaf, or the size that leaves have had.
func (r *roll) room(size int64) int64 {
	if newest := r.set.Size(); newest > 0 {
		return min(size, newest)
	}
	return size
}

// inDefault is the highest id in the default below another, 0 if there is none.
func (r *roll) inDefault(ctx context.Context, below int64) (far int64, err error) {
	if r.set.Default == nil || r.set.Default.Bytes == 0 {
		return 0, nil
	}
	err = r.fetch(ctx, func(rows drive.Rows) error { return rows.Scan(&r.full, &far) },
		r.of(sqltext.RollDefault, r.set.Default.SQL), below)
	return far, err
}

// makeLeaf makes a leaf, unless others were made since, or ids have come close to it.
func (r *roll) makeLeaf(ctx context.Context, name string, ids leaves.Range) (bool, error) {
	outbox := r.db.Render("{outbox}")
	locks := []lock{{outbox, changes}}
	if d := r.set.Default; d != nil {
		locks = append(locks, lock{d.SQL, exclusive})
	}
	options := ""
	if n := len(r.set.Leaves); n > 0 {
		options = leaves.With(strings.Join(r.set.Leaves[n-1].Options, "|"))
	}
	create := strings.NewReplacer("{leaf}", r.set.Schema+"."+sqltext.Quote(name), "{options}", options,
		"{tablespace}", r.set.Tablespace, "{owner}", r.set.Owner, "{from}", strconv.FormatInt(ids.From, 10),
		"{to}", strconv.FormatInt(ids.To, 10)).
		Replace(r.db.Render(sqltext.RollMake))
	d := r.set.Default
	if err := r.fetch(ctx, func(rows drive.Rows) error {
		var role string
		err := rows.Scan(&role)
		create += ";REVOKE ALL ON TABLE " + r.set.Schema + "." + sqltext.Quote(name) + " FROM " + role
		return err
	}, sqltext.PartitionGranted); err != nil {
		return false, err
	}
	if d != nil && d.Bytes > 0 && r.full {
		if had, err := r.promise(ctx, *d, ids); err != nil || !had {
			return had, err
		}
	}
	return r.locked(ctx, locks, func(t rawTx) error {
		if err := r.isAhead(t, ids); err != nil {
			return err
		}
		if d != nil && d.Bytes > 0 && r.full {
			kept, err := t.do(r.boundSQL(sqltext.RollKept, *d, ids))
			if err != nil {
				return err
			}
			if kept[0] != "t" { // another roll has replaced it: ATTACH would read all of the default under the lock
				return errAgain
			}
		}
		if d != nil && d.Bytes > 0 && !r.full {
			// Nothing but dead rows: ATTACH would read them all under the lock.
			empty, err := t.do(r.of(sqltext.RollIsEmpty, d.SQL))
			if err != nil {
				return err
			}
			if empty[0] != "t" {
				return errAgain
			}
			create = r.of(sqltext.RollEmpty, d.SQL) + ";" + create
		}
		if d != nil {
			create += ";" + r.boundSQL(sqltext.RollUnbound, *d, ids)
		}
		_, err := t.do(create)
		return err
	})
}

// isAhead returns errAgain if leaves were made since they were read, or if ids have come close to those of a leaf that
// is to be made.
func (r *roll) isAhead(t rawTx, ids leaves.Range) error {
	known := len(r.set.Leaves)
	if r.set.Default != nil {
		known++
	}
	now, err := t.do(r.db.Render(sqltext.RollPartitions))
	if err != nil {
		return err
	}
	last, err := strconv.ParseInt(now[1], 10, 64)
	if err == nil && (now[0] != strconv.Itoa(known) || ids.From-last < r.room(ids.To-ids.From)/2) {
		err = errAgain
	}
	return err
}
