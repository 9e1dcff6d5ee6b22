package drive

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

type pgxPool struct {
	pool  *pgxpool.Pool
	mode  []any         // how statements outside transactions are sent
	whose *atomic.Int32 // whether connections lead to the server directly or to a pooler
}

// planEachTime makes Postgres plan a statement each time it runs. A plan kept from a time when the outbox was empty
// scans the whole table, and only the next autovacuum would replace it.
var planEachTime = []any{pgx.QueryExecModeCacheDescribe}

// NewPgx returns a Pool for a pgx pool.
func NewPgx(pool *pgxpool.Pool) Pool { return newPgxPool(pool) }

func newPgxPool(pool *pgxpool.Pool) pgxPool {
	p := pgxPool{pool: pool, whose: new(atomic.Int32)}
	cfg := pool.Config().ConnConfig
	switch {
	case cfg.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement:
		// The other modes already do so, and were chosen for a reason.
	case cfg.DescriptionCacheCapacity > 0:
		p.mode = planEachTime
	default: // without that cache pgx refuses the other mode
		p.mode = []any{pgx.QueryExecModeExec}
	}
	return p
}

func (p pgxPool) Name() string { return p.pool.Config().ConnConfig.Database }

func (p pgxPool) ID() any { return p.pool }

func (p pgxPool) Conns() Conns {
	c := Conns{Max: int(p.pool.Stat().MaxConns()), Needs: 3, Beside: 3}
	if !p.readsApart() {
		c.Needs, c.Beside = c.Needs+1, c.Beside-1
	}
	return c
}

func (p pgxPool) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	tag, err := p.pool.Exec(ctx, query, slices.Concat(p.mode, args)...)
	p.notice(err)
	return tag.RowsAffected(), p.explain(err)
}

func (p pgxPool) Query(ctx context.Context, query string, args ...any) (Rows, error) {
	rows, err := p.pool.Query(ctx, query, slices.Concat(p.mode, args)...)
	if err != nil {
		return nil, p.explain(err)
	}
	return poolRows{pgxRows{rows}, p}, nil
}

// poolRows are rows of a statement whose error may show that the connection leads to a standby.
type poolRows struct {
	pgxRows
	pool pgxPool
}

func (r poolRows) Close() error {
	err := r.pgxRows.Close()
	r.pool.notice(err)
	return err
}

// notice resets the pool if a connection leads to a read-only server.
func (p pgxPool) notice(err error) {
	if text.SQLState(err) == ReadOnlyServer {
		p.Reset()
	}
}

func (p pgxPool) explain(err error) error {
	if err == nil {
		return nil
	}
	stat := p.pool.Stat()
	return explainPool(err, int(stat.AcquiredConns()), int(stat.MaxConns()))
}

func (p pgxPool) Begin(ctx context.Context, opts TxOptions) (OwnTx, error) {
	begin, err := beginSQL(opts)
	if err != nil {
		return nil, err
	}
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return nil, p.explain(err)
	}
	overdue := closeOverdue(ctx, conn.Conn().PgConn().Conn())
	return &pgxTx{conn: conn, beginSQL: begin, mode: p.mode, overdue: overdue}, nil
}

func (p pgxPool) Dedicated(ctx context.Context) (Querier, func(), error) {
	pool, err := p.single(ctx)
	if err != nil {
		return nil, nil, err
	}
	return newPgxPool(pool), pool.Close, nil
}

// single returns a pool of one connection with the user's settings and hooks.
func (p pgxPool) single(ctx context.Context) (*pgxpool.Pool, error) {
	cfg := p.pool.Config()
	cfg.MaxConns, cfg.MinConns, cfg.MinIdleConns = 1, 0, 0
	return pgxpool.NewWithConfig(ctx, cfg)
}

func (p pgxPool) Reset() { p.pool.Reset() }

// keepIdle keeps the server from ending our session, which only listens. The setting exists since PostgreSQL 14.
const keepIdle = `select set_config('idle_session_timeout', '0', false) ` +
	`where current_setting('idle_session_timeout', true) <> '0'`

func (p pgxPool) Listen(ctx context.Context, channel string, fn func(payload string)) error {
	pool, err := p.single(ctx)
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
	if _, err := conn.Exec(ctx, keepIdle); err != nil {
		return err
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
