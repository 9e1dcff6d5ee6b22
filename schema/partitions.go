package schema

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/leaves"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Cause: MigrateConfig.PartitionSize is set, and the outbox that is there is one table.
// Cure: call schema.Partition, or run outboxctl migrate partition; or leave PartitionSize at 0.
var errOneTable = errors.New("the outbox is one table: MigrateConfig.PartitionSize only counts where it is made: " +
	"call Partition, or set it to 0")

// partitioned returns errOneTable if the outbox was made, and not in partitions as it should be.
func (r *run) partitioned(ctx context.Context, q drive.Querier, done history) error {
	if r.cfg.PartitionSize == 0 || !done.has(1) {
		return nil
	}
	set, err := leaves.Read(ctx, q, r.names)
	if err != nil {
		return err
	}
	if !set.Partitioned {
		return errOneTable
	}
	return nil
}

// partitionsOf returns the partitions of a table, as SQL with their plain names; none if it is one table.
func (r *run) partitionsOf(ctx context.Context, q drive.Querier, table string) (list []leaves.Leaf, err error) {
	if table != "{outbox}" {
		return nil, nil
	}
	set, err := leaves.Read(ctx, q, r.names)
	if err != nil || !set.Partitioned {
		return nil, err
	}
	if list = set.Leaves; set.Default != nil {
		list = append(list, *set.Default)
	}
	return list, nil
}

const (
	// isAttached says whether an index of a partition is one of that index of the whole table.
	//
	// Arguments: index of the whole table, table, index of the partition, partition, all as SQL, the indexes without
	// schema.
	isAttached = `SELECT EXISTS (SELECT FROM pg_inherits h
  JOIN pg_class i ON i.oid = h.inhrelid JOIN pg_index x ON x.indexrelid = i.oid JOIN pg_class p ON p.oid = h.inhparent
  JOIN pg_index w ON w.indexrelid = p.oid
 WHERE x.indrelid = to_regclass($3::text) AND w.indrelid = to_regclass($2::text)
   AND '"' || p.relname || '"' = $1::text)`

	shortLock = `SET lock_timeout = '5ms'`
	anyLock   = `RESET lock_timeout`
)

// buildParts makes an index of a table in partitions: of the whole, which holds nothing, then of each partition without
// blocking writers, and last it says that they belong together.
func (r *run) buildParts(
	ctx context.Context, q drive.Querier, create, index, table string, parts []leaves.Leaf,
) error {
	on := " ON " + table + " "
	if !strings.Contains(create, on) {
		return fmt.Errorf("build the index %s in partitions: its statement has no %q", index, on)
	}
	var name string
	var complete, building bool
	state := func(index, table string) error {
		return drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&name, &complete, &building) },
			indexState, table, index)
	}
	whole := r.names.Render(index)
	if err := state(whole, r.names.Render(table)); err != nil || complete {
		return err
	}
	if name == "" {
		only := strings.Replace(strings.Replace(create, "INDEX CONCURRENTLY", "INDEX", 1), on, " ON ONLY "+table+" ", 1)
		lock := r.names.Render("LOCK TABLE ONLY " + table + " IN SHARE MODE NOWAIT; " + only)
		if err := soon(ctx, q, lock); err != nil {
			return err
		}
	}
	for _, leaf := range parts {
		attached := false
		if err := drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&attached) }, isAttached, whole,
			r.names.Render(table), leaf.SQL); err != nil || attached {
			if err != nil {
				return err
			}
			continue
		}
		part := sqltext.Quote(leaf.Name + strings.TrimPrefix(strings.Trim(whole, `"`), r.names.WithDefaults().Outbox))
		of := r.names.Render(strings.Replace(strings.Replace(create, index, part, 1), on, " ON "+leaf.SQL+" ", 1))
		err := r.build(ctx, q, of, part, leaf.SQL)
		if err == nil {
			err = state(part, leaf.SQL)
		}
		if err == nil {
			err = soon(ctx, q, "ALTER INDEX "+r.names.InSchema(index)+" ATTACH PARTITION "+name)
		}
		if err != nil && text.SQLState(err) != text.UndefinedTable { // a roll has dropped it
			return err
		}
	}
	return nil
}

// soon runs a statement that needs a lock for an instant. While it waits others queue up behind it, so it gives up
// soon, and tries again.
func soon(ctx context.Context, q drive.Querier, statement string) error {
	if _, err := q.Exec(ctx, shortLock); err != nil {
		return err
	}
	for {
		_, err := q.Exec(ctx, statement)
		if text.SQLState(err) != lockNotAvailable {
			_, reset := q.Exec(context.WithoutCancel(ctx), anyLock)
			return errors.Join(err, reset)
		}
		select {
		case <-time.After(lockPause):
		case <-ctx.Done():
			return fmt.Errorf("wait for a lock: %w", ctx.Err())
		}
	}
}

const lockNotAvailable = "55P03"
