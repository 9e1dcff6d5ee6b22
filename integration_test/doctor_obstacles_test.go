package integration_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/forwarder"
)

// TestDoctorOfObstacles: what others did to the tables refuses or hides messages, and nothing of ours fails.
func TestDoctorOfObstacles(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]struct {
		partitioned        bool
		make               []string
		check, says, cures string
		severity           admin.Severity
	}{
		"unique index": {
			make: []string{"CREATE UNIQUE INDEX mine ON outbox (uuid)"}, check: "unique_index", says: "index mine",
			cures: "DROP INDEX mine", severity: admin.Warning,
		},
		"child": {
			make: []string{"CREATE TABLE child () INHERITS (outbox)"}, check: "inherits", says: "table child",
			cures: `NO INHERIT "outbox"`, severity: admin.Warning,
		},
		"sequence": {
			make: []string{"ALTER SEQUENCE outbox_id_seq MAXVALUE 100"}, check: "sequence", says: "has 100 numbers left",
			cures: "NO MAXVALUE", severity: admin.Critical,
		},
		"another schema": {
			make: []string{
				"CREATE SCHEMA other", "CREATE TABLE other.outbox (LIKE outbox INCLUDING ALL)",
				"CREATE TABLE other.outbox_forwarders (LIKE outbox_forwarders INCLUDING ALL)",
				"INSERT INTO other.outbox (uuid, topic, payload, created_at) VALUES ('u', 'x', '', now() - interval '1 hour')",
			},
			check: "elsewhere", says: `schema "other"`, cures: "search_path", severity: admin.Warning,
		},
		"default": {
			partitioned: true, make: []string{"ALTER TABLE outbox DETACH PARTITION outbox_default"}, check: "detached",
			says: "outbox_default has the name of a partition", cures: "ATTACH PARTITION", severity: admin.Critical,
		},
		"partition": {
			partitioned: true, make: []string{"ALTER TABLE outbox DETACH PARTITION outbox_p1"}, check: "detached",
			says: "outbox_p1 has the name of a partition", cures: "ATTACH PARTITION", severity: admin.Critical,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if !o.partitioned {
				needsPlainOutbox(t)
			}
			h := newPgxHandle(t, newMigratedDatabase(t))
			if o.partitioned {
				intoLeaves(t, h, 1000, 2000)
			}
			for _, s := range o.make {
				h.exec(t, s)
			}
			f := ails(t, h, o.check)
			assert.Equal(t, o.severity, f.Severity)
			assert.Contains(t, f.Evidence, o.says)
			assert.Contains(t, f.Cure, o.cures)
		})
	}
}

// TestDoctorOfAStandbyThatIsGone: commits wait for it, forwarders cannot renew their leases, and to end a session would
// commit without the standby.
func TestDoctorOfAStandbyThatIsGone(t *testing.T) {
	t.Parallel()
	_, h := ownMigratedServer(t)
	h.exec(t, "INSERT INTO outbox (uuid, topic, payload, created_at) VALUES ('u', 'x', '', now() - interval '1 hour')")
	h.exec(t, "ALTER SYSTEM SET synchronous_standby_names = 'gone'")
	h.exec(t, "SELECT pg_reload_conf()")
	restore := func() {
		_, _ = h.pool.Exec(context.Background(), "ALTER SYSTEM RESET synchronous_standby_names")
		_, _ = h.pool.Exec(context.Background(), "SELECT pg_reload_conf()")
	}
	defer restore()
	done, restored := make(chan error, 1), make(chan struct{})
	go func() { // commits return until the server has read its configuration
		for {
			_, err := h.pool.Exec(t.Context(), "INSERT INTO outbox (uuid, topic, payload) VALUES ('v', 'x', '')")
			select {
			case <-restored:
				done <- err
				return
			default:
			}
			if err != nil {
				done <- err
				return
			}
		}
	}()
	eventually(t, func() bool { _, waits := findings(t, h)["commit_waits"]; return waits }, "the commit waits")
	found := findings(t, h)
	assert.Contains(t, found["commit_waits"].Evidence, `synchronous_standby_names is "gone"`)
	assert.Contains(t, found["commit_waits"].Cure, "Do not end or cancel the sessions")
	assert.NotContains(t, found, "forwarders")
	for _, f := range found {
		assert.NotContains(t, f.Cure, "pg_terminate_backend", f.Check)
	}
	close(restored)
	restore()
	require.NoError(t, <-done)
}

// TestDoctorOfHiddenRows: row security hides messages from the forwarder's role, which more Concurrency does not mend.
func TestDoctorOfHiddenRows(t *testing.T) {
	needsPlainOutbox(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	h.exec(t, "INSERT INTO outbox (uuid, topic, payload, created_at) SELECT i, 'orders', '', now() - interval '1 hour' "+
		"FROM generate_series(1, 10) i")
	h.exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''no''; END'`)
	h.exec(t, "CREATE TRIGGER refuses BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()")
	h.exec(t, "CREATE TRIGGER audits AFTER UPDATE ON outbox FOR EACH STATEMENT EXECUTE FUNCTION refuse()")
	h.exec(t, "CREATE TRIGGER elsewhere BEFORE UPDATE ON inbox_queue FOR EACH ROW EXECUTE FUNCTION refuse()")
	startForwarder(t, h, forwarder.Config{})
	f := ails(t, h, "backlog")
	assert.Contains(t, f.Evidence, `trigger refuses on "outbox"`)
	assert.Contains(t, f.Evidence, `trigger audits on "outbox"`)
	assert.NotContains(t, f.Evidence, "elsewhere")
	assert.NotContains(t, f.Cure, "Concurrency")
}
