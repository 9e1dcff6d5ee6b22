package admin

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/partitions"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Partition describes a partition of an outbox.
type Partition struct {
	Name string `json:"name"`
	// State is ahead (above the last id) or current. Behind the last id it is retained while messages are younger than
	// the retention of the last run, held while messages are pending or dead, due if the next run drops it, or empty.
	// The default partition is empty or filled. State is unknown if the role may not read the last id.
	State   string `json:"state"`
	Default bool   `json:"default"` // it takes ids that have no other partition
	// From is the lowest id, and To the first id above the partition; 0 = no bound.
	From int64 `json:"from"`
	To   int64 `json:"to"`
	// Bytes is its size on disk, with indexes and TOAST; 0 while another session holds an exclusive lock on it, or
	// waits for one.
	Bytes int64 `json:"bytes"`
	// Oldest is the age of its first message; 0 = it has no messages.
	Oldest time.Duration `json:"oldest"`
	// Pending and Dead are the messages that keep a partition behind the last id from being dropped, up to 1,000 each.
	Pending Count `json:"pending"`
	Dead    Count `json:"dead"`
}

const (
	partitionAhead    = "ahead"
	partitionCurrent  = "current"
	partitionRetained = "retained"
	partitionHeld     = "held"
	partitionDue      = "due"
	partitionEmpty    = "empty"
	partitionFilled   = "filled"
	partitionUnknown  = "unknown"
)

// Partitions lists the partitions of an outbox by their ids, the default last. It returns none if the outbox is not
// partitioned.
func (a *Admin) Partitions(ctx context.Context) ([]Partition, error) {
	p, err := a.partitions(ctx)
	if err != nil {
		return nil, fmt.Errorf("partitions: %w", err)
	}
	return p.list, nil
}

// partitionsForStats returns none if they cannot be read: Doctor reports that.
func (a *Admin) partitionsForStats(ctx context.Context) ([]Partition, error) {
	list, err := a.Partitions(ctx)
	if err != nil && ctx.Err() == nil {
		return []Partition{}, nil
	}
	return list, err
}

// partitioned describes a partitioned outbox. It is empty if the outbox is not partitioned.
type partitioned struct {
	partitions.Set
	list []Partition
	runs []pastRun     // newest first
	keep time.Duration // the retention of the last run; the default one before the first
	kept bool          // the last run had a retention
}

// pastRun is a run of MaintainPartitions in the audit log.
type pastRun struct {
	age, keep time.Duration // keep 0 = it dropped no partition
	ended     bool          // without an error
	outcome   string
}

const mostHeld = 1000 // messages that are counted

func (a *Admin) partitions(ctx context.Context) (p partitioned, err error) {
	p.list, p.keep = []Partition{}, defaultRetention // [] in JSON, not null
	if p.Set, err = a.partitionSet(ctx); err != nil || !p.Partitioned {
		return p, err
	}
	err = a.collect(ctx, func(rows drive.Rows) error {
		var r pastRun
		var age, keep float64
		err := rows.Scan(&age, &keep, &r.ended, &r.outcome)
		r.age, r.keep = seconds(age), seconds(keep).Round(time.Minute)
		p.runs = append(p.runs, r)
		return err
	}, sqltext.PartitionRuns)
	if state := text.SQLState(err); err != nil && state != text.InsufficientPrivilege && state != text.UndefinedTable {
		return p, err
	}
	if i := slices.IndexFunc(p.runs, func(r pastRun) bool { return r.keep > 0 }); i >= 0 {
		p.keep, p.kept = p.runs[i].keep, true
	}
	var first, below []int64
	add := func(s Partition, r partitions.Range) {
		p.list, first, below = append(p.list, s), append(first, r.From), append(below, r.To)
	}
	for _, one := range p.Set.Partitions {
		add(p.describe(one), one.Range)
	}
	gaps := len(p.list)
	if d := p.Default; d != nil { // its rows lie between the other partitions, and are read through the outbox
		from := int64(math.MinInt64)
		for _, one := range append(slices.Clone(p.Set.Partitions), partitions.Partition{
			Range: partitions.Range{From: math.MaxInt64}}) {
			if one.From > from {
				add(Partition{Name: d.Name, Default: true, State: partitionEmpty, Bytes: d.Total},
					partitions.Range{From: from, To: one.From})
			}
			from = one.To
		}
	}
	now, err := a.now(ctx)
	if err != nil {
		return p, err
	}
	err = a.fetch(ctx, func(rows drive.Rows) error {
		var n, pending, dead int64
		var oldest *float64
		var young bool
		err := rows.Scan(&n, &oldest, &young, &pending, &dead)
		if err == nil {
			p.list[n-1].holds(oldest, young, pending, dead)
		}
		return err
	}, sqltext.PartitionRows, first, below, stamp(now.Add(-p.keep)), int64(mostHeld+1))
	for _, gap := range p.list[min(gaps+1, len(p.list)):] { // merge the gaps into one entry
		d := &p.list[gaps]
		if d.Oldest = max(d.Oldest, gap.Oldest); gap.State == partitionFilled {
			d.State = partitionFilled
		}
	}
	p.list = p.list[:min(gaps+1, len(p.list))]
	return p, err
}

// holds sets the fields that depend on the messages of a partition.
func (s *Partition) holds(oldest *float64, young bool, pending, dead int64) {
	if oldest != nil {
		s.Oldest = seconds(*oldest)
	}
	switch {
	case s.Default && oldest != nil:
		s.State = partitionFilled
	case s.State != partitionDue:
	case oldest == nil:
		s.State = partitionEmpty
	default:
		s.Pending = Count{N: min(pending, mostHeld), More: pending > mostHeld}
		s.Dead = Count{N: min(dead, mostHeld), More: dead > mostHeld}
		if young {
			s.State = partitionRetained
		} else if pending+dead > 0 {
			s.State = partitionHeld
		}
	}
}

// describe returns the fields of a partition that need no reading of its messages.
func (p partitioned) describe(one partitions.Partition) Partition {
	s := Partition{Name: one.Name, Bytes: one.Total, State: partitionDue}
	if one.From > math.MinInt64 {
		s.From = one.From
	}
	if one.To < math.MaxInt64 {
		s.To = one.To
	}
	switch {
	case !p.Known:
		s.State = partitionUnknown
	case one.From > p.Last:
		s.State = partitionAhead
	case one.To > p.Last:
		s.State = partitionCurrent
	}
	return s
}

// HeldBy names the messages that keep the partition, such as "2 dead"; "" if none do.
func (s Partition) HeldBy() string {
	var list []string
	for _, c := range []struct {
		Count
		what string
	}{{s.Pending, "pending"}, {s.Dead, "dead"}} {
		if c.N > 0 {
			list = append(list, c.String()+" "+c.what)
		}
	}
	return strings.Join(list, " and ")
}

func (a *Admin) partitionSet(ctx context.Context) (partitions.Set, error) {
	ctx, cancel := a.bound(ctx)
	defer cancel()
	set, err := partitions.Read(ctx, a.db, a.db.Tables())
	return set, explain(err)
}
