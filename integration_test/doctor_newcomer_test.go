package integration_test

import (
	"context"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/nats"
	"github.com/millrace-go/watermill-outbox/schema"
)

// TestMistakesOfANewcomer makes the ten most likely mistakes, and checks the error or finding of each.
func TestMistakesOfANewcomer(t *testing.T) {
	parallel(t)
	said := func(t *testing.T, text string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			assert.Contains(t, text, part)
		}
	}
	publish := func(t *testing.T, h handle, topic string, msg *message.Message) error {
		t.Helper()
		pub := newOutboxPublisher(t, h)
		return outbox.InTx(t.Context(), h.db, func(ctx context.Context) error { return pub.PublishContext(ctx, topic, msg) })
	}

	t.Run("forgot Migrate", func(t *testing.T) {
		h := newPgxHandle(t, newDatabase(t))
		said(t, publish(t, h, "orders", newMessage("")).Error(), "outbox", "schema.Migrate")
		said(t, newForwarder(t, h, &published{}, forwarder.Config{}).Run(t.Context()).Error(), "schema.Migrate")
	})
	t.Run("middlewares in the wrong order", func(t *testing.T) {
		h := newPgxHandle(t, newMigratedDatabase(t))
		reversed := stack(t, h, middleware.StackConfig{})
		slices.Reverse(reversed)
		_, err := chain(book(h), reversed...)(newMessage(""))
		said(t, err.Error(), "add middleware.Tx before", "middleware.Stack")
	})
	t.Run("forgot the forwarder", func(t *testing.T) {
		h := newPgxHandle(t, newMigratedDatabase(t))
		require.NoError(t, publish(t, h, "orders", newMessage("")))
		f := ails(t, h, "forwarders")
		said(t, f.Cure, "forwarder")
		assert.Regexp(t, "no message has been ready for more than 5s|messages of topic .* have been ready", f.Evidence)
	})
	t.Run("a publisher whose errors are not classified", func(t *testing.T) {
		h := newPgxHandle(t, newMigratedDatabase(t))
		log := newLogCapture(t)
		broker := newFakeBroker()
		broker.answers(func(string, *message.Message) error { return errOdd })
		f, err := forwarder.New(h.db, broker, shortLease(quickConfig()), log)
		require.NoError(t, err)
		require.NoError(t, publish(t, h, "orders", newMessage("")))
		runInBackground(t, f)
		said(t, ails(t, h, "classify").Cure, "forwarder.Config.Classify", "package kafka or nats")
	})
	t.Run("a mistyped key", func(t *testing.T) {
		h := newPgxHandle(t, newMigratedDatabase(t))
		for _, name := range []string{"outbox_kye", "outbox-key", "Outbox_Key"} {
			msg := newMessage("")
			msg.Metadata.Set(name, "order-1")
			said(t, publish(t, h, "orders", msg).Error(), name, "outbox_key")
		}
	})
	t.Run("published outside of a transaction", func(t *testing.T) {
		h := newPgxHandle(t, newMigratedDatabase(t))
		msg := newMessage("")
		msg.SetContext(t.Context())
		err := newOutboxPublisher(t, h).Publish("orders", msg)
		require.ErrorIs(t, err, outbox.ErrNoTx)
		said(t, err.Error(), "PublishContext", "outbox.InTx", "WithoutTx")
	})
	t.Run("the broker has no such topic", func(t *testing.T) {
		h := newPgxHandle(t, newMigratedDatabase(t))
		require.NoError(t, publish(t, h, "ordres", newMessage("")))
		log := newLogCapture(t)
		pub, err := nats.NewPublisher(nats.PublisherConfig{URL: natsServer(t).URL()}, log)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, pub.Close()) })
		runForwarder(t, h, pub, forwarder.Config{}, log)
		eventually(t, func() bool {
			return log.count("create a stream with this subject") > 0
		}, "the log does not say what to do")
	})
	t.Run("a wrong DSN", func(t *testing.T) {
		pool, err := pgxpool.New(t.Context(), "postgres://nobody:canary@127.0.0.1:1/shop")
		require.NoError(t, err)
		t.Cleanup(pool.Close)
		db, err := outbox.FromPgx(pool, outbox.DBConfig{}, nil)
		require.NoError(t, err)
		_, err = schema.Migrate(t.Context(), db, schema.MigrateConfig{})
		said(t, err.Error(), "127.0.0.1:1", "shop")
		assert.NotContains(t, err.Error(), "canary")
	})
	t.Run("a pool that is too small", func(t *testing.T) {
		h := pgxHandle(t, "small", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
		runInBackground(t, newForwarder(t, h, &published{}, forwarder.Config{}))
		said(t, ails(t, h, "pool").Cure, "give the pool 3 connections, and one more for each handler "+
			"that runs at the same time")
	})
	t.Run("a handler outside the transaction", func(t *testing.T) {
		// This mistake cannot be detected, as docs/guides/how-it-works.md explains. Its effect: the write stays when
		// the rest is rolled back.
		h := newPgxHandle(t, newMigratedDatabase(t))
		h.exec(t, "CREATE TABLE beside (id text)")
		msg := newMessage("")
		_, err := chain(func(msg *message.Message) ([]*message.Message, error) {
			h.exec(t, "INSERT INTO beside VALUES ('written through the pool')")
			return nil, assert.AnError
		}, newTx(t, h, middleware.TxConfig{}))(msg)
		require.ErrorIs(t, err, assert.AnError)
		assert.Equal(t, 1, h.count(t, "SELECT count(*) FROM beside"))
		said(t, documents(t)["docs/guides/how-it-works.md"], "through the pool instead of `PgxTx` or `SQLTx`: "+
			"nothing can notice that")
	})
}

// TestDoctorOfObstacles: triggers, rules and row security added by others refuse or hide messages, although none of our
// statements fails.
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
		"unique constraint": {
			make:  []string{"ALTER TABLE outbox ADD COLUMN mine int UNIQUE"},
			check: "unique_index", says: "index outbox_mine_key",
			cures: `ALTER TABLE "outbox" DROP CONSTRAINT outbox_mine_key`, severity: admin.Warning,
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
				intoPartitions(t, h, 1000, 2000)
			}
			for _, s := range o.make {
				h.exec(t, s)
			}
			f := ails(t, h, o.check)
			assert.Equal(t, o.severity, f.Severity)
			assert.Contains(t, f.Evidence, o.says)
			assert.Contains(t, f.Cure, o.cures)
			if o.check != "detached" && o.check != "elsewhere" {
				cure(t, h, f)
				assert.NotContains(t, findings(t, h), o.check)
			}
		})
	}
}

// TestDoctorOfAStandbyThatIsGone: commits wait for the standby, forwarders cannot renew their leases, and ending a
// session would commit without it.
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
	go func() { // commits return only after the server has reloaded its configuration
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

// TestDoctorOfHiddenRows: row security hides messages from the forwarder's role, which more Concurrency does not fix.
func TestDoctorOfHiddenRows(t *testing.T) {
	needsPlainOutbox(t)
	h := onPgx(t)
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
