package drive

import (
	"context"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// indexesOnly makes a cached plan right for any number of rows: cost estimates do not matter if only one plan is left.
const indexesOnly = `set plan_cache_mode = force_generic_plan; set enable_seqscan = off; set enable_bitmapscan = off;
set enable_sort = off; set enable_indexscan = on; set enable_nestloop = on; set jit = off;
set default_transaction_isolation = 'read committed';
select set_config('client_encoding', 'UTF8', false)
where current_setting('client_encoding') <> current_setting('server_encoding')`

// readsApart returns false if the settings of the pool suggest a pooler.
func (p pgxPool) readsApart() bool {
	cfg := p.pool.Config().ConnConfig
	return cfg.DefaultQueryExecMode == pgx.QueryExecModeCacheStatement && cfg.StatementCacheCapacity > 0
}

func (p pgxPool) ReaderConn(ctx context.Context) (Querier, func(), error) {
	if !p.readsApart() {
		return p, nil, nil
	}
	cfg := p.pool.Config()
	cfg.MaxConns, cfg.MinConns, cfg.MinIdleConns = 1, 0, 0
	connected, pooled := cfg.AfterConnect, false
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if connected != nil {
			if err := connected(ctx, conn); err != nil {
				return err
			}
		}
		var pid uint32
		if err := conn.QueryRow(ctx, "select pg_backend_pid()", pgx.QueryExecModeExec).Scan(&pid); err != nil {
			return err
		}
		if pooled = pid != conn.PgConn().PID(); pooled {
			return nil
		}
		_, err := conn.Exec(ctx, indexesOnly)
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, nil, err
	}
	if pooled {
		pool.Close()
		return p, nil, nil
	}
	return pgxPool{pool: pool, whose: new(atomic.Int32)}, pool.Close, nil
}
