package integration_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	brokers "github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/facts"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/kafka"
	"github.com/millrace-go/watermill-outbox/nats"
)

// fillForVacuum inserts rows and killForVacuum deletes them, far enough apart that a reader from in between counts as
// old.
func fillForVacuum(t testing.TB, h handle) {
	t.Helper()
	needsPlainOutbox(t)
	h.exec(t, "ALTER TABLE outbox SET (autovacuum_enabled = off)") // only the test vacuums
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

// TestNightPinnedVacuum: a report reads for hours, and dead rows pile up. An earlier vacuum of another table, with an
// older snapshot, retains no rows; ending it would not help.
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
		"also with few privileges")
	cure(t, h, f)
	cured(t, h, "vacuum")
	vacuumed(t, h)
	assert.Equal(t, 1, at(), "the other one vacuums meanwhile")
}

// standby is a standby's connection, as far as the primary can tell.
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

// needs reports from which transaction on the standby's queries need rows.
func (s standby) needs(from uint32) {
	s.t.Helper()
	said := binary.BigEndian.AppendUint64([]byte{'h'},
		uint64(time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).Microseconds()))
	for _, n := range []uint32{from, 0, 0, 0} { // with their epochs; the second one is for catalogs
		said = binary.BigEndian.AppendUint32(said, n)
	}
	s.conn.Frontend().Send(&pgproto3.CopyData{Data: said})
	require.NoError(s.t, s.conn.Frontend().Flush())
}

// TestNightStandbyPinsVacuum: a report on a standby makes the primary keep the rows that it reads
// (hot_standby_feedback), by its connection or by its slot. The report can only be ended on the standby.
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
		h.reaches(t, 1, "the primary keeps the rows that it needs",
			"SELECT (SELECT count(*) FROM pg_stat_activity WHERE application_name = 'reports' "+
				"AND backend_xmin IS NOT NULL)::int + (SELECT count(xmin) FROM pg_replication_slots)::int")
		killForVacuum(t, h)
		f := ails(t, h, "vacuum")
		assert.Regexp(t, tt.who, f.Evidence)
		assert.Contains(t, f.Cure, "on that standby")
		assert.NotContains(t, f.Cure, "SELECT", "neither ending its connection here nor dropping the slot helps")
		s.needs(uint32(h.count(t, "SELECT txid_current()::int")))
		vacuumed(t, h)
		require.NoError(t, s.conn.Close(t.Context()))
	}
}

// TestBlockedByOneClock: the time for which a partition is shown as blocked depends neither on the clock of the
// forwarder's host nor on the reader's.
func TestBlockedByOneClock(t *testing.T) {
	h := onPgx(t)
	id := uuid.NewString()
	names := sqltext.Tables{}
	says := func(theirs time.Time) (string, float64) {
		b, err := json.Marshal(facts.Forwarder{Blocked: []facts.Partition{{
			Group: "g", Topic: "orders", Since: theirs.Add(-2 * time.Minute), Failing: theirs.Add(-3 * time.Minute), Keys: 1,
		}}})
		require.NoError(t, err)
		return string(b), float64(theirs.UnixMicro()) / 1e6
	}
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour} {
		what, theirs := says(time.Now().Add(ahead))
		h.exec(t, names.Render(sqltext.AnnounceForwarder), id, "default", []string{}, "f", 3600.0, what, theirs)
		for range 2 {
			f := findings(t, h)["partition_blocked"]
			assert.Equal(t, admin.Warning, f.Severity)
			assert.Regexp(t, `paused for 2m[0-9]+s .* the oldest for 3m[0-9]+s`, f.Evidence, "%s ahead", ahead)
			h.exec(t, names.Render(sqltext.WriteFacts), id, what, theirs)
		}
	}
}

