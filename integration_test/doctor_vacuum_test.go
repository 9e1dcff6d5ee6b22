package integration_test

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fillForVacuum makes rows, and killForVacuum deletes them, so much later that whoever reads since then is old.
func fillForVacuum(t testing.TB, h handle) {
	t.Helper()
	needsPlainOutbox(t)
	h.exec(t, "ALTER TABLE outbox SET (autovacuum_enabled = off)") // so that the test alone vacuums
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload, published_at) SELECT 'u' || i, 'orders', '', now() `+
		`FROM generate_series(1, 21000) i`)
}

func killForVacuum(t testing.TB, h handle) {
	t.Helper()
	h.exec(t, "DO $$ BEGIN FOR i IN 1..10001 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$")
	h.exec(t, "DELETE FROM outbox")
}

// vacuumed vacuums until the dead rows are gone.
func vacuumed(t testing.TB, h handle) {
	t.Helper()
	eventually(t, func() bool {
		h.exec(t, "VACUUM outbox")
		return h.count(t, "SELECT n_dead_tup::int FROM pg_stat_all_tables WHERE relid = 'outbox'::regclass") < 20_000
	}, "vacuum removes the dead rows")
	cured(t, h, "vacuum")
}

// TestNightPinnedVacuum: a report reads for hours, and dead rows pile up. A vacuum of another table that began before
// it, and has an older snapshot, keeps nothing: to end that would be no cure.
func TestNightPinnedVacuum(t *testing.T) {
	t.Parallel()
	h, as := newRoles(t)
	fillForVacuum(t, h)
	slow := begin(t, h, "CREATE TABLE other AS SELECT repeat('x', 1000) FROM generate_series(1, 20000)", // 2,858 pages
		// 400 ms each
		"SET vacuum_cost_delay = 100", "SET vacuum_cost_limit = 1", "SET vacuum_cost_page_hit = 10000",
		"SET vacuum_cost_page_miss = 10000")
	ended := make(chan error, 1)
	go func() { _, err := slow.Exec(t.Context(), "VACUUM other"); ended <- err }()
	t.Cleanup(func() {
		_, _ = h.pool.Exec(context.Background(), "SELECT pg_terminate_backend($1)", slow.PgConn().PID())
		<-ended
	})
	at := func() int {
		return h.count(t, "SELECT count(*)::int FROM pg_stat_progress_vacuum p JOIN pg_stat_activity a ON a.pid = p.pid "+
			"AND a.backend_xmin IS NOT NULL WHERE p.relid = 'other'::regclass")
	}
	eventually(t, func() bool { return at() == 1 }, "it vacuums")
	begin(t, h, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1")
	killForVacuum(t, h)
	f := ails(t, h, "vacuum")
	assert.Contains(t, f.Evidence, `"outbox" has 21000 dead rows that vacuum cannot remove because of session`)
	assert.Contains(t, f.Evidence, `("culprit")`)
	assert.Contains(t, ails(t, as("reader"), "vacuum").Evidence, "that vacuum cannot remove because of session",
		"also to who sees little of it")
	cure(t, h, f)
	cured(t, h, "vacuum")
	vacuumed(t, h)
	assert.Equal(t, 1, at(), "the other one vacuums meanwhile")
}

// standby is the connection of a standby, as far as the primary can tell.
type standby struct {
	t    testing.TB
	conn *pgconn.PgConn
}

func newStandby(t testing.TB, h handle, start string, before ...string) standby {
	t.Helper()
	cfg, err := pgx.ParseConfig(h.url)
	require.NoError(t, err)
	cfg.RuntimeParams["replication"], cfg.RuntimeParams["application_name"] = "true", "reports"
	conn, err := pgconn.ConnectConfig(t.Context(), &cfg.Config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	for _, s := range before {
		require.NoError(t, conn.Exec(t.Context(), s).Close(), s)
	}
	conn.Frontend().Send(&pgproto3.Query{String: start + value[string](t, h, "SELECT pg_current_wal_lsn()::text")})
	require.NoError(t, conn.Frontend().Flush())
	for {
		answer, err := conn.ReceiveMessage(t.Context())
		require.NoError(t, err)
		if _, ok := answer.(*pgproto3.CopyBothResponse); ok {
			return standby{t, conn}
		}
	}
}

// needs says which transactions the queries of the standby may have to see.
func (s standby) needs(from uint32) {
	s.t.Helper()
	said := binary.BigEndian.AppendUint64([]byte{'h'},
		uint64(time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Microseconds()))
	for _, n := range []uint32{from, 0, 0, 0} { // with their epochs; the second one is of catalogs
		said = binary.BigEndian.AppendUint32(said, n)
	}
	s.conn.Frontend().Send(&pgproto3.CopyData{Data: said})
	require.NoError(s.t, s.conn.Frontend().Flush())
}

// TestNightStandbyPinsVacuum: a report runs on a standby that has the primary keep what it reads
// (hot_standby_feedback), by its connection or by its slot. Only there can it be ended.
func TestNightStandbyPinsVacuum(t *testing.T) {
	extended(t)
	t.Parallel()
	_, h := ownMigratedServer(t)
	for _, tt := range []struct {
		start, who string
		before     []string
	}{
		{
			"START_REPLICATION PHYSICAL ",
			` that vacuum cannot remove because of a standby, session \d+ of role "\w+" \("reports"\) from 127\.0\.0\.1, `, nil,
		},
		{
			"START_REPLICATION SLOT of_reports PHYSICAL ", `by replication slot "of_reports", `,
			[]string{"CREATE_REPLICATION_SLOT of_reports PHYSICAL RESERVE_WAL"},
		},
	} {
		fillForVacuum(t, h)
		s := newStandby(t, h, tt.start, tt.before...)
		s.needs(uint32(h.count(t, "SELECT txid_current()::int")))
		eventually(t, func() bool {
			return h.count(t, "SELECT (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'reports' "+
				"AND backend_xmin IS NOT NULL)::int + (SELECT count(xmin) FROM pg_replication_slots)::int") == 1
		}, "the primary keeps what it needs")
		killForVacuum(t, h)
		f := ails(t, h, "vacuum")
		assert.Regexp(t, tt.who, f.Evidence)
		assert.Contains(t, f.Cure, "on that standby")
		assert.NotContains(t, f.Cure, "SELECT", "neither to end its connection here nor to drop the slot helps")
		s.needs(uint32(h.count(t, "SELECT txid_current()::int")))
		vacuumed(t, h)
		require.NoError(t, s.conn.Close(t.Context()))
	}
}
