//go:build unix

package integration_test

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
)

// role makes a role that may log in and do all that the owner may, and a handle of it.
func (n *night) role(name string) (string, handle) {
	n.Helper()
	at, err := url.Parse(n.h.url)
	require.NoError(n, err)
	name = strings.TrimPrefix(at.Path, "/") + "_" + name
	n.h.exec(n, `CREATE ROLE "`+name+`" LOGIN IN ROLE pg_monitor`)
	n.h.exec(n, `GRANT ALL ON ALL TABLES IN SCHEMA public TO "`+name+`"`)
	n.h.exec(n, `GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO "`+name+`"`)
	n.Cleanup(func() {
		_, _ = n.h.pool.Exec(context.Background(), `DROP OWNED BY "`+name+`"`)
		_, _ = n.h.pool.Exec(context.Background(), `DROP ROLE "`+name+`"`)
	})
	own := *at
	own.User = url.User(name)
	return name, newPgxHandle(n, own.String())
}

var faultsOfTheServer = []fault{
	{
		name: "a session is idle in a transaction", check: "idle_transaction", severity: admin.Info, always: true,
		evidence: `\("culprit"\), idle in transaction(?s:.*)RowShareLock`,
		inject: func(n *night) {
			n.h.publish(n, "orders", "", "1")
			begin(n, n.h, "BEGIN", "SELECT FROM outbox FOR UPDATE")
			n.world = startForwarder(n, n.h, classifyingConfig())
			n.arrives(n, "1")
			assert.Equal(n, 0, n.h.states(n, "true")["done"], "it cannot be settled")
		},
	},
	{
		name: "a table is locked by hand", check: "table_lock", severity: admin.Warning, always: true,
		inject: func(n *night) { begin(n, n.h, "BEGIN", "LOCK TABLE outbox IN SHARE ROW EXCLUSIVE MODE") },
	},
	{
		name: "a prepared transaction was forgotten", check: "prepared_transactions", severity: admin.Info, always: true,
		inject: func(n *night) {
			gid := "o''clock " + strings.TrimPrefix(role(n.h), "/")
			begin(n, n.h, "BEGIN", "INSERT INTO outbox (uuid, topic, payload) VALUES ('u', 'orders', '')",
				"PREPARE TRANSACTION '"+gid+"'")
			n.Cleanup(func() { _, _ = n.h.pool.Exec(context.Background(), "ROLLBACK PREPARED '"+gid+"'") })
		},
	},
	{
		name: "an index is missing", check: "schema", severity: admin.Critical, inject: func(n *night) {
			n.h.exec(n, "DROP INDEX outbox_ready")
			assert.Equal(n, http.StatusOK, newSite(n, n.h, ui.Access{}).get("").status)
		},
	},
	{
		name: "a right was taken from the role of the forwarder", check: "privileges", severity: admin.Critical,
		evidence: `"outbox" denies DELETE to role "\w+_forwarder"`, always: true, inject: func(n *night) {
			name, h := n.role("forwarder")
			n.world = startForwarder(n, h, classifyingConfig())
			n.h.exec(n, `REVOKE DELETE ON outbox FROM "`+name+`"`)
		},
	},
	{
		name: "a right was taken from the role of the writer", check: "privileges", severity: admin.Critical,
		evidence: `may write messages, but lacks USAGE`, inject: func(n *night) {
			name, h := n.role("writer")
			n.h.exec(n, `REVOKE USAGE ON SEQUENCE outbox_id_seq FROM "`+name+`"`)
			n.world = startForwarder(n, n.h, classifyingConfig())
			n.mend = func() { h.publish(n, "orders", "", "1"); n.arrives(n, "1") }
		},
		cure: func(n *night, f admin.Finding) { n.runs(f); n.mend() },
	},
	{
		name: "the role of the forwarder has a statement_timeout of 100 ms", check: "statement_timeout",
		severity: admin.Warning, always: true, inject: func(n *night) {
			name, h := n.role("forwarder")
			n.world = startForwarder(n, h, classifyingConfig()) // on a busy machine its start takes longer than that
			n.h.publish(n, "orders", "", "1")
			n.arrives(n, "1")
			n.h.exec(n, `ALTER ROLE "`+name+`" SET statement_timeout = '100ms'`)
		},
	},
	{
		name: "a transaction writes messages and goes on for long", check: "long_transaction", severity: admin.Info,
		evidence: "active(?s:.*)RowExclusiveLock", always: true, inject: func(n *night) {
			conn := begin(n, n.h, "BEGIN", "INSERT INTO outbox (uuid, topic, payload) VALUES ('u', 'orders', '')")
			ended := make(chan error, 1)
			go func() { _, err := conn.Exec(n.Context(), "SELECT pg_sleep(600)"); ended <- err }()
			n.Cleanup(func() { assert.Error(n, <-ended) })
		},
	},
	{
		name: "a report keeps dead rows from being removed", check: "vacuum", severity: admin.Warning,
		inject: func(n *night) {
			fillForVacuum(n, n.h)
			begin(n, n.h, "BEGIN ISOLATION LEVEL REPEATABLE READ", "SELECT 1")
			killForVacuum(n, n.h)
			n.h.exec(n, "ALTER TABLE outbox RESET (autovacuum_enabled)") // it cannot remove them either
		},
	},
}
