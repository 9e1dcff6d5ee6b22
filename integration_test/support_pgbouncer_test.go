package integration_test

import (
	"context"
	"errors"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/services"
)

var startPgBouncer = shared(func(ctx context.Context) (*services.PgBouncer, error) {
	server, err := startPostgres()
	if err != nil {
		return nil, err
	}
	return services.StartPgBouncer(ctx, server.URL(), services.Options{})
})

// throughPgBouncer returns the URL by which a database of the shared server is reached through PgBouncer
// in transaction mode. Where the machine has no PgBouncer it skips the test, except in CI.
func throughPgBouncer(t testing.TB, database string) string {
	t.Helper()
	bouncer, err := startPgBouncer()
	if errors.Is(err, services.ErrNotInstalled) && !services.InCI() {
		t.Skip("no pgbouncer on this machine: this test did not run")
	}
	require.NoError(t, err)
	direct, err := url.Parse(database)
	require.NoError(t, err)
	u, err := url.Parse(bouncer.URL())
	require.NoError(t, err)
	u.Path = direct.Path
	return u.String()
}

// newPgBouncerHandle opens a handle of a pgx pool through PgBouncer, set up as pgx asks for there.
func newPgBouncerHandle(t testing.TB, database string) handle {
	t.Helper()
	return pgxHandle(t, "pgbouncer", throughPgBouncer(t, database), func(cfg *pgxpool.Config) {
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	})
}

// pgbouncerHandles opens the ways to reach one migrated database through PgBouncer in transaction mode. Each
// driver is told not to rely on prepared statements, as its documentation asks for.
func pgbouncerHandles(t testing.TB) []handle {
	t.Helper()
	database := newMigratedDatabase(t)
	u := throughPgBouncer(t, database)
	exec := newSQLHandle(t, "pgx", u+"&default_query_exec_mode=exec")
	exec.name = "pgbouncer-sql-pgx"
	pq := newSQLHandle(t, "postgres", u+"&binary_parameters=yes")
	pq.name = "pgbouncer-sql-pq"
	return []handle{
		newPgBouncerHandle(t, database),
		pgxHandle(t, "pgbouncer-pgx-simple", u, func(cfg *pgxpool.Config) {
			cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
		}),
		exec, pq,
	}
}

// forEachPgBouncerHandle runs a test over each of pgbouncerHandles. They share a database, so that
// sessions of one meet what another left on a server connection.
func forEachPgBouncerHandle(t *testing.T, test func(t *testing.T, h handle)) {
	t.Helper()
	for _, h := range pgbouncerHandles(t) {
		t.Run(h.name, func(t *testing.T) { test(t, h) })
	}
}
