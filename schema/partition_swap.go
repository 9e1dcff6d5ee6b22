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
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// swap replaces the table by a partitioned one, of which it becomes the first partition.
func (p *partitioning) swap(ctx context.Context) error {
	first := p.names.Outbox + "_p0"
	return p.alone(ctx, p.near, func(q drive.Querier) error {
		if err := p.read(ctx, q); err != nil {
			return err
		}
		if p.set.Partitioned {
			return nil // another process was faster
		}
		var validated bool
		var end int64
		if _, err := p.check(ctx, q, &validated, &end); err != nil {
			return err
		}
		if !validated || end != p.end {
			return errOther
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
		granted, err := p.list(ctx, q, sqltext.PartitionGranted)
		if err != nil {
			return err
		}
		revoke := func(table string) {
			for _, role := range granted {
				script = append(script, p.of("REVOKE ALL ON TABLE {leaf} FROM "+role, table, ""))
			}
		}
		script = append(append(script, rename...),
			strings.ReplaceAll(p.of(sqltext.PartitionSwap, first, ""), "{name}", sqltext.Quote(first)))
		revoke(p.names.Outbox)
		script = append(append(script, make...), p.of(sqltext.PartitionAttach, first, ""))
		for i := range int64(migrations.Partitions - 1) {
			leaf := p.names.Outbox + "_p" + strconv.FormatInt(i+1, 10)
			script = append(script, p.of(sqltext.PartitionAhead, leaf,
				fmt.Sprintf("FOR VALUES FROM (%d) TO (%d)", p.end+i*p.size, p.end+(i+1)*p.size)))
			revoke(leaf)
		}
		rest := p.names.Outbox + "_default"
		script = append(script, p.of(sqltext.PartitionAhead, rest, "DEFAULT"))
		revoke(rest)
		_, err = q.Exec(ctx, strings.Join(append(script, rights...), ";\n")) // at once, while all others wait
		return err
	})
}

// back puts the one partition that has rows in the place of the outbox.
func (p *partitioning) back(ctx context.Context) error {
	if err := p.read(ctx, p.db); err != nil || !p.set.Partitioned {
		return err
	}
	// The server notes for the next time which entries of the indexes are of dead rows. So it is soon done under the lock.
	if _, err := p.only(ctx, p.db); err != nil && text.SQLState(err) != text.UndefinedTable {
		return err
	}
	return p.alone(ctx, anytime, func(q drive.Querier) error {
		if err := p.read(ctx, q); err != nil || !p.set.Partitioned {
			return err
		}
		if _, err := q.Exec(ctx, soonOver); err != nil {
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
		if !strings.HasPrefix(keep.SQL, p.set.Schema+".") {
			return fmt.Errorf("partition %s is in another schema: ALTER TABLE %[1]s SET SCHEMA %s", keep.SQL, p.set.Schema)
		}
		script = append([]string{strings.NewReplacer("{name}", sqltext.Quote(p.names.Outbox),
			"{bound}", sqltext.Quote(keep.Name+"_bound")).Replace(p.of(sqltext.PartitionBack, keep.Name, ""))}, script...)
		_, err = q.Exec(ctx, strings.Join(append(script, rights...), ";\n"))
		return err
	})
}

// soonOver ends a look at partitions under the lock that reads many dead rows; the next try finds fewer.
const soonOver = `SELECT set_config('statement_timeout', '1s', true)`

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
		if l.Split {
			return keep, fmt.Errorf("partition %s is in partitions itself: detach it, and move its rows to the outbox", l.SQL)
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
