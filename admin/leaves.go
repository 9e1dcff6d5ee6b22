package admin

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/leaves"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// LeafStats describes a partition of an outbox.
type LeafStats struct {
	Name    string    `json:"name"`
	State   LeafState `json:"state"`
	Default bool      `json:"default"` // it has the ids that no leaf has
	// From is the lowest id of a leaf, and To the first one above it; 0 = no bound.
	From int64 `json:"from"`
	To   int64 `json:"to"`
	// Bytes is its size on disk, with its indexes and what is stored out of line; 0 also while another session has locked
	// it against all others, or waits for that.
	Bytes int64 `json:"bytes"`
	// Oldest is the age of its first message; 0 = it has none.
	Oldest time.Duration `json:"oldest"`
}

// LeafState is the state of a partition relative to the last id.
type LeafState string

// The states. The default partition is LeafEmpty or LeafFilled.
const (
	LeafAhead    LeafState = "ahead"    // above the last id
	LeafCurrent  LeafState = "current"  // has the last id
	LeafRetained LeafState = "retained" // behind it; something in it must stay
	LeafDue      LeafState = "due"      // behind it, and settled longer ago than the retention of the last roll
	LeafEmpty    LeafState = "empty"    // has no message
	LeafFilled   LeafState = "filled"   // the default has messages
	LeafUnknown  LeafState = "unknown"  // the role may not read the sequence of the ids
)

// Leaves lists the partitions of an outbox by their ids, the default last. It returns none if the outbox is one table.
func (a *Admin) Leaves(ctx context.Context) ([]LeafStats, error) {
	p, err := a.partitions(ctx)
	if err != nil {
		return nil, fmt.Errorf("leaves: %w", err)
	}
	return p.list, nil
}

// leavesForStats leaves out what cannot be read: Doctor says so.
func (a *Admin) leavesForStats(ctx context.Context) ([]LeafStats, error) {
	list, err := a.Leaves(ctx)
	if err != nil && ctx.Err() == nil {
		return []LeafStats{}, nil
	}
	return list, err
}

// partitions is what is known of an outbox in partitions; nothing of one that is one table.
type partitions struct {
	leaves.Set
	list  []LeafStats
	rolls []pastRoll    // the newest first
	keep  time.Duration // of the last of them; the usual one if there was none
	kept  bool          // there was one
	blind bool          // the role may not read the audit log, or there is none
}

// pastRoll is a roll in the audit log.
type pastRoll struct {
	age     time.Duration
	role    string
	grant   string        // statements that have the role act for the owner; "" = it may
	keep    time.Duration // 0 = it emptied nothing
	ended   bool          // it did all that it could
	outcome string
}

func (a *Admin) partitions(ctx context.Context) (p partitions, err error) {
	p.list = []LeafStats{} // [] in JSON, not null
	if p.Set, err = a.leaves(ctx); err != nil || !p.Partitioned {
		return p, err
	}
	p.rolls, err = a.rolls(ctx)
	switch text.SQLState(err) {
	case text.InsufficientPrivilege, text.UndefinedTable:
		p.blind = true
	default:
		if err != nil {
			return p, err
		}
	}
	p.keep = defaultRetention
	if i := slices.IndexFunc(p.rolls, func(r pastRoll) bool { return r.keep > 0 }); i >= 0 {
		p.keep, p.kept = p.rolls[i].keep, true
	}
	var ranges []leaves.Range
	for _, l := range p.Leaves {
		ranges = append(ranges, l.Range)
		p.list = append(p.list, p.stats(l))
	}
	if p.Default != nil {
		ranges = append(ranges, p.Gaps()...)
		p.list = append(p.list, LeafStats{Name: p.Default.Name, Default: true, State: LeafEmpty, Bytes: p.Default.Total})
	}
	now, err := a.now(ctx)
	if err != nil {
		return p, err
	}
	first, below := leaves.Arrays(ranges)
	return p, a.fetch(ctx, func(rows drive.Rows) error {
		var n int64
		var oldest float64
		var due bool
		err := rows.Scan(&n, &oldest, &due)
		l := &p.list[min(int(n), len(p.list))-1] // all gaps are of the default
		l.Oldest = max(l.Oldest, seconds(oldest))
		switch {
		case l.Default:
			l.State = LeafFilled
		case l.State == LeafEmpty && due:
			l.State = LeafDue
		case l.State == LeafEmpty:
			l.State = LeafRetained
		}
		return err
	}, sqltext.LeafRows, first, below, stamp(now.Add(-p.keep)))
}

// stats is what is known of a leaf without reading it.
func (p partitions) stats(l leaves.Leaf) LeafStats {
	s := LeafStats{Name: l.Name, Bytes: l.Total, State: LeafEmpty}
	if l.From > math.MinInt64 {
		s.From = l.From
	}
	if l.To < math.MaxInt64 {
		s.To = l.To
	}
	switch {
	case !p.Known:
		s.State = LeafUnknown
	case l.From > p.Last:
		s.State = LeafAhead
	case l.To > p.Last:
		s.State = LeafCurrent
	}
	return s
}

func (a *Admin) leaves(ctx context.Context) (leaves.Set, error) {
	ctx, cancel := a.bound(ctx)
	defer cancel()
	set, err := leaves.Read(ctx, a.db, a.db.Tables())
	return set, explain(err)
}

// rolls lists those of the audit log.
func (a *Admin) rolls(ctx context.Context) (list []pastRoll, err error) {
	err = a.collect(ctx, func(rows drive.Rows) error {
		var r pastRoll
		var age, keep float64
		err := rows.Scan(&age, &r.role, &r.grant, &keep, &r.ended, &r.outcome)
		r.age, r.keep = seconds(age), seconds(keep).Round(time.Minute)
		list = append(list, r)
		return err
	}, sqltext.Rolls)
	return list, err
}
