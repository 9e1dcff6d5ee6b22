package integration_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/schema"
)

func TestSchemaOfNoHandle(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	for _, db := range []*outbox.DB{nil, {}} {
		for name, call := range map[string]func() error{
			"Migrate": func() error { _, err := schema.Migrate(ctx, db, schema.MigrateConfig{}); return err },
			"Status":  func() error { _, err := schema.Status(ctx, db); return err },
			"Check":   func() error { return checkSchema(ctx, db) },
		} {
			require.ErrorIs(t, call(), outbox.ErrNoDB, name)
		}
	}
}

// TestTableOfAnotherProgram with the name of one of ours: the cure is another name, never ALTER TABLE.
func TestTableOfAnotherProgram(t *testing.T) {
	t.Parallel()
	for table, field := range map[string]string{
		"outbox": "Outbox", "inbox": "Inbox", "outbox_lanes": "Lanes", "outbox_migrations": "Migrations",
	} {
		h := newPgxHandle(t, newDatabase(t))
		h.exec(t, `create table `+table+` (id uuid primary key, aggregatetype text, type text, payload jsonb)`)
		cure := fmt.Sprintf(`outbox.Tables{%s: "..."}`, field)
		if table != "outbox_migrations" {
			_, err := schema.Migrate(t.Context(), h.db, schema.MigrateConfig{})
			require.ErrorContains(t, err, cure)
		}
		err := checkSchema(t.Context(), h.db)
		require.ErrorIs(t, err, schema.ErrSchemaChanged)
		require.ErrorContains(t, err, cure)
		require.ErrorContains(t, err, "another program")
		require.NotContains(t, err.Error(), "ALTER")
		require.NoError(t, makeTables(t.Context(), h.with(t, sqltext.Tables{Outbox: "events", Inbox: "events_in"}).db))
	}
}

// newRole creates a role without rights, dropped after the test.
func newRole(t *testing.T, admin handle) string {
	t.Helper()
	role := fmt.Sprintf("role_%d_%s", os.Getpid(),
		strings.ToLower(strings.NewReplacer("/", "_", "-", "_").Replace(t.Name())))
	role = role[:min(len(role), 60)]
	admin.exec(t, `create role `+role)
	t.Cleanup(func() {
		for _, statement := range []string{`drop owned by `, `drop role `} {
			_, err := (*core.DB)(admin.db).Exec(context.Background(), statement+role)
			assert.NoError(t, err)
		}
	})
	return role
}

// TestCheckNamesMissingGrants runs each printed GRANT until nothing is missing.
func TestCheckNamesMissingGrants(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	admin := newPgxHandle(t, url)
	names := sqltext.Tables{Schema: "Shop"}
	require.NoError(t, makeTables(t.Context(), admin.with(t, names).db))
	role := newRole(t, admin)
	h := newPgxHandle(t, url+"&role="+role)

	err := checkSchema(t.Context(), h.with(t, names).db)
	require.ErrorIs(t, err, schema.ErrSchemaChanged)
	usage := fmt.Sprintf(`GRANT USAGE ON SCHEMA "Shop" TO "%s"`, role)
	require.ErrorContains(t, err, usage)
	admin.exec(t, usage)

	found, err := schemaProblems(t.Context(), h.with(t, names).db)
	require.NoError(t, err)
	require.NotEmpty(t, found)
	for _, p := range found {
		require.True(t, strings.HasPrefix(p.Cure, "GRANT "), "%v", p)
		require.Contains(t, p.Found, role)
		if !p.Warning {
			admin.exec(t, p.Cure)
		}
	}
	require.NoError(t, checkSchema(t.Context(), h.with(t, names).db), "a forwarder's")
	cfg := schema.CheckConfig{Roles: []string{role}, OnlyOutbox: true}
	of, err := schema.Check(t.Context(), admin.with(t, names).db, cfg)
	require.NoError(t, err, "the same, asked by the owner of the tables")
	require.Len(t, of, 2, "only a publisher needs these")
	for _, p := range of {
		require.Equal(t, role, p.Role)
		require.True(t, p.Warning)
		require.Contains(t, p.Cure, ` TO "`+role+`"`)
	}
	admin.exec(t, fmt.Sprintf(`REVOKE USAGE ON SCHEMA "Shop" FROM "%s"`, role))
	of, err = schema.Check(t.Context(), admin.with(t, names).db, cfg)
	require.ErrorIs(t, err, schema.ErrSchemaChanged, "the owner's own right to the schema does not help the role")
	require.Equal(t, `schema "Shop" denies USAGE to role "`+role+`": `+usage, of[0].String())
	admin.exec(t, of[0].Cure)
	admin.exec(t, names.Render(`insert into {outbox} (uuid, topic, payload) values ('one', 'orders', 'one')`))
	broker, log := newFakeBroker(), newLogCapture(t)
	f, err := forwarder.New(h.with(t, names).db, broker, quickConfig(), log)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, f.Drain(ctx))
	require.NoError(t, f.Close())
	assert.Equal(t, []string{"one"}, broker.payloads())
	assert.Zero(t, log.count("permission denied"), "%v", *log.lines)
	_, err = (*core.DB)(h.db).Exec(t.Context(), names.Render(sqltext.ForgetForwarders), 3600.0)
	require.NoError(t, err)
	for _, p := range found {
		admin.exec(t, p.Cure)
	}
	found, err = schemaProblems(t.Context(), h.with(t, names).db)
	require.NoError(t, err)
	assert.Empty(t, found)
}

