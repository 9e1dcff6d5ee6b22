package schema

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/leaves"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// swap puts the table in partitions in the place of the one that becomes its first.
func (p *partitioning) swap(ctx context.Context) error {
	first := p.names.Outbox + "_p0"
	return p.alone(ctx, func(q drive.Querier) error {
		if err := p.read(ctx, q); err != nil {
			return err
		}
		if p.set.Partitioned {
			return nil // another process was faster
		}
		var make, rename []string
		if err := drive.Collect(ctx, q, func(rows drive.Rows) error {
			var index, name string
			err := rows.Scan(&index, &name)
			make, rename = append(make, index), append(rename, name)
			return err
		}, p.names.Render(sqltext.PartitionIndexes), p.names.Outbox, first); err != nil {
			return err
		}
		rights, err := p.list(ctx, q, sqltext.PartitionRights)
		if err != nil {
			return err
		}
		script, err := p.list(ctx, q, sqltext.PartitionStrip)
		if err != nil {
			return err
		}
		script = append(append(script, rename...),
			strings.ReplaceAll(p.of(sqltext.PartitionSwap, first, ""), "{name}", sqltext.Quote(first)))
		script = append(append(script, make...), p.of(sqltext.PartitionAttach, first, ""))
		for i := range int64(migrations.Partitions - 1) {
			script = append(script, p.of(sqltext.PartitionAhead, p.names.Outbox+"_p"+strconv.FormatInt(i+1, 10),
				fmt.Sprintf("FOR VALUES FROM (%d) TO (%d)", p.end+i*p.size, p.end+(i+1)*p.size)))
		}
		script = append(append(script, p.of(sqltext.PartitionAhead, p.names.Outbox+"_default", "DEFAULT")), rights...)
		_, err = q.Exec(ctx, strings.Join(script, ";\n")) // at once, while all others wait
		return err
	})
}

// back puts the one partition that has rows in the place of the outbox.
func (p *partitioning) back(ctx context.Context) error {
	if err := p.read(ctx, p.db); err != nil || !p.set.Partitioned {
		return err
	}
	return p.alone(ctx, func(q drive.Querier) error {
		if err := p.read(ctx, q); err != nil || !p.set.Partitioned {
			return err
		}
		keep, err := p.only(ctx, q)
		if err != nil {
			return err
		}
		rights, err := p.list(ctx, q, sqltext.PartitionRights)
		if err != nil {
			return err
		}
		script, err := p.list(ctx, q, sqltext.PartitionIndexesBack, keep.SQL)
		if err != nil {
			return err
		}
		script = append([]string{strings.ReplaceAll(p.of(sqltext.PartitionBack, keep.Name, ""), "{name}",
			sqltext.Quote(p.names.Outbox))}, script...)
		_, err = q.Exec(ctx, strings.Join(append(script, rights...), ";\n"))
		return err
	})
}

// only returns the partition that has all rows, or the current one if there are none.
func (p *partitioning) only(ctx context.Context, q drive.Querier) (keep leaves.Leaf, err error) {
	all := p.set.Leaves
	if p.set.Default != nil {
		all = append(all, *p.set.Default)
	}
	var with []string
	for i, l := range all {
		if i == min(p.set.Current(), len(all)-1) && len(with) == 0 {
			keep = l
		}
		rows, err := p.list(ctx, q, strings.ReplaceAll(sqltext.PartitionFirst, "{leaf}", l.SQL))
		if err != nil {
			return keep, err
		}
		if len(rows) > 0 {
			keep, with = l, append(with, l.Name)
		}
	}
	if len(with) > 1 {
		return keep, fmt.Errorf("%s: %w", strings.Join(with, ", "), errManyLeaves)
	}
	if keep.SQL == "" {
		return keep, errors.New("it has no partition: make one")
	}
	return keep, nil
}
