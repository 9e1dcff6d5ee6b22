package integration_test

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	asked "github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// findings returns Doctor's findings by check, the first one of each.
func findings(t testing.TB, h handle, brokers ...asked.Checker) map[string]admin.Finding {
	t.Helper()
	list, err := newAdmin(t, h).Doctor(t.Context(), brokers...)
	require.NoError(t, err)
	found := map[string]admin.Finding{}
	for _, f := range list {
		require.NotEmpty(t, f.Evidence)
		require.NotEmpty(t, f.Cure)
		if _, ok := found[f.Check]; !ok {
			found[f.Check] = f
		}
	}
	return found
}

// ails waits until Doctor has a finding of a check.
func ails(t testing.TB, h handle, check string) (f admin.Finding) {
	t.Helper()
	var all map[string]admin.Finding
	eventually(t, func() bool {
		var ok bool
		all = findings(t, h)
		f, ok = all[check]
		return ok
	}, "doctor finds %s", check)
	t.Log(f)
	return f
}

// cured waits until Doctor has no finding of a check.
func cured(t testing.TB, h handle, check string) {
	t.Helper()
	eventually(t, func() bool { _, ok := findings(t, h)[check]; return !ok }, "doctor no longer finds %s", check)
}

var statementOf = regexp.MustCompile(`(?s): ((?:SELECT|UPDATE|DELETE|ALTER|GRANT|CREATE|DROP|ROLLBACK|VACUUM) .*)$`)

var commandOf = regexp.MustCompile(`\(outboxctl ([^()]*)\)`)

// order runs a command that a finding prints, with more arguments.
func order(t testing.TB, h handle, f admin.Finding, verb string, args ...string) {
	t.Helper()
	said := 0
	for _, command := range commandOf.FindAllStringSubmatch(f.Cure, -1) {
		if !strings.Contains(command[1], verb) {
			continue
		}
		said++
		r := ctl{t: t, url: h.url}.run(append(words(command[1]), args...)...)
		require.Zero(t, r.code, "%s: %s%s", command[1], r.out, r.err)
		require.NotContains(t, r.out, " 0 messages", "%s: %s", command[1], r.err)
		require.NotContains(t, r.out, "Nothing to do", "%s: %s", command[1], r.err)
	}
	require.True(t, said > 0 || verb == "", "no command to %s in %q", verb, f.Cure)
}

// cure runs the printed statement of a finding, and tries its commands.
func cure(t testing.TB, h handle, f admin.Finding) {
	t.Helper()
	order(t, h, f, "", "--dry-run")
	s := statementOf.FindStringSubmatch(": " + f.Cure)
	require.Len(t, s, 2, "no statement in %q", f.Cure)
	for _, statement := range strings.SplitAfter(s[1], `"; `) { // one at a time: some cannot run in a transaction
		_, err := h.pool.Exec(t.Context(), statement)
		require.NoError(t, err, statement)
	}
}

// begin opens a transaction on its own connection, which ends with the test or earlier.
func begin(t testing.TB, h handle, statements ...string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), h.url+"&application_name=culprit")
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	for _, s := range statements {
		_, err := conn.Exec(t.Context(), s)
		require.NoError(t, err)
	}
	return conn
}

// TestDoctorOfAHealthyOutbox has almost no findings for a working forwarder.
func TestDoctorOfAHealthyOutbox(t *testing.T) {
	needsPlainOutbox(t)
	h := onPgx(t)
	cfg := quickConfig()
	cfg.LeaseTTL, cfg.CloseTimeout, cfg.Classify = 0, 0, classify
	w := startForwarderOn(t, h, cfg, nil)
	w.publish(t, "orders", "K", "1", "2")
	w.arrives(t, "1", "2")
	var found map[string]admin.Finding
	eventually(t, func() bool { // on a busy machine it may be slow for a moment
		found = findings(t, h)
		return len(found) == 0
	}, "nothing is found: %v", found)
}

// TestDoctorSchema: the printed statement cures each finding.
func TestDoctorSchema(t *testing.T) {
	needsPlainOutbox(t)
	h := onPgx(t)
	for _, damage := range []string{
		`drop index outbox_waiting; create index outbox_waiting on outbox (lane, id, due_at) where published_at is null`,
		`alter table outbox set (autovacuum_enabled = off)`,
	} {
		for _, s := range strings.Split(damage, ";") {
			h.exec(t, s)
		}
		f := ails(t, h, "schema")
		cure(t, h, f)
		cured(t, h, "schema")
	}
}

