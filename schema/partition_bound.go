package schema

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/leaves"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// partitioning is one call of Partition or Unpartition.
type partitioning struct {
	db    *core.DB
	names sqltext.Tables
	size  int64
	end   int64 // of the first partition; 0 = the outbox is in partitions
	set   leaves.Set
	with  string // storage options, as SQL
}

func newPartitioning(db *core.DB) *partitioning {
	return &partitioning{db: db, names: db.Tables().WithDefaults()}
}

func (p *partitioning) explain(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", what, p.names.OutboxName(), explainMigrate(ctx, p.db, p.names, err))
}

// below is the name of the check that no id reaches the end of the first partition.
func (p *partitioning) below() string { return p.names.Outbox + "_below" }

// of fills in a statement; leaf is a name.
func (p *partitioning) of(statement, leaf, bounds string) string {
	return strings.NewReplacer(
		"{whole}", p.set.Schema+"."+sqltext.Quote(p.names.Outbox), "{leaf}", p.set.Schema+"."+sqltext.Quote(leaf),
		"{below}", sqltext.Quote(p.below()), "{end}", strconv.FormatInt(p.end, 10), "{owner}", p.set.Owner,
		"{of}", bounds, "{options}", p.with,
	).Replace(p.names.Render(statement))
}

const (
	partitionPause = 10 * time.Millisecond // a lock may be had a moment later
	crowdedPause   = time.Second           // something that has no name for NOWAIT is locked

	// partitionTimeouts end the transaction soon, whatever happens to the process. Its loss in a failover would be
	// harmless, and what commits later is not confirmed before it is on the standby too; so it does not wait for one.
	partitionTimeouts = `SELECT set_config('lock_timeout', '5ms', true), set_config('statement_timeout', '10s', true),
       set_config('idle_in_transaction_session_timeout', '5s', true), set_config('synchronous_commit', 'local', true),
       set_config('jit', 'off', true)`
	noTimeout = `SELECT set_config('statement_timeout', '0', true)`
)

// alone runs fn in a transaction that has the outbox for itself, and in which no other process migrates.
func (p *partitioning) alone(ctx context.Context, fn func(q drive.Querier) error) error {
	for {
		pause := partitionPause
		err := p.db.Transact(ctx, func(q drive.Querier) error {
			if err := drive.Collect(ctx, q, func(drive.Rows) error { return nil }, partitionTimeouts); err != nil {
				return err
			}
			free := false
			if err := drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&free) },
				tryLockMigrations); err != nil || !free {
				return errors.Join(err, errLocked)
			}
			if _, err := q.Exec(ctx, p.names.Render(sqltext.PartitionLock)); err != nil {
				return err
			}
			pause = crowdedPause
			return fn(q)
		})
		switch {
		case text.SQLState(err) == lockNotAvailable:
		case errors.Is(err, errLocked):
			pause = lockPause
		default:
			return err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("the outbox was in use all the time: %w", ctx.Err())
		}
	}
}

// read reads the outbox, and refuses what a role may not do or cannot be carried over.
func (p *partitioning) read(ctx context.Context, q drive.Querier) (err error) {
	if p.set, err = leaves.Read(ctx, q, p.names); err != nil {
		return err
	}
	if p.set.Schema == "" {
		return fmt.Errorf("the table does not exist: %s", runMigrate)
	}
	if !p.set.Owned {
		return fmt.Errorf("role %s does not own it: run it as %s, or GRANT %[2]s TO %[1]s", p.set.Role, p.set.Owner)
	}
	obstacles, err := p.list(ctx, q, sqltext.PartitionObstacles)
	if err == nil && len(obstacles) > 0 {
		err = fmt.Errorf("%s: %w", strings.Join(obstacles, "; "), errObstacles)
	}
	return err
}

func (p *partitioning) list(
	ctx context.Context, q drive.Querier, statement string, args ...any,
) (list []string, err error) {
	err = drive.Collect(ctx, q, func(rows drive.Rows) error {
		var s string
		err := rows.Scan(&s)
		list = append(list, s)
		return err
	}, p.names.Render(statement), args...)
	return list, err
}

// bind chooses the end of the first partition and makes sure that no row is above it. It leaves p.end at 0 if the
// outbox is in partitions.
func (p *partitioning) bind(ctx context.Context) error {
	if err := p.read(ctx, p.db); err != nil || p.set.Partitioned {
		return err
	}
	validated := false
	err := p.alone(ctx, func(q drive.Querier) error {
		p.end = 0
		if err := p.read(ctx, q); err != nil || p.set.Partitioned {
			return err
		}
		var highest int64
		var options string
		if err := drive.Collect(ctx, q, func(rows drive.Rows) error {
			return rows.Scan(&validated, &p.end, &highest, &options)
		}, p.names.Render(sqltext.PartitionBelow), p.below()); err != nil {
			return err
		}
		p.with = leaves.With(options)
		if highest-p.set.Last > p.size {
			return fmt.Errorf("it has ids up to %d, and the last that was handed out is %d: the first partition would have "+
				"room for more ids than are ever used", highest, p.set.Last)
		}
		highest = max(highest, p.set.Last)
		if p.end >= highest+p.size {
			return nil // of a call that was killed
		}
		p.end, validated = highest+roomBelow*p.size, false
		for _, s := range []string{sqltext.PartitionUnbound, sqltext.PartitionBound} {
			if _, err := q.Exec(ctx, p.of(s, "", "")); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || p.end == 0 || validated {
		return err
	}
	err = p.db.Transact(ctx, func(q drive.Querier) error {
		if err := drive.Collect(ctx, q, func(drive.Rows) error { return nil }, noTimeout); err != nil {
			return err
		}
		_, err := q.Exec(ctx, p.of(sqltext.PartitionValidate, "", ""))
		return err
	})
	if err != nil {
		err = errors.Join(err, p.unbind(ctx))
	}
	return err
}

// unbind takes the check away.
func (p *partitioning) unbind(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), secondConnection)
	defer cancel()
	err := p.alone(ctx, func(q drive.Querier) error {
		_, err := q.Exec(ctx, p.of(sqltext.PartitionUnbound, "", ""))
		return err
	})
	if err != nil {
		err = fmt.Errorf("the check %s is still there, and from id %d on messages would be refused: run it again, or "+
			"ALTER TABLE %s DROP CONSTRAINT %s: %w", p.below(), p.end, p.names.OutboxName(), sqltext.Quote(p.below()), err)
	}
	return err
}
