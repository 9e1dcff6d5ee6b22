package integration_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "github.com/lib/pq"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/schema"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "6") // unless set on the command line: tests spend most of their time waiting
	stop := services.StopOnSignal()
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "stop services:", err)
		code = 1
	}
	http.DefaultClient.CloseIdleConnections() // the first run may have downloaded a server
	// golang-migrate leaks files that it had begun to read when a migration failed.
	unread := goleak.IgnoreAnyFunction("github.com/golang-migrate/migrate/v4.(*Migration).Buffer")
	// sarama's breaker sleeps for ten seconds after an outage, whether or not its client is closed.
	asleep := goleak.IgnoreAnyFunction("github.com/eapache/go-resiliency/breaker.(*Breaker).timer")
	if err := goleak.Find(unread, asleep); err != nil { // report it also next to a failed test
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// patience is how long tests wait for something that must happen: long enough for a busy machine, because a passing
// test never waits for all of it.
const patience = 50 * time.Second // shorter than the minute of a lease or poll that tests must not wait for

// shared starts a server when a test first needs it, independent of that test; see noLeaks.
func shared[S any](start func(context.Context) (S, error)) func() (S, error) {
	return sync.OnceValues(func() (server S, err error) {
		started := make(chan struct{})
		go func() {
			defer close(started)
			pprof.SetGoroutineLabels(context.Background())
			server, err = start(context.Background())
		}()
		<-started
		return server, err
	})
}

var startPostgres = shared(func(ctx context.Context) (*services.Postgres, error) {
	// in memory if the tests write little
	return services.StartPostgres(ctx, services.Options{InMemory: testing.Short(), PostgresSettings: []string{
		"max_prepared_transactions=50", "wal_level=logical", "max_connections=600",
		"fsync=off", "full_page_writes=off", // otherwise creating and dropping hundreds of databases would take minutes
	}})
})

// makeTemplate creates the database that newMigratedDatabase copies.
var makeTemplate = shared(func(ctx context.Context) (url string, err error) {
	server, err := startPostgres()
	if err != nil {
		return "", err
	}
	if url, err = server.NewDatabase(ctx); err != nil {
		return "", err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return "", err
	}
	defer pool.Close()
	db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
	if err != nil {
		return "", err
	}
	// Handlers write into effects, and tests of transactions alone into notes.
	_, err = pool.Exec(ctx, createEffects+`; create table notes (n int unique deferrable initially deferred)`)
	return url, errors.Join(err, makeTables(ctx, db))
})

// postgresServer returns the server that all tests of the run share. Do not stop it; tests that stop a server start
// their own.
func postgresServer(t testing.TB) *services.Postgres {
	t.Helper()
	server, err := startPostgres()
	require.NoError(t, err)
	return server
}

// ownServer starts a server that the test may stop and kill.
func ownServer(t testing.TB, settings ...string) *services.Postgres {
	t.Helper()
	server, err := services.StartPostgres(t.Context(),
		services.Options{InMemory: testing.Short(), PostgresSettings: settings})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return server
}

// ownMigratedServer is ownServer with the tables in its first database.
func ownMigratedServer(t testing.TB, settings ...string) (*services.Postgres, handle) {
	t.Helper()
	server := ownServer(t, settings...)
	h := newPgxHandle(t, server.URL())
	require.NoError(t, makeTables(t.Context(), h.db))
	return server, h
}

// newDatabase creates an empty database, dropped after the test.
func newDatabase(t testing.TB) (url string) {
	t.Helper()
	return newDatabaseOf(t, postgresServer(t))
}

func newDatabaseOf(t testing.TB, server *services.Postgres) (url string) {
	t.Helper()
	url, err := server.NewDatabase(t.Context())
	require.NoError(t, err)
	dropAfterwards(t, server, url)
	return url
}

// newMigratedDatabase is newDatabase with the tables, under their default names.
func newMigratedDatabase(t testing.TB) (url string) {
	t.Helper()
	template, err := makeTemplate()
	require.NoError(t, err)
	server := postgresServer(t)
	url, err = server.CopyDatabase(t.Context(), template)
	require.NoError(t, err)
	dropAfterwards(t, server, url)
	return url
}

func dropAfterwards(t testing.TB, server *services.Postgres, url string) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := server.DropDatabase(ctx, url); err != nil {
			t.Errorf("drop database: %v", err)
		}
	})
}

