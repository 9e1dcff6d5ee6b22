package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// errDSN leaves out the driver's error, which quotes the string.
var errDSN = errors.New("the connection string cannot be parsed: " +
	"use postgres://user:password@host:5432/database?sslmode=require, with " +
	"special characters of the password as %XX, or host=... user=... dbname=...; certificates that " +
	"it names must be readable")

// tables returns the names of the tables.
func (a *app) tables() (t outbox.Tables, err error) {
	fields := map[string]*string{
		"schema": &t.Schema, "outbox": &t.Outbox, "lanes": &t.Lanes, "forwarders": &t.Forwarders,
		"migrations": &t.Migrations, "inbox": &t.Inbox, "queue": &t.Queue, "audit": &t.Audit,
		"idempotency": &t.Idempotency,
	}
	for name, value := range a.global.tables {
		field := fields[name]
		if field == nil {
			return t, usagef("--tables names %q: use schema, outbox, lanes, forwarders, migrations, inbox, "+
				"queue, audit or idempotency", name)
		}
		*field = value
	}
	if err := sqltext.Tables(t).Validate(); err != nil {
		return t, usagef("--tables: %w", err)
	}
	return t, nil
}

// connect opens the database.
func (a *app) connect(ctx context.Context, connections int32) (*outbox.DB, func(), error) {
	tables, err := a.tables()
	if err != nil {
		return nil, nil, err
	}
	dsn := a.global.dsn
	if dsn == "" {
		dsn = a.getenv("OUTBOX_DSN")
	}
	named := func(name string) bool { return os.Getenv(name) != "" }
	if dsn == "" && !slices.ContainsFunc([]string{"PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE"},
		named) {
		return nil, nil, usagef("no database given: set OUTBOX_DSN, --dsn, or PGHOST and the like")
	}
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, nil, &usageError{errDSN}
	}
	a.redactor.addSecret(cfg.ConnConfig.Password)
	cfg.MaxConns, cfg.MinConns, cfg.MinIdleConns = connections, 0, 0
	if a.global.timeout > 0 {
		cfg.ConnConfig.ConnectTimeout = min(a.global.timeout, cmp.Or(cfg.ConnConfig.ConnectTimeout, a.global.timeout))
	}
	if cfg.ConnConfig.RuntimeParams["application_name"] == "" {
		cfg.ConnConfig.RuntimeParams["application_name"] = "outboxctl"
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, nil, err
	}
	db, err := outbox.FromPgx(pool, outbox.DBConfig{Tables: tables}, nil)
	if err == nil {
		err = a.ping(ctx, pool)
	}
	if err != nil {
		go pool.Close() // which waits 15 s for a server that does not respond
		return nil, nil, err
	}
	return db, pool.Close, nil
}

// ping waits for the database behind a pooler, too: PgBouncer accepts connections while its database is down. The limit
// begins when a connection is open, because each of several hosts has its own.
func (a *app) ping(ctx context.Context, pool *pgxpool.Pool) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	if a.global.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, a.global.timeout)
		defer cancel()
	}
	if err := conn.Ping(ctx); err != nil {
		return fmt.Errorf("connected, but no reply to the first statement: %w", err)
	}
	return nil
}

// with runs a function on the database, with an Admin that acts in the name of actor.
func (a *app) with(ctx context.Context, actor string, do func(*admin.Admin) error) error {
	return a.withDB(ctx, func(db *outbox.DB) error {
		ad, err := admin.New(db, a.adminConfig(actor), nil)
		if err != nil {
			return &usageError{err}
		}
		return do(ad)
	})
}

func (a *app) adminConfig(actor string) admin.Config {
	return admin.Config{Actor: actor, QueryTimeout: cmp.Or(a.global.timeout, -1)}
}

func (a *app) withDB(ctx context.Context, do func(*outbox.DB) error) error {
	db, end, err := a.connect(ctx, 4)
	if err != nil {
		return err
	}
	defer end()
	return hint(do(db))
}

// hint adds the cure to an error of the database.
func hint(err error) error {
	if e := new(pgconn.PgError); errors.As(err, &e) && e.Code == "42P01" {
		return errors.Join(err, errors.New("table not found: check --tables, or create the tables: outboxctl migrate up"))
	}
	return err
}
