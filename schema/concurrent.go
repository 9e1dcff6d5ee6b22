package schema

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/migrations"
)

const (
	// keepTransaction and keepSession let the transaction that has the lock wait for as long as an index takes to build.
	// Servers before 17 have no transaction_timeout. keepSession comes last because it is no query: what a query has read
	// with stays open until the next statement, with its snapshot, and the index build would wait for that.
	keepTransaction = `SELECT set_config(s.name, '0', true) FROM pg_settings s WHERE s.name = 'transaction_timeout'`
	keepSession     = `SET LOCAL idle_in_transaction_session_timeout = 0`

	// indexState says how an index is called in this session ('' if it does not exist), whether it is complete, and
	// whether a session is building an index on its table.
	//
	// Arguments: table, index in quotes.
	indexState = `SELECT coalesce(i.oid::regclass::text, ''), coalesce(x.indisvalid AND x.indisready, false),
       EXISTS (SELECT FROM pg_stat_progress_create_index p WHERE p.relid = t.id
                  AND p.datid = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
  FROM (SELECT $1::text::regclass::oid AS id) t
  LEFT JOIN (pg_index x JOIN pg_class i ON i.oid = x.indexrelid AND '"' || i.relname || '"' = $2::text) ON x.indrelid = t.id`
)

const secondConnection = 10 * time.Second

// concurrently runs the statements of a concurrent migration one by one on another connection than q's, which holds the
// lock. The transaction of q has neither a snapshot meanwhile nor a lock on a table for which an index build would
// wait.
func (r *run) concurrently(ctx context.Context, q drive.Querier, m migrations.Migration) error {
	for _, s := range []string{keepTransaction, keepSession} {
		if _, err := q.Exec(ctx, s); err != nil {
			return err
		}
	}
	second, closeSecond, err := r.db.Dedicated(ctx)
	if err != nil {
		return fmt.Errorf("open a second connection: %w", err)
	}
	defer closeSecond()
	firstCtx, cancel := context.WithTimeout(ctx, secondConnection)
	_, err = second.Exec(firstCtx, "SELECT 1")
	cancel()
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fmt.Errorf("no second connection within %s: one holds the lock and one works, so allow the pool two: %w",
			secondConnection, err)
	}
	if err != nil {
		return fmt.Errorf("open a second connection: %w", err)
	}
	for _, s := range m.Statements() {
		if index, table, ok := migrations.BuildsIndex(s); ok {
			err = r.buildIndex(ctx, second, s, index, table)
		} else {
			_, err = second.Exec(ctx, r.names.Render(s))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// looksBeforeDrop is how often in a row an index must be found invalid while no session builds: a build is no longer
// listed shortly before its last transaction has committed.
const looksBeforeDrop = 10

// buildIndex makes an index unless it is there.
func (r *run) buildIndex(ctx context.Context, q drive.Querier, create, index, table string) error {
	parts, err := r.partitionsOf(ctx, q, table)
	if err != nil {
		return err
	}
	if len(parts) > 0 {
		return r.buildParts(ctx, q, create, index, table, parts)
	}
	return r.build(ctx, q, r.names.Render(create), r.names.Render(index), r.names.Render(table))
}

// build makes an index unless it is there. A build that failed has left it invalid: then it is dropped first. But
// if the process of a build has died the server goes on with it, and it may yet succeed.
func (r *run) build(ctx context.Context, q drive.Querier, create, index, table string) error {
	for looks := 0; ; {
		var name string
		var complete, building bool
		err := drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&name, &complete, &building) },
			indexState, table, index)
		switch looks++; {
		case err != nil || complete:
			return err
		case building:
			looks = 0
		case name == "":
			_, err := q.Exec(ctx, create)
			return err
		case looks == looksBeforeDrop:
			// The server may still drop it for a process that died.
			if _, err := q.Exec(ctx, "DROP INDEX CONCURRENTLY IF EXISTS "+name); err != nil {
				return fmt.Errorf("drop what a failed build left: %w", err)
			}
			continue
		}
		select {
		case <-time.After(lockPause):
		case <-ctx.Done():
			return fmt.Errorf("wait for the index %s: %w", index, ctx.Err())
		}
	}
}