// handle is one way to connect to a database.
type handle struct {
	name   string
	url    string
	server string // url of the server itself, if url is that of PgBouncer
	db     *outbox.DB
	pool   *pgxpool.Pool // nil unless the handle is based on one
	sql    *sql.DB       // nil unless the handle is based on one
}

// with returns another handle on the same pool, for tables with other names.
func (h handle) with(t testing.TB, tables sqltext.Tables) handle {
	t.Helper()
	return h.configured(t, outbox.DBConfig{Tables: outbox.Tables(tables)})
}

// seenBy returns another handle on the same pool, with observers.
func (h handle) seenBy(t testing.TB, observers ...observe.Observer) handle {
	t.Helper()
	return h.configured(t, outbox.DBConfig{Observers: observers})
}

// configured returns another handle on the same pool.
func (h handle) configured(t testing.TB, cfg outbox.DBConfig) handle {
	t.Helper()
	return h.logging(t, cfg, nil)
}

// logging is configured with a logger.
func (h handle) logging(t testing.TB, cfg outbox.DBConfig, logger watermill.LoggerAdapter) handle {
	t.Helper()
	cfg.Name = h.name
	var err error
	if h.sql != nil {
		h.db, err = outbox.FromSQL(h.sql, cfg, logger)
	} else {
		h.db, err = outbox.FromPgx(h.pool, cfg, logger)
	}
	require.NoError(t, err)
	return h
}

// dropTables drops the tables of the default names.
const dropTables = `drop table outbox, outbox_lanes, outbox_forwarders, outbox_life, outbox_topics, ` +
	`outbox_migrations, outbox_audit, outbox_idempotency, inbox, inbox_queue`

// partitioned reports whether the tests' outbox is in partitions.
var partitioned = os.Getenv("OUTBOX_PARTITIONED") == "1"

// needsPlainOutbox is called by tests that do not apply to a partitioned outbox, and by those that partition one.
func needsPlainOutbox(t testing.TB) {
	t.Helper()
	if partitioned {
		t.Skip("this test needs an unpartitioned outbox")
	}
}

// makeTables creates the tables of a handle. With OUTBOX_PARTITIONED=1 in the environment the outbox is in partitions,
// the first so small that a few messages fill them.
func makeTables(ctx context.Context, db *outbox.DB) error {
	if !partitioned {
		_, err := schema.Migrate(ctx, db, schema.MigrateConfig{})
		return err
	}
	if _, err := schema.Migrate(ctx, db, schema.MigrateConfig{PartitionSize: 20}); err != nil {
		return err
	}
	from, names := 180, (*core.DB)(db).Tables().WithDefaults()
	for i, to := range []int{500, 5000, 20_000, 100_000, 1e9, 1e9 + 1000} {
		name := sqltext.Tables{Schema: names.Schema, Outbox: fmt.Sprint(names.Outbox, "_p", 9+i)}.OutboxName()
		if _, err := (*core.DB)(db).Exec(ctx, fmt.Sprintf(`CREATE TABLE IF NOT EXISTS %s PARTITION OF %s
			FOR VALUES FROM (%d) TO (%d) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000)`,
			name, names.OutboxName(), from, to)); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// exec runs a statement outside any transaction.
func (h handle) exec(t testing.TB, query string, args ...any) int64 {
	t.Helper()
	n, err := (*core.DB)(h.db).Exec(t.Context(), query, args...)
	require.NoError(t, err, query)
	return n
}

// execTx runs a statement in the transaction of ctx, as a handler does.
func (h handle) execTx(ctx context.Context, query string, args ...any) error {
	if h.sql != nil {
		tx, err := outbox.SQLTx(ctx)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, query, args...)
		return err
	}
	tx, err := outbox.PgxTx(ctx)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, query, args...)
	return err
}

