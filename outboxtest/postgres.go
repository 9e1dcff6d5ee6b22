package outboxtest

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/schema"
)

// postgresTimeout limits each of the steps of NewPostgres, and those after the test.
const postgresTimeout = time.Minute

// NewPostgres returns a handle on a database, with all tables in their own schema, so that parallel tests do not see
// each other. The pool's connections have the schema first in their search_path: create your own tables with it,
// without a schema name. When the test ends, the pool is closed and the schema dropped. The role needs CREATE on the
// database. An error ends the test and never contains the password of the dsn.
//
// For database/sql use stdlib.OpenDBFromPool on the pool, and outbox.FromSQL.
func NewPostgres(t testing.TB, dsn string) (*outbox.DB, *pgxpool.Pool) {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal("outboxtest.NewPostgres: the dsn cannot be parsed: use postgres://user:password@host:5432/database")
	}
	name := "outboxtest_" + strings.ToLower(rand.Text())
	cfg.ConnConfig.RuntimeParams["search_path"] = name + ",public"
	ctx, cancel := context.WithTimeout(t.Context(), postgresTimeout)
	defer cancel()
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		t.Fatalf("outboxtest.NewPostgres: %v", err)
	}
	t.Cleanup(func() { dropSchema(t, cfg.ConnConfig, pool, name) })
	db, err := outbox.FromPgx(pool, outbox.DBConfig{Tables: outbox.Tables{Schema: name}}, nil)
	if err == nil {
		_, err = schema.Migrate(ctx, db, schema.MigrateConfig{})
	}
	if err != nil {
		t.Fatalf("outboxtest.NewPostgres: %v", err)
	}
	return db, pool
}

// dropSchema removes the schema of a test, even if the test still uses it.
func dropSchema(t testing.TB, cfg *pgx.ConnConfig, pool *pgxpool.Pool, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), postgresTimeout)
	defer cancel()
	closed := make(chan struct{})
	go func() { pool.Close(); close(closed) }()
	select {
	case <-closed:
	case <-ctx.Done():
		t.Error("outboxtest.NewPostgres: a connection of the pool was never released: stop the code that uses it " +
			"before the test ends")
		return
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err == nil {
		_, err = conn.Exec(ctx, `DROP SCHEMA IF EXISTS `+pgx.Identifier{name}.Sanitize()+` CASCADE`)
		_ = conn.Close(ctx)
	}
	if err != nil {
		t.Errorf("outboxtest.NewPostgres: drop schema %s: %v", name, err)
	}
}