// TestDoctorLetsABuildEnd: an index that is being built must not be dropped, even if the role cannot see its table.
func TestDoctorLetsABuildEnd(t *testing.T) {
	needsPlainOutbox(t)
	t.Parallel()
	h, as := newRoles(t)
	h.exec(t, "DROP INDEX outbox_ready")
	create := statementOf.FindStringSubmatch(": " + ails(t, h, "schema").Cure)
	require.Len(t, create, 2)
	// a build waits for it
	writer := begin(t, h, "BEGIN", "INSERT INTO outbox (uuid, topic, payload) VALUES ('u', 'orders', '')")
	builder, built := begin(t, h), make(chan error, 1)
	go func() { _, err := builder.Exec(t.Context(), create[1]); built <- err }()
	h.reaches(t, 1, "it is begun", "SELECT count(*)::int FROM pg_index WHERE NOT indisvalid")
	for _, who := range []handle{h, as("reader")} {
		f := ails(t, who, "schema")
		assert.Contains(t, f.Evidence, "is being built")
		assert.NotContains(t, f.Cure, "drop")
	}
	_, err := writer.Exec(t.Context(), "COMMIT")
	require.NoError(t, err)
	require.NoError(t, <-built)
	cured(t, h, "schema")
}

// TestDoctorOfAMissingSequence: a recreated sequence begins at 1, where messages exist.
func TestDoctorOfAMissingSequence(t *testing.T) {
	h := onPgx(t)
	h.publish(t, "orders", "", "1", "2", "3")
	h.exec(t, "DROP SEQUENCE outbox_id_seq CASCADE")
	eventually(t, func() bool {
		f, ailing := findings(t, h)["schema"]
		if !ailing {
			return true
		}
		cure(t, h, f)
		if first := regexp.MustCompile(`\((SELECT setval[^:]*)\): `).FindStringSubmatch(f.Cure); first != nil {
			h.exec(t, first[1])
		}
		return false
	}, "the printed statement cures each finding")
	h.publish(t, "orders", "", "4")
	assert.Equal(t, 4, h.count(t, "SELECT max(id)::int FROM outbox"))
}

// TestDoctorRefusesOthers: a server that is not Postgres is reported, and gets no other query.
func TestDoctorRefusesOthers(t *testing.T) {
	t.Parallel()
	url := newMigratedDatabase(t)
	newPgxHandle(t, url).exec(t, "create schema other")
	newPgxHandle(t, url).exec(t, "create function other.version() returns text language sql as $$ "+
		"select 'CockroachDB CCL v25.2.1'::text $$")
	list, err := newAdmin(t, newPgxHandle(t, url+"&search_path=other,pg_catalog,public")).Doctor(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, admin.Critical, list[0].Severity)
	assert.Contains(t, list[0].String(), "(CockroachDB) is not PostgreSQL")
}

// TestDoctorWithLittleRights: a reader's doctor reports what it could not check.
func TestDoctorWithLittleRights(t *testing.T) {
	needsPlainOutbox(t)
	t.Parallel()
	owner, as := newRoles(t)
	reader := as("reader")
	f := ails(t, reader, "privileges")
	assert.Equal(t, admin.Info, f.Severity)
	assert.Len(t, findings(t, reader), 2, "besides the finding that no forwarder is alive")
	cure(t, owner, f)
	cured(t, reader, "privileges")
	owner.exec(t, "REVOKE pg_read_all_stats FROM "+`"`+role(owner)+`login_reader"`)
	_, err := newAdmin(t, reader).Doctor(canceled(t))
	require.ErrorIs(t, err, context.Canceled)
}

// TestDoctorWithoutFigures reports that no forwarder is alive even if waiting messages cannot be counted.
func TestDoctorWithoutFigures(t *testing.T) {
	t.Parallel()
	url := newMigratedDatabase(t)
	newPgxHandle(t, url).exec(t, "create schema other")
	newPgxHandle(t, url).exec(t, "create function other.generate_series(int, int) returns setof int language plpgsql as "+
		"$$ begin raise 'no lanes today'; end $$")
	h := newPgxHandle(t, url+"&search_path=other,pg_catalog,public")
	h.exec(t, "INSERT INTO public.outbox (uuid, topic, payload, created_at) VALUES ('u', 'orders', '', "+
		"now() - interval '2 minutes')")
	found := findings(t, h)
	assert.Contains(t, found["topics"].Evidence, "no lanes today")
	assert.Contains(t, found["forwarders"].Evidence, "no forwarder is running; messages have been "+
		"ready for more than a minute")
}

