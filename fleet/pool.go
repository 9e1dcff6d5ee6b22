package fleet

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
)

const (
	idleTime       = 30 * time.Second
	connectTimeout = 10 * time.Second // where the DSN has none
)

// pool is the connections of one DSN.
type pool struct {
	pgx   *pgxpool.Pool
	users int // number of handles; guarded by Fleet.mu
}

// errBadDSN has no details, because they would quote parts of the DSN.
// Cause: the DSN of a database is invalid.
// Cure: write special characters of a password in a URL as %XX.
var errBadDSN = errors.New(
	"DSN cannot be parsed: it is not shown, as it may contain a password: pgxpool.ParseConfig documents its two " +
		"forms; write special characters in the password of a URL as %xx")

// openDSN makes a handle on the pool of a DSN. It connects on first use.
func (f *Fleet) openDSN(t Target) (*outbox.DB, func(), error) {
	if t.DSN == "" {
		return nil, nil, errors.New("DSN is empty")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pools[t.DSN]
	if p == nil {
		cfg, err := f.poolConfig(t)
		if err != nil {
			return nil, nil, err
		}
		p = &pool{}
		if p.pgx, err = pgxpool.NewWithConfig(context.Background(), cfg); err != nil {
			return nil, nil, err
		}
		f.pools[t.DSN] = p
	}
	p.users++
	db, err := outbox.FromPgx(p.pgx, outbox.DBConfig{Name: t.Key, Tables: t.Tables, Observers: f.cfg.Observers}, f.given)
	if err != nil {
		go f.leave(t.DSN, p)
		return nil, nil, err
	}
	return db, func() { f.leave(t.DSN, p) }, nil
}

// leave closes a pool after its last handle has left. It waits for connections in use.
func (f *Fleet) leave(dsn string, p *pool) {
	f.mu.Lock()
	p.users--
	last := p.users == 0
	if last {
		delete(f.pools, dsn)
	}
	f.mu.Unlock()
	if last {
		p.pgx.Close()
	}
}

func (f *Fleet) poolConfig(t Target) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(t.DSN)
	if err != nil {
		return nil, errBadDSN
	}
	if f.cfg.MaxConnsPerDSN > 0 {
		cfg.MaxConns = int32(f.cfg.MaxConnsPerDSN)
	}
	cfg.MinConns, cfg.MinIdleConns = 0, 0
	cfg.MaxConnIdleTime = min(cfg.MaxConnIdleTime, idleTime)
	cfg.HealthCheckPeriod = min(cfg.HealthCheckPeriod, idleTime)
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = connectTimeout
	}
	if f.budget == nil {
		return cfg, nil
	}
	source := &source{name: t.Key}
	cfg.BeforeConnect = func(_ context.Context, cc *pgx.ConnConfig) error {
		s := &connSlot{budget: f.budget, source: source, patience: cc.ConnectTimeout / 2}
		cc.DialFunc = s.dialer(cc.DialFunc)
		cc.AfterConnect = func(_ context.Context, conn *pgconn.PgConn) error {
			s.connected(conn)
			return nil
		}
		return nil
	}
	cfg.BeforeClose = f.budget.forget
	cfg.ConnConfig.Tracer = tracer{f.budget, source}
	return cfg, nil
}

// tracer reports to the budget which connections are idle and which databases refuse connections.
type tracer struct {
	budget *budget
	source *source
}

func (tracer) TraceConnectStart(ctx context.Context, _ pgx.TraceConnectStartData) context.Context {
	return ctx
}

func (t tracer) TraceConnectEnd(_ context.Context, data pgx.TraceConnectEndData) {
	if errors.Is(data.Err, errNoSlot) {
		return // no attempt was made
	}
	t.budget.mu.Lock()
	defer t.budget.mu.Unlock()
	t.source.failing = data.Err != nil
}

func (tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
func (tracer) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	return ctx
}

func (t tracer) TraceAcquireEnd(_ context.Context, _ *pgxpool.Pool, data pgxpool.TraceAcquireEndData) {
	if data.Conn != nil {
		t.budget.forget(data.Conn)
	}
}

func (t tracer) TraceRelease(p *pgxpool.Pool, data pgxpool.TraceReleaseData) {
	t.budget.released(p, data.Conn)
}