// TestCheckOfARoleThatOnlyPublishes requires no other grants.
func TestCheckOfARoleThatOnlyPublishes(t *testing.T) {
	t.Parallel()
	url := newMigratedDatabase(t)
	admin := newPgxHandle(t, url)
	role := newRole(t, admin)
	admin.exec(t, `grant insert on outbox to `+role)
	h := newPgxHandle(t, url+"&role="+role)

	err := checkSchema(t.Context(), h.db)
	require.ErrorContains(t, err, fmt.Sprintf(`GRANT USAGE ON SEQUENCE "outbox_id_seq" TO "%s"`, role))
	require.NotContains(t, err.Error(), "outbox_lanes")
	admin.exec(t, `grant usage on sequence outbox_id_seq to `+role)
	require.NoError(t, checkSchema(t.Context(), h.db))
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	require.NoError(t, pub.Publish("orders", newMessage("hello")))

	admin.exec(t, `revoke insert on outbox from `+role)
	err = pub.Publish("orders", newMessage("hello"))
	require.ErrorContains(t, err, "schema.Check lists the GRANT")
}

// TestMigrateNamesMissingGrants for a role without rights, then for one that may use the schema.
func TestMigrateNamesMissingGrants(t *testing.T) {
	needsPlainOutbox(t)
	t.Parallel()
	url := newDatabase(t)
	admin := newPgxHandle(t, url)
	role := newRole(t, admin)
	database := value[string](t, admin, `select current_database()::text`)
	h := newPgxHandle(t, url+"&role="+role)
	for _, names := range []sqltext.Tables{{Schema: "shop"}, {}} {
		want := fmt.Sprintf(`GRANT CREATE ON DATABASE "%s" TO "%s"`, database, role)
		if names.Schema == "" {
			admin.exec(t, `revoke all on schema public from public`)
			want = fmt.Sprintf(`GRANT USAGE, CREATE ON SCHEMA "public" TO "%s"`, role)
		}
		_, err := schema.Migrate(t.Context(), h.with(t, names).db, schema.MigrateConfig{})
		require.ErrorContains(t, err, want)
		admin.exec(t, want[strings.Index(want, "GRANT"):])
		require.NoError(t, makeTables(t.Context(), h.with(t, names).db))
	}
	admin.exec(t, fmt.Sprintf(`revoke create on schema public from "%s"`, role))
	require.NoError(t, makeTables(t.Context(), h.db), "no migration is missing")
}

// TestCheckNamesTablesInOtherSchemas finds tables that the search path hides.
func TestCheckNamesTablesInOtherSchemas(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newDatabase(t))
	require.NoError(t, makeTables(t.Context(), h.with(t, sqltext.Tables{Schema: "app"}).db))
	err := checkSchema(t.Context(), h.db)
	require.ErrorContains(t, err, `the one in schema "app"`)
}
