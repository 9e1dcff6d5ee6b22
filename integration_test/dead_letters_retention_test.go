package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestDeadRetention: a message that has been dead for longer is discarded as if by an operator: with its reason and an
// entry in the audit log. The messages that it blocked continue in order. Then it is deleted like any other discarded
// message.
func TestDeadRetention(t *testing.T) {
	h := onPgx(t)
	died := func(uuid, key, ago string) {
		h.exec(t, `insert into outbox (uuid, topic, key, payload, attempts, dead_at, last_error)
			values ($1, 'orders', $2, '', 3, now() - $3::text::interval, 'why')`, uuid, key, ago)
	}
	died("old", "K", "2 hours")
	died("young", "L", "1 minute")
	h.publish(t, "orders", "K", "1", "2")
	h.publish(t, "orders", "L", "waits")
	cfg := quickConfig()
	cfg.CleanInterval, cfg.BlockKeyOnDead, cfg.DeadRetention = 20*time.Millisecond, true, time.Hour
	w := startForwarder(t, h, cfg)
	w.arrives(t, "1", "2")
	assert.Equal(t, []string{"1", "2"}, w.payloads())

	a := newAdmin(t, h)
	list, err := a.List(t.Context(), admin.Filter{States: []admin.State{admin.Discarded}}, admin.Page{})
	require.NoError(t, err)
	require.Len(t, list.Messages, 1)
	assert.Equal(t, "old", list.Messages[0].UUID)
	assert.Equal(t, "discarded by DeadRetention: dead for longer than 1h0m0s; before: why", list.Messages[0].LastError)
	assertDiscardedOnce(t, a, admin.Outbox)

	h.exec(t, `update outbox set created_at = now() - interval '8 days', published_at = now() - interval '8 days'
		where uuid = 'old'`)
	eventually(t, func() bool { return h.count(t, "select count(*) from outbox where uuid = 'old'") == 0 },
		"it is deleted")
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox where dead_at is not null"), "the recent one stays")
}

// assertDiscardedOnce checks the entry in the audit log and the findings of Doctor.
func assertDiscardedOnce(t *testing.T, a *admin.Admin, in admin.Table) {
	t.Helper()
	var entries []admin.AuditEntry
	eventually(t, func() (ended bool) {
		var err error
		entries, _, err = a.Audit(t.Context(), admin.Page{})
		require.NoError(t, err)
		return len(entries) > 0 && !entries[0].EndedAt.IsZero()
	}, "the entry ends")
	require.Len(t, entries, 1)
	e := entries[0]
	assert.Equal(t, "discard by DeadRetention: dead for longer than 1h0m0s", e.Action+" by "+e.Actor+": "+e.Reason)
	assert.Equal(t, admin.Filter{In: in, States: []admin.State{admin.Dead}}, e.Filter)
	assert.EqualValues(t, 1, e.Result.Touched)
	found, err := a.Doctor(t.Context())
	require.NoError(t, err)
	var said []string
	for _, f := range found {
		if f.Check == "dead_discarded" {
			said = append(said, f.Evidence)
		}
	}
	assert.Equal(t, []string{"1 message of the " + in.String() + " discarded by DeadRetention in the last 24 hours"}, said)
}

// TestDeadRetentionOfTheInbox: a redelivered message counts as handled, as after an operator's discard.
func TestDeadRetentionOfTheInbox(t *testing.T) {
	extended(t)
	h := onPgx(t)
	h.exec(t, `insert into inbox (consumer, message_id, attempts, dead_at, last_error)
		values ('s/h', 'old', 3, now() - interval '2 hours', 'why'), ('s/h', 'young', 3, now() - interval '1 minute', 'why')`)
	cfg := quickConfig()
	cfg.CleanInterval, cfg.DeadRetention = 20*time.Millisecond, time.Hour
	startForwarder(t, h, cfg)
	a := newAdmin(t, h)
	eventually(t, func() bool {
		list, err := a.List(t.Context(), admin.Filter{In: admin.Inbox, States: []admin.State{admin.Discarded}}, admin.Page{})
		require.NoError(t, err)
		return len(list.Messages) == 1 && list.Messages[0].UUID == "old"
	}, "the old one is discarded")
	assertDiscardedOnce(t, a, admin.Inbox)
	assert.Equal(t, 1, h.count(t, "select count(*) from inbox where processed_at is null and message_id = 'young'"))
	h.exec(t, "update inbox set processed_at = now() - interval '31 days' where message_id = 'old'")
	eventually(t, func() bool { return h.count(t, "select count(*) from inbox") == 1 }, "it is deleted")
}

// TestDeadRetentionOfTheQueue: retention counts from the death, however old the message is. The role needs an admin's
// grants; without them done messages are still deleted.
func TestDeadRetentionOfTheQueue(t *testing.T) {
	extended(t)
	t.Parallel()
	owner, as := newRoles(t)
	h := as("worker")
	store := newStore(t, h, queue.StoreConfig{DeadRetention: time.Hour, MaxAttempts: 1})
	for _, id := range []string{"old", "young", "done"} {
		_, err := store.Enqueue(t.Context(), item("shop", id))
		require.NoError(t, err)
	}
	me := queue.NewOwner()
	require.Len(t, claimed(t, store, me, 3), 3)
	for _, id := range []string{"old", "young"} {
		_, err := store.Fail(t.Context(), queue.Fail{Owner: me, Reason: "why"}, queue.ID{Source: "shop", MessageID: id})
		require.NoError(t, err)
	}
	_, err := store.Ack(t.Context(), me, queue.ID{Source: "shop", MessageID: "done"})
	require.NoError(t, err)
	owner.exec(t, "update inbox_queue set first_seen_at = now() - interval '1 year', last_seen_at = now() - interval '1 year'")
	owner.exec(t, "update inbox_queue set done_at = now() - interval '1 year' where message_id = 'done'")
	owner.exec(t, `update inbox_queue set history = jsonb_set(history, '{-1,died}', to_jsonb(now() - interval '2 hours'))
		where message_id = 'old'`)

	n, err := store.Clean(t.Context())
	require.ErrorContains(t, err, "an admin, or leave DeadRetention at 0")
	assert.EqualValues(t, 1, n)
	owner.exec(t, `GRANT "`+role(owner)+`admin" TO "`+role(owner)+`worker"`)
	n, err = store.Clean(t.Context())
	require.NoError(t, err)
	assert.Zero(t, n, "it tries again in an hour")
	store = newStore(t, h, queue.StoreConfig{DeadRetention: time.Hour})
	require.ErrorIs(t, outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
		if _, err := store.Clean(ctx); err != nil {
			return err
		}
		return outbox.SetRollbackOnly(ctx)
	}), outbox.ErrRolledBack)
	assertDiscardedOnce(t, newAdmin(t, owner), admin.Queue)
	msg := got(t, store, queue.ID{Source: "shop", MessageID: "old"})
	assert.Equal(t, queue.Done, msg.State)
	assert.Equal(t, "discarded by DeadRetention: dead for longer than 1h0m0s; before: why", msg.LastError)
	assert.Equal(t, queue.Dead, got(t, store, queue.ID{Source: "shop", MessageID: "young"}).State)

	owner.exec(t, "update inbox_queue set done_at = now() - interval '31 days' where message_id = 'old'")
	n, err = store.Clean(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 1, n)
}
