package services

import (
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestPostgres(t *testing.T) {
	t.Parallel()
	ctx := within(t, 5*time.Minute)
	p, err := StartPostgres(ctx, Options{Log: io.Discard, PostgresSettings: []string{"max_prepared_transactions=7"}})
	must(t, err)
	address := p.URL()

	one, err := p.NewDatabase(ctx)
	must(t, err)
	other, err := p.NewDatabase(ctx)
	must(t, err)
	conn, err := pgx.Connect(ctx, one)
	must(t, err)
	defer closeConn(conn)
	_, err = conn.Exec(ctx, "create table kept as select 1 as n")
	must(t, err)
	var found bool
	must(t, queryRow(ctx, other, "select to_regclass('kept') is not null", &found))
	if found {
		t.Error("two databases share a table")
	}
	for setting, want := range map[string]string{
		"fsync": "on", "synchronous_commit": "on", "max_connections": "200", "max_prepared_transactions": "7",
	} {
		var got string
		must(t, queryRow(ctx, one, "show "+setting, &got))
		if got != want {
			t.Errorf("%s is %s, want %s", setting, got, want)
		}
	}

	closeConn(conn)
	copied, err := p.CopyDatabase(ctx, one)
	must(t, err)
	must(t, queryRow(ctx, copied, "select n from kept", new(int)))
	conn, err = pgx.Connect(ctx, one)
	must(t, err)
	defer closeConn(conn)

	wantKept := func() {
		t.Helper()
		if p.URL() != address {
			t.Errorf("URL changed to %s", p.URL())
		}
		var n int
		must(t, queryRow(ctx, one, "select n from kept", &n))
	}
	must(t, p.Stop())
	if err := conn.Ping(ctx); err == nil {
		t.Error("connection survived Stop")
	}
	if err := queryRow(ctx, one, "select 1", new(int)); err == nil {
		t.Error("stopped server answers")
	}
	must(t, p.Restart(ctx))
	wantKept()

	busy, err := pgx.Connect(ctx, other)
	must(t, err)
	defer closeConn(busy)
	ended := make(chan error, 1)
	go func() {
		// Unlike a sleep, a loop does not notice that the parent is gone.
		_, err := busy.Exec(ctx, "do 'begin while clock_timestamp() < now() + interval ''5 min'' loop end loop; end'")
		ended <- err
	}()
	eventually(t, "a backend is busy", func() bool {
		var n int
		must(t, queryRow(ctx, one, "select count(*) from pg_stat_activity where query like 'do %' and state = 'active'", &n))
		return n > 0
	})
	must(t, p.Kill())
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a backend survived Kill")
		}
	case <-time.After(time.Minute):
		t.Error("a backend is still alive after Kill")
	}
	must(t, p.Restart(ctx))
	wantKept()

	must(t, p.DropDatabase(ctx, other))
	if err := queryRow(ctx, other, "select 1", new(int)); err == nil {
		t.Error("dropped database answers")
	}
	if err := p.DropDatabase(ctx, p.URL()); err == nil {
		t.Error("dropped a database that NewDatabase had not made")
	}

	must(t, p.Close())
	must(t, p.Close())
	wantGone(t, p.daemon)
	if err := p.Restart(ctx); err == nil {
		t.Error("Restart after Close did not fail")
	}
}

// TestReplica: committed rows are on the replica, and still there after it is promoted.
func TestReplica(t *testing.T) {
	ctx := within(t, 5*time.Minute)
	primary, err := StartPostgres(ctx, Options{})
	must(t, err)
	defer func() { must(t, primary.Close()) }()
	replica, err := primary.StartReplica(ctx, Options{PostgresSettings: []string{"wal_retrieve_retry_interval=100ms"}})
	if errors.Is(err, ErrNotInstalled) {
		t.Skip("no pg_basebackup in this Postgres: this test did not run")
	}
	must(t, err)
	defer func() { must(t, replica.Close()) }()
	must(t, primary.exec(ctx, "create table kept as select 1 as n"))
	eventually(t, "the table is on the replica", func() bool {
		var there bool
		return queryRow(ctx, replica.URL(), "select to_regclass('kept') is not null", &there) == nil && there
	})
	if err := replica.exec(ctx, "insert into kept values (2)"); err == nil {
		t.Error("a replica accepts writes")
	}
	must(t, primary.Kill())
	must(t, replica.Promote(ctx))
	must(t, replica.exec(ctx, "insert into kept values (2)"))
}

func TestPostgresCloseAfterKill(t *testing.T) {
	t.Parallel()
	ctx := within(t, 5*time.Minute)
	p, err := StartPostgres(ctx, Options{Log: io.Discard})
	must(t, err)
	must(t, p.Kill())
	killed := p.process
	must(t, p.Close())
	wantGone(t, p.daemon)
	if p.process == killed {
		t.Error("the killed server did not run once more, so its shared memory stays")
	}
}

func TestPgBouncer(t *testing.T) {
	t.Parallel()
	ctx := within(t, 5*time.Minute)
	p, err := StartPostgres(ctx, Options{Log: io.Discard})
	must(t, err)
	defer p.Close()
	database, err := p.NewDatabase(ctx)
	must(t, err)
	b, err := StartPgBouncer(ctx, database, Options{Log: io.Discard})
	if errors.Is(err, ErrNotInstalled) && !InCI() {
		t.Skip(err)
	}
	must(t, err)

	// Only in transaction mode do clients that are connected concurrently and take turns share a server connection.
	var pids [5]int
	for i := range pids {
		conn, err := pgx.Connect(ctx, b.URL()+"&default_query_exec_mode=exec")
		must(t, err)
		defer closeConn(conn)
		must(t, conn.QueryRow(ctx, "select pg_backend_pid()").Scan(&pids[i]))
		if pids[i] != pids[0] {
			t.Errorf("client %d has server connection %d, want %d", i, pids[i], pids[0])
		}
	}
	var name string
	must(t, queryRow(ctx, b.URL()+"&default_query_exec_mode=exec", "select current_database()", &name))
	if u, _ := p.inDatabase(name); u != database {
		t.Errorf("database is %s, want that of %s", name, database)
	}

	must(t, b.Kill())
	must(t, b.Restart(ctx))
	must(t, b.process.end(os.Kill, stopPatience)) // a crash
	if b.Crashed() == nil {
		t.Error("the crash is not reported")
	}
	must(t, b.Restart(ctx))
	must(t, b.Crashed())
	must(t, b.process.end(os.Kill, stopPatience))
	if err := b.Close(); err == nil || !strings.HasPrefix(err.Error(), "PgBouncer ended: ") {
		t.Errorf("Close after a crash returns %v", err)
	}
	must(t, b.Close())
	wantGone(t, b.daemon)
}

func TestPgBouncerNotInstalled(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	defer func(was string) { packagedPgBouncer = was }(packagedPgBouncer)
	packagedPgBouncer = "/nowhere/pgbouncer"
	_, err := StartPgBouncer(within(t, 5*time.Minute), "postgres://127.0.0.1/x", Options{Log: io.Discard})
	if !errors.Is(err, ErrNotInstalled) {
		t.Errorf("got %v", err)
	}
}
