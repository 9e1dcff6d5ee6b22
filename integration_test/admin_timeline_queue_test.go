package integration_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/queue"
)

// dueNow has what waits in the queue fall due, and what is claimed lose its lease.
const dueNow = `UPDATE inbox_queue SET due_at = now(), locked_until = now() - interval '1 second'
	WHERE state = 'processing'`

// TestTimelineOfTheQueue follows a message that fails, dies, is requeued, loses its lease and is processed.
func TestTimelineOfTheQueue(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		s := newStore(t, h, queue.StoreConfig{MaxAttempts: 2})
		_, err := s.Enqueue(t.Context(), item("shop", "bad"), item("shop", "good"))
		require.NoError(t, err)
		owner, bad := queue.NewOwner(), queue.ID{Source: "shop", MessageID: "bad"}
		require.Len(t, claimed(t, s, owner, 10), 2)
		settles(t, 1)(s.Ack(t.Context(), owner, queue.ID{Source: "shop", MessageID: "good"}))
		refused := "refused " + strings.Repeat("x", 300)
		settles(t, 1)(s.Abandon(t.Context(), queue.Abandon{Owner: owner, Err: refused, Delay: time.Hour}, bad))
		h.exec(t, dueNow)
		require.Len(t, claimed(t, s, owner, 10), 1)
		settles(t, 1)(s.Abandon(t.Context(), queue.Abandon{Owner: owner, Err: refused}, bad))
		a := newAdmin(t, h)
		events, err := a.Timeline(t.Context(), admin.Queue, "shop:bad")
		require.NoError(t, err)
		got := happenings(events)
		require.Equal(t,
			[]string{"written", "failed 1 | " + refused[:256], "failed 2 | " + refused, "died"}, got)
		assert.Equal(t, time.Hour, events[1].Until.Sub(events[1].At))
		assert.Zero(t, events[2].Until, "the last one is followed by no other")

		_, err = a.Requeue(t.Context(), admin.Act{
			Filter: admin.Filter{In: admin.Queue, IDs: []string{"shop:bad"}}, Reason: "mended",
		})
		require.NoError(t, err)
		require.Len(t, claimed(t, s, owner, 10), 1)
		h.exec(t, dueNow)
		n, err := s.ReapExpired(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, n)
		h.exec(t, dueNow)
		require.Len(t, claimed(t, s, owner, 10), 1)
		settles(t, 1)(s.Ack(t.Context(), owner, bad))
		events, err = a.Timeline(t.Context(), admin.Queue, "shop:bad")
		require.NoError(t, err)
		require.Equal(t,
			[]string{"died", "requeue | alice | mended", "failed 1 | lease expired", "processed"}, happenings(events)[3:])

		page := newSite(t, h, ui.Access{}).get("message?in=queue&id=shop:bad")
		require.Equal(t, http.StatusOK, page.status, page.body)
		page.says(t, "timeline", "Failed , attempt 2", "Requeued by alice", "lease expired", "Processed")
		assert.Regexp(t, `requeue +alice +mended; entry 1`,
			ctl{t: t, url: h.url}.run("queue", "show", "shop:bad").out)

		assert.Zero(t, h.count(t, "SELECT count(*) FROM inbox_queue WHERE message_id = 'good' AND history IS NOT NULL"))
		events, err = a.Timeline(t.Context(), admin.Queue, "shop:good")
		require.NoError(t, err)
		assert.Equal(t, []string{"written", "processed"}, happenings(events))
	})
	for _, statement := range []string{
		sqltext.EnqueueMessages, sqltext.ClaimReady, sqltext.ClaimTopics, sqltext.ClaimPages, sqltext.RenewLeases,
		sqltext.AckMessages, sqltext.AckMessage, sqltext.ReleaseMessages, sqltext.MarkProcessed,
	} {
		assert.NotContains(t, statement, "history", "what succeeds at first, and what is not charged, pays nothing")
	}
}

// TestDeathsInTheQueue: a timeline says when and why a message died that no attempt has killed.
func TestDeathsInTheQueue(t *testing.T) {
	h := onPgx(t)
	s, owner, a := newStore(t, h, queue.StoreConfig{}), queue.NewOwner(), newAdmin(t, h)
	late := item("shop", "late")
	late.ExpiresAt = time.Now().Add(time.Hour)
	_, err := s.Enqueue(t.Context(), late, item("shop", "failed"), item("shop", "marked"))
	require.NoError(t, err)
	h.exec(t, "UPDATE inbox_queue SET expires_at = now() - interval '1 second' WHERE message_id = 'late'")
	_, err = s.ReapExpired(t.Context())
	require.NoError(t, err)
	require.Len(t, claimed(t, s, owner, 10), 2)
	of := func(id string) queue.ID { return queue.ID{Source: "shop", MessageID: id} }
	settles(t, 1)(s.Fail(t.Context(), queue.Fail{Owner: owner, Reason: "poison"}, of("failed")))
	require.NoError(t, s.MarkDead(t.Context(), of("marked"), "by hand"))
	for id, want := range map[string][]string{
		"late":   {"written", "died | expired"},
		"failed": {"written", "failed 1 | poison", "died"},
		"marked": {"written", "died | by hand"},
	} {
		events, err := a.Timeline(t.Context(), admin.Queue, "shop:"+id)
		require.NoError(t, err)
		assert.Equal(t, want, happenings(events))
		assert.WithinDuration(t, time.Now(), events[len(events)-1].At, time.Minute)
	}
}

// TestHistoryOfTheQueueIsBounded: of 30 attempts the last 20 are kept.
func TestHistoryOfTheQueueIsBounded(t *testing.T) {
	h := onPgx(t)
	s, owner := newStore(t, h, queue.StoreConfig{MaxAttempts: -1}), queue.NewOwner()
	_, err := s.Enqueue(t.Context(), item("shop", "bad"))
	require.NoError(t, err)
	for i := range 30 {
		h.exec(t, dueNow)
		require.Len(t, claimed(t, s, owner, 1), 1)
		settles(t, 1)(s.Abandon(t.Context(), queue.Abandon{Owner: owner, Err: fmt.Sprint("error ", i+1)},
			queue.ID{Source: "shop", MessageID: "bad"}))
	}
	assert.Equal(t, 20, h.count(t, "SELECT jsonb_array_length(history) FROM inbox_queue"))
	events, err := newAdmin(t, h).Timeline(t.Context(), admin.Queue, "shop:bad")
	require.NoError(t, err)
	assert.Equal(t, "failed 11 | error 11", happenings(events)[1])
}
