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
	room  int64 // how far above the ids that are used the first partition ends
	end   int64 // of the first partition; 0 = none was chosen
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
	return fmt.Errorf("%s %s: %w", what, p.names.OutboxName(), explainMigrate(ctx, p.db, p.names, what, err))
}

// below is the name of the check that no id reaches the end of the first partition.
func (p *partitioning) below() string { return p.names.Outbox + "_below" }

// of fills in a statement; leaf is a name.
func (p *partitioning) of(statement, leaf, bounds string) string {
	return strings.NewReplacer(
		"{whole}", p.set.Schema+"."+sqltext.Quote(p.names.Outbox), "{leaf}", p.set.Schema+"."+sqltext.Quote(leaf),
		"{below}", sqltext.Quote(p.below()), "{end}", strconv.FormatInt(p.end, 10), "{owner}", p.set.Owner,
		"{of}", bounds, "{options}", p.with, "{tablespace}", p.set.Tablespace,
	).Replace(p.names.Render(statement))
}

const (
	partitionPause = 10 * time.Millisecond // a lock may be had a moment later
	crowdedPause   = time.Second           // something that has no name for NOWAIT is locked, or a statement took too long

	queryCanceled  = "57014"
	cancelledTries = 3

	// partitionTimeouts end the transaction soon, whatever happens to the process. Its loss in a failover would be
	// harmless, and what commits later is not confirmed before it is on the standby too; so it does not wait for one.
	partitionTimeouts = `SELECT set_config('lock_timeout', '5ms', true), set_config('statement_timeout', '10s', true),
       set_config('idle_in_transaction_session_timeout', '5s', true), set_config('synchronous_commit', 'local', true),
       set_config('jit', 'off', true), set_config('default_table_access_method', 'heap', true),
       set_config('default_tablespace', '', true)`
)

// alone runs fn in a transaction that has the outbox for itself, and in which no other process migrates. Before each
// try it calls before, whose error ends it. All others wait while fn runs, so a statement of it that is cancelled, by
// its timeout or by an operator, is not tried forever.
func (p *partitioning) alone(
	ctx context.Context, before func(context.Context) error, fn func(q drive.Querier) error,
) error {
	for cancelled := 0; ; {
		if err := before(ctx); err != nil {
			return err
		}
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
		case text.SQLState(err) == queryCanceled && ctx.Err() == nil:
			if cancelled++; cancelled == cancelledTries {
				return fmt.Errorf("statements were cancelled %d times while the outbox was locked, by their timeout or by an "+
					"operator: run it again when the server is less busy: %w", cancelled, err)
			}
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
	set, err := leaves.Read(ctx, q, p.names)
	if err != nil {
		return err
	}
	p.set = set
	if p.set.Schema == "" {
		return fmt.Errorf("the table does not exist: %s", runMigrate)
	}
	if p.set.Grant != "" {
		return fmt.Errorf("role %s does not own it: run it as %s, or %s", p.set.Role, p.set.Owner, p.set.Grant)
	}
	if p.set.Create != "" {
		return fmt.Errorf("role %s owns table %s and lacks CREATE on its schema or tablespace: %s", p.set.Owner,
			p.names.OutboxName(), p.set.Create)
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