// TestDoctorOfALargeServer fakes states that take days to develop with views that hide the system's own.
func TestDoctorOfALargeServer(t *testing.T) {
	needsPlainOutbox(t)
	t.Parallel()
	url := newMigratedDatabase(t)
	owner := newPgxHandle(t, url)
	for _, s := range []string{
		"create schema large",
		"create view large.pg_stat_all_tables as select relid, 1000001::bigint as n_dead_tup, last_vacuum, last_autovacuum " +
			"from pg_catalog.pg_stat_all_tables",
		"create view large.pg_stat_database as select datname, null::timestamptz as stats_reset " +
			"from pg_catalog.pg_stat_database",
		"create view large.pg_stat_progress_vacuum as " +
			"select 0 as pid, 'another'::name as datname, oid as relid from pg_class",
		"create function large.pg_postmaster_start_time() returns timestamptz language sql as $$ " +
			"select now() - interval '1 hour' $$",
	} {
		owner.exec(t, s)
	}
	found := findings(t, newPgxHandle(t, url+"&search_path=large,pg_catalog,public"))
	assert.Regexp(t, `table "\w+" has 1000001 dead rows (and has not been vacuumed for 1h00m|that vacuum `+
		`cannot remove because of )`, found["vacuum"].Evidence)
}

// TestDoctorThatCannotSeeForwarders does not report that none is running.
func TestDoctorThatCannotSeeForwarders(t *testing.T) {
	t.Parallel()
	owner, as := newRoles(t)
	reader := as("reader")
	startForwarder(t, as("forwarder"), quickConfig())
	owner.exec(t, `INSERT INTO outbox (uuid, topic, payload, created_at, published_at) VALUES ('u', 'orders', '', `+
		`now() - interval '9 days', now() - interval '9 days')`)
	h := `"` + role(owner) + `reader"`
	owner.exec(t, "REVOKE SELECT ON outbox_forwarders FROM "+h)
	owner.exec(t, "GRANT SELECT (id, name, scope, topics, expires_at, waiting_since) ON outbox_forwarders TO "+h)
	found := findings(t, reader)
	assert.Contains(t, found["forwarders"].Evidence, "check failed")
	list, err := newAdmin(t, reader).Doctor(t.Context())
	require.NoError(t, err)
	for _, f := range list {
		assert.NotContains(t, f.Evidence, "no forwarder is running")
	}
}

// TestDoctorOfManyRoles: however many roles forwarders have, one check of the schema reads the grants of all of them.
// Damaged tables are checked several times, so one check for each role would take too long.
func TestDoctorOfManyRoles(t *testing.T) {
	t.Parallel()
	owner, _ := newRoles(t)
	h, gate := newStatementGate(t, owner.url)
	defer gate.releaseAll()
	roles := []string{"cleaner", "mover", "reader"}
	for _, name := range roles {
		h.exec(t, `INSERT INTO outbox_forwarders (id, scope, topics, name, expires_at, facts) VALUES (gen_random_uuid(), `+
			`'here', '{}', $1, now() + interval '1 hour', jsonb_build_object('role', $2::text))`, name, role(owner)+name)
	}
	var checks atomic.Int32
	gate.onRun(sqltext.CheckCatalog, func() { checks.Add(1) })
	list, err := newAdmin(t, h).Doctor(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 2, checks.Load(), "checks: of the tables, and of the grants")
	for _, name := range roles {
		assert.True(t, slices.ContainsFunc(list, func(f admin.Finding) bool {
			return f.Check == "privileges" &&
				strings.Contains(f.Evidence, `to role "`+role(owner)+name+`", the role of forwarder "`+name+`"`)
		}), name)
	}
}

func canceled(t testing.TB) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

// TestDoctorShowsHungPublishes: only the forwarder's process can detect hung publishes; it writes them to its row.
func TestDoctorShowsHungPublishes(t *testing.T) {
	h := onPgx(t)
	broker, goOn := newFakeBroker(), make(chan struct{})
	broker.answers(func(string, *message.Message) error {
		<-goOn
		return nil
	})
	cfg := quickConfig()
	cfg.LeaseTTL, cfg.PublishTimeout, cfg.CloseTimeout = 3*time.Second, 100*time.Millisecond, time.Minute
	f, err := forwarder.New(h.db, broker, cfg, newLogCapture(t))
	require.NoError(t, err)
	h.publish(t, "orders", "", "1")
	runInBackground(t, f)
	found := ails(t, h, "timeouts")
	assert.Regexp(t, `^[1-9]\d* publish(es)? of forwarder`, found.Evidence) // one more each time the lease expires
	assert.Contains(t, found.Evidence, "100ms")
	assert.Contains(t, found.Cure, "restart")
	close(goOn)
	cured(t, h, "timeouts")
}