// execFirst runs one of our statements in the transaction of ctx. With pgx, BEGIN is sent with it if it is the first.
func (h handle) execFirst(ctx context.Context, query string, args ...any) error {
	q, err := (*core.DB)(h.db).Tx(ctx)
	if err != nil {
		return err
	}
	_, err = q.Exec(ctx, query, args...)
	return err
}

// count returns the number returned by a query outside any transaction.
func (h handle) count(t testing.TB, query string, args ...any) int {
	t.Helper()
	return value[int](t, h, query, args...)
}

// reaches waits until a query outside any transaction returns the number n.
func (h handle) reaches(t testing.TB, n int, what, query string, args ...any) {
	t.Helper()
	got := 0
	if !eventuallyTrue(func() bool { got = h.count(t, query, args...); return got == n }) {
		t.Fatalf("did not happen within %s: %s: %d, not %d: %s", patience, what, got, n, query)
	}
}

// value returns the first column of the only row of a query outside any transaction.
func value[T any](t testing.TB, h handle, query string, args ...any) T {
	t.Helper()
	all := column[T](t, h, query, args...)
	require.Len(t, all, 1, query)
	return all[0]
}

// column returns the first column of a query outside any transaction.
func column[T any](t testing.TB, h handle, query string, args ...any) []T {
	t.Helper()
	var all []T
	err := drive.Collect(t.Context(), (*core.DB)(h.db), func(rows drive.Rows) error {
		var v T
		err := rows.Scan(&v)
		all = append(all, v)
		return err
	}, query, args...)
	require.NoError(t, err, query)
	return all
}

// newPgxHandle opens a handle of a pgx pool, closed with the test.
func newPgxHandle(t testing.TB, url string) handle {
	t.Helper()
	return pgxHandle(t, "pgx", url, nil)
}

func pgxHandle(t testing.TB, name, url string, configure func(*pgxpool.Config)) handle {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	cfg.MaxConns = 20
	if configure != nil {
		configure(cfg)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return handle{name: name, url: url, pool: pool}.configured(t, outbox.DBConfig{})
}

// newSQLHandle opens a handle of database/sql, closed with the test; driver is "pgx" or "postgres", which is lib/pq.
func newSQLHandle(t testing.TB, driver, url string) handle {
	t.Helper()
	db, err := sql.Open(driver, url)
	require.NoError(t, err)
	db.SetMaxOpenConns(20)
	t.Cleanup(func() { _ = db.Close() })
	name := map[string]string{"pgx": "sql-pgx", "postgres": "sql-pq"}[driver]
	return handle{name: name, url: url, sql: db}.configured(t, outbox.DBConfig{})
}

// openHandles opens each kind of handle on one database.
func openHandles(t testing.TB, url string) []handle {
	t.Helper()
	return []handle{newPgxHandle(t, url), newSQLHandle(t, "pgx", url), newSQLHandle(t, "postgres", url)}
}

// overEach runs a test with each kind of handle on one database, one after another.
func overEach(t *testing.T, url string, test func(t *testing.T, h handle)) {
	t.Helper()
	for _, h := range openHandles(t, url) {
		t.Run(h.name, func(t *testing.T) {
			if h.name != "pgx" {
				extended(t)
			}
			test(t, h)
		})
	}
}

// onPgx runs a test in parallel with others, with a pgx pool on its own migrated database, and checks for goroutine
// leaks.
func onPgx(t *testing.T) handle {
	t.Helper()
	parallel(t)
	return newPgxHandle(t, newMigratedDatabase(t))
}

// parallel runs a test in parallel with others, and checks for goroutine leaks.
func parallel(t *testing.T) {
	t.Parallel()
	noLeaks(t)
}

// forEachHandle runs a test, in parallel with others, with a pgx pool, database/sql with pgx, database/sql with lib/pq,
// and a pgx pool through PgBouncer in transaction mode, each on its own migrated database.
func forEachHandle(t *testing.T, test func(t *testing.T, h handle)) {
	t.Helper()
	t.Parallel()
	for _, open := range []struct {
		name string
		open func(testing.TB, string) handle
	}{
		{"pgx", newPgxHandle},
		{"sql-pgx", func(t testing.TB, url string) handle { return newSQLHandle(t, "pgx", url) }},
		{"sql-pq", func(t testing.TB, url string) handle { return newSQLHandle(t, "postgres", url) }},
		{"pgbouncer", newPgBouncerHandle},
	} {
		t.Run(open.name, func(t *testing.T) {
			if open.name != "pgx" {
				extended(t)
			}
			test(t, open.open(t, newMigratedDatabase(t)))
		})
	}
}

// eventually waits until condition returns true and fails the test if it does not within patience.
func eventually(t testing.TB, condition func() bool, format string, args ...any) {
	t.Helper()
	if !eventuallyTrue(condition) {
		t.Fatalf("did not happen within %s: %s", patience, fmt.Sprintf(format, args...))
	}
}

// eventuallyTrue is for tests that report the failure themselves.
func eventuallyTrue(condition func() bool) bool {
	deadline := time.Now().Add(patience)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		begun := time.Now()
		if condition() {
			return true
		}
		if time.Now().After(deadline) {
			return false
		}
		// Tests run in parallel: frequent checks would take the CPU from those that work.
		time.Sleep(max(wait, min(4*time.Since(begun), time.Second)))
	}
}

