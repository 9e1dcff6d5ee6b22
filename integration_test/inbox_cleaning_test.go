package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/clean"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/observe"
)

// agedInbox makes as many inbox rows of each kind.
func agedInbox(t testing.TB, h handle, each int) {
	h.exec(t, `insert into inbox (consumer, message_id, processed_at, dead_at, received_at)
		select 'c', kind || n, case when kind in ('old', 'new') then at end, case when kind = 'dead' then at end, at
		from generate_series(1, $1) n,
		     (values ('old', now() - interval '31 days'), ('new', now() - interval '29 days'), ('dead', now() - interval '99 days'),
		             ('failed', now() - interval '31 days'), ('failing', now() - interval '29 days')) as k(kind, at)`, each)
}

func inboxKinds(t testing.TB, h handle) []string {
	return column[string](t, h, "select distinct rtrim(message_id, '0123456789') from inbox order by 1")
}

// cleanings is an observer that is told what was cleaned.
type cleanings struct {
	deaf
	ends chan observe.CleanEnd
}

func (c cleanings) CleanEnd(_ context.Context, end observe.CleanEnd) { c.ends <- end }

func TestForwarderCleansTheInbox(t *testing.T) {
	h := onPgx(t)
	cleaned := cleanings{ends: make(chan observe.CleanEnd, 100)}
	h = h.seenBy(t, cleaned)
	agedInbox(t, h, clean.Batch+10) // in several statements
	cfg := quickConfig()
	cfg.CleanInterval = 20 * time.Millisecond
	startForwarder(t, h, cfg)
	select {
	case end := <-cleaned.ends:
		assert.EqualValues(t, 2*(clean.Batch+10), end.Rows)
		assert.Equal(t, h.db.Name()+" inbox", end.DB+" "+end.Table)
		assert.NoError(t, end.Err)
	case <-time.After(patience):
		t.Fatal("nothing was cleaned")
	}
	assert.Equal(t, []string{"dead", "failing", "new"}, inboxKinds(t, h))

	h.exec(t, "update inbox set processed_at = now() - interval '31 days' where message_id = 'new1'")
	eventually(t, func() bool { return h.count(t, "select count(*) from inbox where message_id = 'new1'") == 0 },
		"it goes on")
}

func TestCleaningTheInbox(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		agedInbox(t, h, 25)
		db := (*core.DB)(h.db)
		n, err := clean.Inbox(t.Context(), db, 32*24*time.Hour, "", patience)
		require.NoError(t, err)
		require.Zero(t, n)
		n, err = clean.Inbox(t.Context(), db, 30*24*time.Hour, "", patience)
		require.NoError(t, err)
		assert.EqualValues(t, 50, n)
		assert.Equal(t, []string{"dead", "failing", "new"}, inboxKinds(t, h))

		_, err = clean.Inbox(t.Context(), (*core.DB)(h.with(t, sqltext.Tables{Inbox: "nowhere"}).db), time.Hour, "", patience)
		require.ErrorContains(t, err, "schema.Migrate")
	})
}

// A role may lack the grants, because its forwarder is not to touch the inbox.
func TestInboxRetentionOff(t *testing.T) {
	h := onPgx(t)
	agedInbox(t, h, 5)
	cfg := quickConfig()
	cfg.CleanInterval, cfg.InboxRetention, cfg.Retention = 10*time.Millisecond, -1, time.Minute
	w := startForwarder(t, h, cfg)
	w.publish(t, "orders", "", "1")
	w.arrives(t, "1")
	eventually(t, func() bool { return h.count(t, "select count(*) from outbox where published_at is not null") == 1 },
		"it is settled")
	h.exec(t, "update outbox set published_at = published_at - interval '1 hour'")
	eventually(t, func() bool { return outboxed(t, h) == 0 }, "the outbox is cleaned")
	assert.Len(t, inboxKinds(t, h), 5)

	limited := newPgxHandle(t, h.url+"&role="+newRole(t, h))
	_, err := clean.Inbox(t.Context(), (*core.DB)(limited.db), time.Hour, "", patience)
	require.ErrorContains(t, err, "InboxRetention")
}
