package integration_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// TestCommandsOfOtherTables: a database may have several outboxes. The command of a cure acts on the one that was
// looked at, whatever the topic is called.
func TestCommandsOfOtherTables(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `CREATE SCHEMA "Shop"`)
	other := h.with(t, sqltext.Tables{Schema: "Shop", Outbox: "events", Inbox: "taken"})
	require.NoError(t, makeTables(t.Context(), other.db))
	for _, of := range []handle{h, other} {
		a := newAdmin(t, of)
		for _, topic := range []string{"orders", "-odd one"} {
			err := a.Pause(t.Context(), admin.TopicAct{Topic: topic, Reason: "a try"})
			require.NoError(t, err)
		}
	}
	found, err := newAdmin(t, other).Doctor(t.Context())
	require.NoError(t, err)
	for _, f := range found {
		if f.Check == "topic_paused" {
			said := words(commandOf.FindStringSubmatch(f.Cure)[1])
			said = slices.Insert(said, slices.Index(said, "resume")+1, "--yes")
			r := ctl{t: t, url: h.url}.run(said...)
			require.Zero(t, r.code, "%s: %s%s", said, r.out, r.err)
		}
	}
	assert.Zero(t, other.count(t, `SELECT count(*)::int FROM "Shop".events_topics`))
	assert.Equal(t, 2, h.count(t, `SELECT count(*)::int FROM outbox_topics`), "those of the other outbox")
}

// TestCommandsNameNoEmptyGroup: messages that died without an error have a group that no flag names.
func TestCommandsNameNoEmptyGroup(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, dead_at) VALUES ('a', 'orders', '', '', now())`)
	assert.NotContains(t, findings(t, h)["dead"].Cure, "--group")
}
