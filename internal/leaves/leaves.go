package leaves

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// Leaf is one partition.
type Leaf struct {
	Name, SQL string // SQL is its name with the schema, quoted
	Range
	Default bool  // then it has no Range
	Locked  bool  // another session has it for itself, or waits for that; then Bytes and Total are 0
	Bytes   int64 // of its rows, without indexes and what is stored out of line; 0 = empty
	Total   int64 // bytes with its indexes and what is stored out of line
	Rows    int64 // as the last ANALYZE or VACUUM counted them; -1 = never
	Options []string
	Split   bool   // it is in partitions itself, and Bytes and Rows do not count what they have
	Logging string // statements that have it survive a crash of the server; "" = it does
}

// Range is the ids from From on, below To.
type Range struct {
	From, To int64 // math.MinInt64 and math.MaxInt64 = no bound
}

// Set is an outbox with its leaves.
type Set struct {
	Partitioned bool
	Schema      string // of the outbox, as SQL
	Tablespace  string // of the outbox, as a clause of CREATE TABLE; nothing if it is that of the database
	Owner, Role string // as SQL; whose it is, and who asks
	Grant       string // statements that have the role act for the owner; "" = it may
	Create      string // statements that have the owner make tables beside it; "" = it may
	Known       bool   // the role may know Last
	Last        int64  // the last id that was handed out; 0 = none
	Leaves      []Leaf // by their ranges
	Default     *Leaf  // nil = none
}

// With writes storage options, with | between them as the statements of this package return them, as a clause of CREATE
// TABLE; nothing if there is none.
func With(options string) string {
	if options == "" {
		return ""
	}
	var list []string
	for o := range strings.SplitSeq(options, "|") {
		name, value, _ := strings.Cut(o, "=")
		list = append(list, name+" = '"+strings.ReplaceAll(value, "'", "''")+"'")
	}
	return " WITH (" + strings.Join(list, ", ") + ")"
}

// Read reads the leaves of an outbox. Of one that is not partitioned there are none. It returns an error of the
// database, or one that names a partition whose bounds are no range of ids. A table that is missing is not partitioned.
func Read(ctx context.Context, q drive.Querier, names sqltext.Tables) (s Set, err error) {
	if err = drive.Collect(ctx, q, func(rows drive.Rows) error {
		return rows.Scan(&s.Partitioned, &s.Schema, &s.Tablespace, &s.Owner, &s.Role, &s.Grant, &s.Create, &s.Known, &s.Last)
	}, names.Render(sqltext.LeavesParent)); err != nil || !s.Partitioned {
		return s, err
	}
	err = drive.Collect(ctx, q, func(rows drive.Rows) error {
		var l Leaf
		var bounds, options string
		if err := rows.Scan(&l.Name, &l.SQL, &bounds, &l.Locked, &l.Bytes, &l.Total, &l.Rows, &options, &l.Split,
			&l.Logging); err != nil {
			return err
		}
		if options != "" {
			l.Options = strings.Split(options, "|")
		}
		switch l.Default = bounds == "DEFAULT"; {
		case l.Default:
			s.Default = &l
			return nil
		case bounds == "": // dropped meanwhile
			return nil
		}
		if l.Range, err = parse(bounds); err != nil {
			return fmt.Errorf("partition %s: %w", l.SQL, err)
		}
		s.Leaves = append(s.Leaves, l)
		return nil
	}, names.Render(sqltext.Leaves))
	slices.SortFunc(s.Leaves, func(a, b Leaf) int { return cmp.Compare(a.From, b.From) })
	return s, err
}

// parse reads FOR VALUES FROM ('1') TO ('9').
func parse(bounds string) (r Range, err error) {
	var from, to string
	clean := strings.NewReplacer("'", "", "(", "", ")", "").Replace(bounds)
	if _, err = fmt.Sscanf(clean, "FOR VALUES FROM %s TO %s", &from, &to); err == nil {
		if r.From, err = bound(from); err == nil {
			r.To, err = bound(to)
		}
	}
	if err != nil {
		return r, fmt.Errorf("its bounds %q are not an id range: the outbox is partitioned by RANGE (id)", bounds)
	}
	return r, nil
}

func bound(s string) (int64, error) {
	switch s {
	case "MINVALUE":
		return math.MinInt64, nil
	case "MAXVALUE":
		return math.MaxInt64, nil
	}
	return strconv.ParseInt(s, 10, 64)
}

// Current is the position of the leaf in which the last id is, or of the first one above it; len(Leaves) if there is
// none.
func (s Set) Current() int {
	i := slices.IndexFunc(s.Leaves, func(l Leaf) bool { return s.Last < l.To })
	if i < 0 {
		return len(s.Leaves)
	}
	return i
}

// Ahead is how many leaves are wholly above the last id.
func (s Set) Ahead() (n int) {
	for _, l := range s.Leaves {
		if l.From > s.Last {
			n++
		}
	}
	return n
}

// Size is how many ids the newest leaf has; 0 if there is no leaf, or it has no end. One without a beginning counts
// from 0.
func (s Set) Size() int64 {
	if len(s.Leaves) == 0 {
		return 0
	}
	r := s.Leaves[len(s.Leaves)-1].Range
	if r.To == math.MaxInt64 {
		return 0
	}
	return r.To - max(r.From, 0)
}

// Gaps are the ranges of ids that have no leaf, whose rows the default has.
func (s Set) Gaps() (gaps []Range) {
	from := int64(math.MinInt64)
	for _, l := range s.Leaves {
		if l.From > from {
			gaps = append(gaps, Range{from, l.From})
		}
		from = l.To
	}
	if from < math.MaxInt64 {
		gaps = append(gaps, Range{from, math.MaxInt64})
	}
	return gaps
}

// Count says how many rows the default has, up to so many of each gap between leaves. It reads through the outbox.
func (s Set) Count(ctx context.Context, q drive.Querier, names sqltext.Tables, upto int64) (n int64, err error) {
	if s.Default == nil || s.Default.Bytes == 0 && !s.Default.Locked {
		return 0, nil
	}
	first, below := Arrays(s.Gaps())
	err = drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&n) }, names.Render(sqltext.CountRanges),
		first, below, upto)
	return min(n, upto), err
}

// Arrays are ranges as the statements take them.
func Arrays(list []Range) (first, below []int64) {
	for _, r := range list {
		first, below = append(first, r.From), append(below, r.To)
	}
	return first, below
}