// TestHungHandlersAreFound: a partition whose handlers do not return, although no message blocks it, is critical and
// has a different cure.
func TestHungHandlersAreFound(t *testing.T) {
	h := onPgx(t)
	now := time.Now()
	says, err := json.Marshal(facts.Forwarder{Blocked: []facts.Partition{{
		Group: "g", Topic: "orders", Partition: 3, Since: now.Add(-6 * time.Minute), Failing: now, Lag: 7, Hung: true,
	}}})
	require.NoError(t, err)
	h.exec(t, sqltext.Tables{}.Render(sqltext.AnnounceForwarder), uuid.NewString(), "default", []string{}, "f", 3600.0,
		string(says), float64(now.UnixMicro())/1e6)
	f := findings(t, h)["partition_blocked"]
	assert.Equal(t, admin.Critical, f.Severity)
	assert.Regexp(t, `partition 3 of topic "orders".* paused for 6m0[0-9]s, and no handler has returned .*lag 7 messages`,
		f.Evidence)
	assert.Contains(t, f.Cure, "goroutine dump")
	assert.Equal(t, []string{"PartitionBlocked"}, f.Alerts)
}

// TestInboxRetention: only a topic that Kafka keeps for longer than the inbox remembers is reported.
func TestInboxRetention(t *testing.T) {
	extended(t)
	t.Parallel()
	server := kafkaServer(t)
	lasting := func(d time.Duration) map[string]*string {
		ms := itoa(int(d.Milliseconds()))
		return map[string]*string{"retention.ms": &ms}
	}
	long := kafkaTopic(t, server, 1, lasting(48*time.Hour))
	short := kafkaTopic(t, server, 1, lasting(time.Hour))
	reader, err := kafka.NewTopicReader(kafka.TopicReaderConfig{Brokers: server.Brokers()}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, reader.Close()) }()
	kept, known, err := reader.Retention(t.Context(), long)
	require.NoError(t, err)
	assert.True(t, known)
	assert.Equal(t, 48*time.Hour, kept)
	_, known, err = reader.Retention(t.Context(), long+"-of-another-broker")
	require.NoError(t, err)
	assert.False(t, known)

	f := inboxRetention(t, reader, long, short)
	assert.Contains(t, f.Evidence, `messages of topic "`+long+`" for 2d00h`)
}

// TestInboxRetentionOfJetStream is the same for max_age.
func TestInboxRetentionOfJetStream(t *testing.T) {
	extended(t)
	t.Parallel()
	url := natsServer(t).URL()
	lasting := func(d time.Duration, policy natsgo.RetentionPolicy) string {
		_, _, prefix := natsStream(t, url, func(c *natsgo.StreamConfig) { c.MaxAge, c.Retention = d, policy })
		return prefix
	}
	long, short := lasting(48*time.Hour, natsgo.LimitsPolicy), lasting(time.Hour, natsgo.LimitsPolicy)
	ever, consumed := lasting(0, natsgo.LimitsPolicy), lasting(48*time.Hour, natsgo.WorkQueuePolicy)
	reader, err := nats.NewTopicReader(nats.TopicReaderConfig{URL: url}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, reader.Close()) }()
	for topic, want := range map[string]time.Duration{
		long + "orders": 48 * time.Hour, long + "*": 48 * time.Hour, ever + "orders": -1,
		consumed + "orders": 0, "nobodys": 0,
	} {
		kept, known, err := reader.Retention(t.Context(), topic)
		require.NoError(t, err)
		assert.Equal(t, want != 0, known, topic)
		assert.Equal(t, want, kept, topic)
	}
	f := inboxRetention(t, reader, long+"orders", short+"orders", ever+"orders", consumed+"orders")
	assert.Contains(t, f.Evidence, `messages of topic "`+long+`orders" for 2d00h`)
}

// inboxRetention returns Doctor's only finding for topics whose messages the inbox remembers for a day.
func inboxRetention(t *testing.T, reader brokers.Checker, topics ...string) admin.Finding {
	t.Helper()
	h := newPgxHandle(t, newMigratedDatabase(t))
	cfg := quickConfig()
	cfg.InboxRetention = 24 * time.Hour
	for _, topic := range topics {
		(*core.DB)(h.db).Consumes("booking/"+topic, topic)
	}
	startForwarder(t, h, cfg)
	var found []admin.Finding
	eventually(t, func() bool {
		found = nil
		all, err := newAdmin(t, h).Doctor(t.Context(), reader)
		require.NoError(t, err)
		for _, f := range all {
			if f.Check == "inbox_retention" {
				found = append(found, f)
			}
		}
		return len(found) > 0
	}, "doctor finds the topic")
	require.Len(t, found, 1)
	return found[0]
}
