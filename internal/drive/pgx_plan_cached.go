package drive

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// indexesOnlyNow sets indexesOnly for the next statement alone: without BEGIN, statements that are sent together are
// one transaction, and the settings end with it.
const indexesOnlyNow = `select set_config('plan_cache_mode', 'force_generic_plan', true),
set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
set_config('enable_sort', 'off', true), set_config('enable_indexscan', 'on', true),
set_config('enable_tidscan', 'on', true), set_config('enable_nestloop', 'on', true), set_config('jit', 'off', true)`

// The kinds of connections that a pool has.
const (
	unknown int32 = iota
	oursAlone
	aPoolers
)

func (p pgxPool) PlanCached() Querier {
	if !p.readsApart() {
		return p
	}
	return planCachedPgx{p}
}

// planCachedPgx keeps the plans of statements on the connections of the pool.
type planCachedPgx struct{ pgxPool }

func (k planCachedPgx) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	rows, err := k.Query(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	err = rows.Close()
	return rows.(interface{ CommandTag() pgconn.CommandTag }).CommandTag().RowsAffected(), err
}

func (k planCachedPgx) Query(ctx context.Context, query string, args ...any) (Rows, error) {
	if k.whose.Load() == aPoolers {
		return k.pgxPool.Query(ctx, query, args...)
	}
	conn, err := k.pool.Acquire(ctx)
	if err != nil {
		return nil, k.explain(err)
	}
	if direct, err := k.direct(ctx, conn); err != nil || !direct {
		conn.Release()
		if err != nil {
			return nil, k.explain(err)
		}
		return k.pgxPool.Query(ctx, query, args...)
	}
	batch := &pgx.Batch{}
	batch.Queue(indexesOnlyNow)
	batch.Queue(query, args...)
	return k.send(ctx, conn, batch, 1)
}

// direct reports whether connections lead to the server itself. Behind a pooler a statement may reach a session that
// has not prepared it.
func (k planCachedPgx) direct(ctx context.Context, conn *pgxpool.Conn) (bool, error) {
	if k.whose.Load() == unknown {
		var pid uint32
		if err := conn.QueryRow(ctx, "select pg_backend_pid()", pgx.QueryExecModeExec).Scan(&pid); err != nil {
			return false, err
		}
		if pid == conn.Conn().PgConn().PID() {
			k.whose.Store(oursAlone)
		} else {
			k.whose.Store(aPoolers)
		}
	}
	return k.whose.Load() == oursAlone, nil
}
