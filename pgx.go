package outbox

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/watermill-outbox/schema"
)

type pgxBackend struct {
	pool *pgxpool.Pool
	mode []any // how statements outside transactions are sent
}

// planEachTime makes Postgres plan a statement whenever it runs. A plan that was kept from a time when the
// outbox was empty scans all of it, and nothing but the next autovacuum would replace that plan.
var planEachTime = []any{pgx.QueryExecModeCacheDescribe}

func newPgxBackend(pool *pgxpool.Pool) pgxBackend {
	b := pgxBackend{pool: pool}
	cfg := pool.Config().ConnConfig
	switch {
	case cfg.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement:
		// The other modes do that already, and were chosen for a reason.
	case cfg.DescriptionCacheCapacity > 0:
		b.mode = planEachTime
	default: // pgx refuses the other one without that cache
		b.mode = []any{pgx.QueryExecModeExec}
	}
	return b
}

func (b pgxBackend) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := b.pool.Exec(ctx, query, slices.Concat(b.mode, args)...)
	if schema.SQLState(err) == readOnlyServer {
		b.reset()
	}
	return tag.RowsAffected(), b.explain(err)
}

func (b pgxBackend) Query(ctx context.Context, query string, args ...any) (schema.Rows, error) {
	rows, err := b.pool.Query(ctx, query, slices.Concat(b.mode, args)...)
	if err != nil {
		return nil, b.explain(err)
	}
	return pgxRows{rows}, nil
}

func (b pgxBackend) explain(err error) error {
	if err == nil {
		return nil
	}
	stat := b.pool.Stat()
	return explainPool(err, int(stat.AcquiredConns()), int(stat.MaxConns()))
}

func (b pgxBackend) begin(ctx context.Context, opts TxOptions) (nativeTx, error) {
	begin, err := beginSQL(opts)
	if err != nil {
		return nil, err
	}
	conn, err := b.pool.Acquire(ctx)
	if err != nil {
		return nil, b.explain(err)
	}
	return &pgxTx{conn: conn, beginSQL: begin}, nil
}

func (b pgxBackend) dedicated(ctx context.Context) (schema.Querier, func(), error) {
	pool, err := b.single(ctx)
	if err != nil {
		return nil, nil, err
	}
	return newPgxBackend(pool), pool.Close, nil
}

// single makes a pool of one connection with the settings and hooks of the user's.
func (b pgxBackend) single(ctx context.Context) (*pgxpool.Pool, error) {
	cfg := b.pool.Config()
	cfg.MaxConns, cfg.MinConns, cfg.MinIdleConns = 1, 0, 0
	return pgxpool.NewWithConfig(ctx, cfg)
}

func (b pgxBackend) reset() { b.pool.Reset() }

func (b pgxBackend) listen(ctx context.Context, channel string, fn func(payload string)) error {
	pool, err := b.single(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var pid uint32
	if err := conn.QueryRow(ctx, "select pg_backend_pid()").Scan(&pid); err != nil {
		return err
	}
	if pid != conn.Conn().PgConn().PID() {
		return fmt.Errorf("%w: there is a pooler in between", ErrNoListen)
	}
	if _, err := conn.Exec(ctx, "listen "+pgx.Identifier{channel}.Sanitize()); err != nil {
		return err
	}
	for fn(""); ; {
		n, err := conn.Conn().WaitForNotification(ctx)
		if err != nil {
			return err
		}
		fn(n.Payload)
	}
}
