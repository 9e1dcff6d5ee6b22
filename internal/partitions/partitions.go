package partitions

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

// Partition is one partition.
type Partition struct {
	Name, SQL string   // schema-qualified name, quoted
	Range              // unset for the default partition
	Locked    bool     // another session holds or waits for an ACCESS EXCLUSIVE lock; then Bytes and Total are 0
	Bytes     int64    // size of its rows, without indexes and TOAST
	Total     int64    // size including indexes and TOAST
	Options   []string // storage options: name=value
	Split     bool     // is partitioned itself, so that Bytes excludes its rows
	Logging   string   // statements that make it crash-safe; "" = it is
}

// Is reports whether two partitions have the same name and range.
func (p Partition) Is(o Partition) bool { return o.SQL == p.SQL && o.Range == p.Range }

// Range is the ids from From to below To.
type Range struct {
	From, To int64 // math.MinInt64 and math.MaxInt64 = no bound
}

// Set is an outbox with its partitions.
type Set struct {
	Partitioned bool
	Schema      string // of the outbox, in SQL
	Tablespace  string // clause of CREATE TABLE for the outbox; "" = the default
	Owner, Role string // in SQL: the owner of the outbox, and the current role
	Owns        bool   // the role has the rights of the owner
	Known       bool   // the role may read Last
	Last        int64  // the last id of the sequence; 0 = none
	Partitions  []Partition
	Default     *Partition // nil = none
}

// Read reads the partitions of an outbox, sorted by their ranges. It returns an error of the database, or one that
// names a partition whose bounds are not a range of ids. A missing table counts as not partitioned.
func Read(ctx context.Context, q drive.Querier, names sqltext.Tables) (s Set, err error) {
	if err = drive.Collect(ctx, q, func(rows drive.Rows) error {
		return rows.Scan(&s.Partitioned, &s.Schema, &s.Tablespace, &s.Owner, &s.Role, &s.Owns, &s.Known, &s.Last)
	}, names.Render(sqltext.PartitionedTable)); err != nil || !s.Partitioned {
		return s, err
	}
	err = drive.Collect(ctx, q, func(rows drive.Rows) error {
		var p Partition
		var bounds, options string
		if err := rows.Scan(&p.Name, &p.SQL, &bounds, &p.Locked, &p.Bytes, &p.Total, &options, &p.Split,
			&p.Logging); err != nil {
			return err
		}
		if options != "" {
			p.Options = strings.Split(options, "|")
		}
		switch bounds {
		case "DEFAULT":
			s.Default = &p
			return nil
		case "": // dropped meanwhile
			return nil
		}
		if p.Range, err = parse(bounds); err != nil {
			return fmt.Errorf("partition %s: %w", p.SQL, err)
		}
		s.Partitions = append(s.Partitions, p)
		return nil
	}, names.Render(sqltext.Partitions))
	slices.SortFunc(s.Partitions, func(a, b Partition) int { return cmp.Compare(a.From, b.From) })
	return s, err
}

// With returns the storage options as a clause of CREATE TABLE.
func (p Partition) With() string {
	var list []string
	for _, o := range p.Options {
		name, value, _ := strings.Cut(o, "=")
		list = append(list, name+" = '"+strings.ReplaceAll(value, "'", "''")+"'")
	}
	if len(list) == 0 {
		return ""
	}
	return " WITH (" + strings.Join(list, ", ") + ")"
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

// Behind returns the partitions wholly below or at the last id.
func (s Set) Behind() []Partition {
	n := slices.IndexFunc(s.Partitions, func(p Partition) bool { return p.To > s.Last })
	if n < 0 {
		n = len(s.Partitions)
	}
	return s.Partitions[:n]
}

// Above returns the partitions wholly above the last id.
func (s Set) Above() []Partition {
	n := slices.IndexFunc(s.Partitions, func(p Partition) bool { return p.From > s.Last })
	if n < 0 {
		return nil
	}
	return s.Partitions[n:]
}

// Ahead returns the number of partitions above the last id, or 0 if the default partition would get more ids than one
// of them has before the first is reached, as after the sequence was set back.
func (s Set) Ahead() int {
	above, next := s.Above(), s.Last+1
	has := func(p Partition) bool { return p.From <= next && next < p.To }
	if len(above) > 0 && above[0].From-next > s.Size() && !slices.ContainsFunc(s.Partitions, has) {
		return 0
	}
	return len(above)
}

// End returns the first id above all partitions, or 0.
func (s Set) End() int64 {
	if n := len(s.Partitions); n > 0 {
		return s.Partitions[n-1].To
	}
	return 0
}

// Size returns the number of ids of the newest partition; 0 if no partition exists or the newest has no end. A
// partition without a lower bound counts from 0.
func (s Set) Size() int64 {
	if s.End() == 0 || s.End() == math.MaxInt64 {
		return 0
	}
	return s.End() - max(s.Partitions[len(s.Partitions)-1].From, 0)
}