// within returns the next value of a channel, or the zero value if it is closed, and fails the test if neither happens
// within patience.
func within[T any](t testing.TB, what string, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatalf("did not happen within %s: %s", patience, what)
	}
	return v
}

// noLeaks fails the test if it leaks goroutines. Call it first, so that it checks after all other clean-ups. It
// recognises the test's goroutines by an inherited label; TestMain checks for all others.
func noLeaks(t testing.TB) {
	t.Helper()
	pprof.SetGoroutineLabels(pprof.WithLabels(context.Background(), pprof.Labels("test", t.Name())))
	t.Cleanup(func() {
		pprof.SetGoroutineLabels(context.Background()) // this goroutine is not one of them
		var left []string
		wait := time.Millisecond
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(wait) {
			if left = goroutinesOf(t); len(left) == 0 {
				return
			}
			wait = min(2*wait, time.Second) // each check reads all goroutines of all tests
		}
		t.Errorf("goroutines that the test leaked:\n%s", strings.Join(left, "\n\n"))
	})
}

// goroutinesOf returns the stacks of the goroutines of a test that called noLeaks, merging equal ones.
func goroutinesOf(t testing.TB) []string {
	t.Helper()
	var all strings.Builder
	if err := pprof.Lookup("goroutine").WriteTo(&all, 1); err != nil {
		t.Fatal(err)
	}
	label := fmt.Sprintf("# labels: {%q:%q}\n", "test", t.Name())
	return slices.DeleteFunc(strings.Split(all.String(), "\n\n"), func(stack string) bool {
		return !strings.Contains(stack, label)
	})
}

func TestNoLeaksSeesGoroutines(t *testing.T) {
	parallel(t)
	end := make(chan struct{})
	go func() { <-end }()
	go func() { go func() { <-end }() }()
	eventually(t, func() bool { return len(goroutinesOf(t)) == 3 }, "its own goroutine and two others: %v",
		goroutinesOf(t))
	close(end)
}

// joinNative returns a context with a transaction that the test began.
func joinNative(ctx context.Context, h handle, native any) (context.Context, error) {
	if tx, ok := native.(*sql.Tx); ok {
		return outbox.WithSQLTx(ctx, h.db, tx)
	}
	tx, _ := native.(pgx.Tx)
	return outbox.WithPgxTx(ctx, h.db, tx)
}
