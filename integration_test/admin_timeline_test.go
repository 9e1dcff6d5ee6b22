package integration_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/queue"
)

// happenings returns the events of a timeline, without times.
func happenings(events []admin.Event) (list []string) {
	for _, e := range events {
		s := e.What
		if e.Attempt > 0 {
			s += fmt.Sprint(" ", e.Attempt)
		}
		for _, more := range []string{e.By, e.Error, e.Reason, e.TraceID} {
			if more != "" {
				s += " | " + more
			}
		}
		list = append(list, s)
	}
	return list
}

// TestTimeline follows a message that fails, dies, is requeued, published and replayed.
func TestTimeline(t *testing.T) {
	h := onPgx(t)
	cfg := quickConfig()
	cfg.MaxAttempts, cfg.MinDeadAge, cfg.DeadLetterTopic, cfg.Name = 3, -1, "dead_letters", "f1"
	w := startForwarder(t, h, cfg)
	w.answers(func(topic string, msg *message.Message) error {
		if topic == "orders" && string(msg.Payload) == "bad" {
			return errors.New("refused")
		}
		return nil
	})
	w.publish(t, "orders", "K", "good", "bad")
	dead := func() bool { return h.count(t, "select count(*) from outbox where dead_at is not null") == 1 }
	eventually(t, dead, "it dies")
	a := newAdmin(t, h)
	id := fmt.Sprint(h.count(t, "select id from outbox where dead_at is not null"))
	events, err := a.Timeline(t.Context(), admin.Outbox, id)
	require.NoError(t, err)
	got := happenings(events)
	require.Len(t, got, 6, got)
	assert.Equal(t, "written", got[0])
	for i, e := range events[1:4] {
		assert.Equal(t, []any{"failed", i + 1, "f1"}, []any{e.What, e.Attempt, e.By}, got)
		assert.NotEmpty(t, e.Error)
		assert.Equal(t, i < 2, e.Until.After(e.At), "the last page has no next page")
	}
	assert.Equal(t, "died", got[4])
	assert.Equal(t, "dead_letter", events[5].What)
	deadLetter, err := a.Get(t.Context(), admin.Outbox, events[5].DeadLetter)
	require.NoError(t, err)
	assert.Equal(t, "dead_letters", deadLetter.Topic)

	w.answers(nil)
	_, err = a.Requeue(t.Context(), admin.Action{Filter: admin.Filter{IDs: []string{id}}, Reason: "mended"})
	require.NoError(t, err)
	w.arrives(t, "bad")
	published := func() bool { return h.count(t, "select count(*) from outbox where published_at is null") == 0 }
	eventually(t, published, "the message and its dead letter are published")
	done, err := a.Get(t.Context(), admin.Outbox, id)
	require.NoError(t, err)
	assert.Equal(t, admin.Done, done.State)
	assert.Empty(t, done.LastError+done.ErrorGroup, "the timeline shows it")
	_, err = a.Replay(t.Context(), admin.Action{Filter: admin.Filter{IDs: []string{id}}, Reason: "lost"})
	require.NoError(t, err)
	eventually(t, published, "it is published again")
	events, err = a.Timeline(t.Context(), admin.Outbox, id)
	require.NoError(t, err)
	got = happenings(events)
	require.Len(t, got, 10, got)
	assert.Equal(t, []string{"died", "dead_letter | default/f1", "requeue | alice | mended", "published",
		"replay | alice | lost",
		"published"}, got[4:])
	for i := range events[1:] {
		assert.False(t, events[i+1].At.Before(events[i].At))
	}

	site := newSite(t, h, ui.Access{})
	page := site.get("message?id=" + id)
	require.Equal(t, http.StatusOK, page.status, page.body)
	page.says(t, "timeline", "Timeline",
		"Failed , attempt 2 by f1", "Requeued by alice", "mended", "Replayed", "Published")
	shown := ctl{t: t, url: h.url}.run("outbox", "show", id)
	assert.Regexp(t, `failed, attempt 2 +f1 `, shown.out)
	assert.Regexp(t, `requeue +alice +mended; entry 1`, shown.out)

	good := fmt.Sprint(h.count(t, "select min(id) from outbox"))
	assert.Zero(t, h.count(t, "select count(*) from outbox where id = $1::bigint and history is not null", good))
	events, err = a.Timeline(t.Context(), admin.Outbox, good)
	require.NoError(t, err)
	assert.Equal(t, []string{"written", "published"}, happenings(events))
	_, err = a.Timeline(t.Context(), admin.Outbox, "4711")
	assert.ErrorIs(t, err, admin.ErrNotFound)
}

// TestHistoryIsBounded: the last 20 of 25 or more attempts are kept, and a successful publish writes none.
func TestHistoryIsBounded(t *testing.T) {
	h := onPgx(t)
	cfg := quickConfig()
	cfg.Backoff.Initial, cfg.Backoff.Max = time.Millisecond, time.Millisecond
	w := startForwarder(t, h, cfg)
	w.answers(func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "bad" {
			return fmt.Errorf("attempt failed: %s", strings.Repeat("x", 2000))
		}
		return nil
	})
	w.publish(t, "orders", "K", "bad")
	w.publish(t, "orders", "other", "good")
	eventually(t, func() bool { return h.count(t, "select max(attempts) from outbox") >= 25 }, "it fails")
	var history []struct {
		Attempt int    `json:"attempt"`
		Error   string `json:"error"`
	}
	require.NoError(t, json.Unmarshal([]byte(value[string](t, h, "select max(history::text) from outbox")), &history))
	require.Len(t, history, 20)
	for i, n := range history {
		assert.Len(t, n.Error, 256)
		assert.Equal(t, history[0].Attempt+i, n.Attempt)
	}
	for _, statement := range []string{
		sqltext.SettlePublished, sqltext.SettlePublishedDelete, sqltext.SettleSpan, sqltext.SettleSpanDelete,
		sqltext.SettleUnlocked, sqltext.SettleUnlockedDelete, sqltext.InsertMessages,
	} {
		assert.NotContains(t, statement, "history", "a first attempt that succeeds writes no history")
	}
}

// refusingUntilMended starts the handler shop/book, which refuses each message until mend is called.
func refusingUntilMended(t testing.TB, h handle, most int) (f *feed, mend func(error)) {
	answer := make(chan error, 1)
	answer <- errors.New("refused " + strings.Repeat("x", 300))
	f = newFeed()
	startRouter(t, func(r *message.Router) {
		r.AddMiddleware(stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{
			Service: "shop", ErrorHandler: middleware.ErrorHandlerConfig{MaxAttempts: most, MinDeadAge: -1},
		}, nil)...)
		r.AddConsumerHandler("book", "orders", f, func(*message.Message) error {
			err := <-answer
			answer <- err
			return err
		})
	})
	return f, func(err error) {
		<-answer
		answer <- err
	}
}

// TestTimelineOfTheInbox follows a message that fails, dies, is redriven, fails and is handled.
func TestTimelineOfTheInbox(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		f, mend := refusingUntilMended(t, h, 2)
		refused := "refused " + strings.Repeat("x", 300)
		bad, good := newMessage("bad"), newMessage("good")
		assert.False(t, f.deliver(t, bad.Copy()))
		assert.True(t, f.deliver(t, bad.Copy()), "it dies")
		a, id := newAdmin(t, h), "shop/book:"+bad.UUID
		events, err := a.Timeline(t.Context(), admin.Inbox, id)
		require.NoError(t, err)
		got := happenings(events)
		require.Len(t, got, 5, got)
		assert.Equal(t, []string{"written", "failed 1 | " + refused[:256], "failed 2 | " + refused, "died"}, got[:4])
		assert.Equal(t, "dead_letter", events[4].What)

		_, err = a.Redrive(t.Context(), admin.Action{
			Filter: admin.Filter{In: admin.Inbox, IDs: []string{id}}, Reason: "mended",
		})
		require.NoError(t, err)
		deadLetter := events[4].DeadLetter
		mend(errors.New("not quite"))
		assert.False(t, f.deliver(t, bad.Copy()))
		mend(nil)
		assert.True(t, f.deliver(t, bad.Copy()))
		assert.True(t, f.deliver(t, good))
		events, err = a.Timeline(t.Context(), admin.Inbox, id)
		require.NoError(t, err)
		assert.Equal(t, []string{
			"written", "failed 1 | " + refused[:256], "failed 2 | " + refused[:256], "died",
			"dead_letter | shop/book", "redrive | alice | mended", "failed 1 | not quite", "processed",
		}, happenings(events))
		for i := range events[1:] {
			assert.False(t, events[i+1].At.Before(events[i].At), happenings(events)[i+1])
		}

		page := newSite(t, h, ui.Access{}).get("message?in=inbox&id=" + id)
		require.Equal(t, http.StatusOK, page.status, page.body)
		page.says(t, "timeline", "Failed , attempt 2", "Redriven by alice", "not quite", "Processed")
		shown := ctl{t: t, url: h.url}.run("inbox", "show", id) // once: poolers keep prepared statements
		assert.Regexp(t, `redrive +alice +mended; entry 1`, shown.out, shown.err)
		assert.Regexp(t, `(?m)^attempts +1 since the redrive$`, shown.out)
		assert.Regexp(t, `(?m)^written +`+events[0].At.UTC().Format("2006-01-02 15:04:05"), shown.out)
		assert.Contains(t, shown.out, "message "+deadLetter)

		assert.Zero(t, h.count(t, "SELECT count(*) FROM inbox WHERE message_id = $1 AND history IS NOT NULL", good.UUID))
	})
	for _, statement := range []string{sqltext.ClaimInbox, sqltext.InboxHandled, sqltext.UnclaimInbox} {
		assert.NotContains(t, statement, "history", "a first attempt that succeeds writes no history")
	}
}

// TestTimelineOfWhatIsDiscarded: the timeline of a discarded message of the inbox shows a death if the message was
// dead, but not if it was failing.
func TestTimelineOfWhatIsDiscarded(t *testing.T) {
	h := onPgx(t)
	f, _ := refusingUntilMended(t, h, 2)
	failing, dead := newMessage("failing"), newMessage("dead")
	assert.False(t, f.deliver(t, failing))
	assert.False(t, f.deliver(t, dead.Copy()))
	assert.True(t, f.deliver(t, dead.Copy()))
	a := newAdmin(t, h)
	for uuid, want := range map[string][]string{
		failing.UUID: {"written", "failed", "discard"},
		dead.UUID:    {"written", "failed", "failed", "died", "dead_letter", "discard"},
	} {
		id := "shop/book:" + uuid
		m, err := a.Get(t.Context(), admin.Inbox, id)
		require.NoError(t, err)
		r, err := a.Discard(t.Context(), admin.Action{
			Filter: admin.Filter{In: admin.Inbox, IDs: []string{id}, States: []admin.State{m.State}}, Reason: "not wanted",
		})
		require.NoError(t, err)
		require.EqualValues(t, 1, r.Touched)
		events, err := a.Timeline(t.Context(), admin.Inbox, id)
		require.NoError(t, err)
		var got []string
		for _, e := range events {
			got = append(got, e.What)
		}
		assert.Equal(t, want, got)
	}
}

// TestHistoryOfTheInboxIsBounded: the last 20 of 30 attempts are kept.
func TestHistoryOfTheInboxIsBounded(t *testing.T) {
	extended(t)
	h := onPgx(t)
	f, mend := refusingUntilMended(t, h, -1)
	bad := newMessage("bad")
	for i := range 30 {
		mend(fmt.Errorf("error %d", i+1))
		assert.False(t, f.deliver(t, bad.Copy()))
	}
	assert.Equal(t, 20, h.count(t, "SELECT jsonb_array_length(history) FROM inbox"))
	events, err := newAdmin(t, h).Timeline(t.Context(), admin.Inbox, "shop/book:"+bad.UUID)
	require.NoError(t, err)
	assert.Equal(t, "failed 11 | error 11", happenings(events)[1])
}

// dueNow makes waiting messages of the queue due and expires the leases of claimed ones.
const dueNow = `UPDATE inbox_queue SET due_at = now(), locked_until = now() - interval '1 second'
	WHERE state = 'processing'`

// TestTimelineOfTheQueue follows a message that fails, dies, is requeued, loses its lease and is processed.
func TestTimelineOfTheQueue(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		s := storeOn(t, h, queue.StoreConfig{MaxAttempts: 2})
		_, err := s.Enqueue(t.Context(), item("shop", "bad"), item("shop", "good"))
		require.NoError(t, err)
		owner, bad := queue.NewOwner(), queue.ID{Source: "shop", MessageID: "bad"}
		require.Len(t, claimed(t, s, owner, 10), 2)
		settles(t, 1)(s.Ack(t.Context(), owner, queue.ID{Source: "shop", MessageID: "good"}))
		refused := "refused " + strings.Repeat("x", 300)
		settles(t, 1)(s.Abandon(t.Context(), owner, refused, time.Hour, bad))
		h.exec(t, dueNow)
		require.Len(t, claimed(t, s, owner, 10), 1)
		settles(t, 1)(s.Abandon(t.Context(), owner, refused, 0, bad))
		a := newAdmin(t, h)
		events, err := a.Timeline(t.Context(), admin.Queue, "shop:bad")
		require.NoError(t, err)
		got := happenings(events)
		require.Equal(t,
			[]string{"written", "failed 1 | " + refused[:256], "failed 2 | " + refused, "died"}, got)
		assert.Equal(t, time.Hour, events[1].Until.Sub(events[1].At))
		assert.Zero(t, events[2].Until, "the last page has no next page")

		_, err = a.Requeue(t.Context(), admin.Action{
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
		sqltext.AckMessages, sqltext.AckInTx, sqltext.ReleaseMessages, sqltext.MarkProcessed,
	} {
		assert.NotContains(t, statement, "history", "uncharged attempts and first successes write no history")
	}
}

// TestDeathsInTheQueue: a timeline shows when and why a message died without a failed attempt.
func TestDeathsInTheQueue(t *testing.T) {
	h := onPgx(t)
	s, owner, a := storeOn(t, h, queue.StoreConfig{}), queue.NewOwner(), newAdmin(t, h)
	late := item("shop", "late")
	late.ExpiresAt = time.Now().Add(time.Hour)
	_, err := s.Enqueue(t.Context(), late, item("shop", "failed"), item("shop", "marked"))
	require.NoError(t, err)
	h.exec(t, "UPDATE inbox_queue SET expires_at = now() - interval '1 second' WHERE message_id = 'late'")
	_, err = s.ReapExpired(t.Context())
	require.NoError(t, err)
	require.Len(t, claimed(t, s, owner, 10), 2)
	of := func(id string) queue.ID { return queue.ID{Source: "shop", MessageID: id} }
	settles(t, 1)(s.Fail(t.Context(), owner, "poison", of("failed")))
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

// TestHistoryOfTheQueueIsBounded: the last 20 of 30 attempts are kept.
func TestHistoryOfTheQueueIsBounded(t *testing.T) {
	extended(t)
	h := onPgx(t)
	s, owner := storeOn(t, h, queue.StoreConfig{MaxAttempts: -1}), queue.NewOwner()
	_, err := s.Enqueue(t.Context(), item("shop", "bad"))
	require.NoError(t, err)
	for i := range 30 {
		h.exec(t, dueNow)
		require.Len(t, claimed(t, s, owner, 1), 1)
		settles(t, 1)(s.Abandon(t.Context(), owner, fmt.Sprint("error ", i+1), 0,
			queue.ID{Source: "shop", MessageID: "bad"}))
	}
	assert.Equal(t, 20, h.count(t, "SELECT jsonb_array_length(history) FROM inbox_queue"))
	events, err := newAdmin(t, h).Timeline(t.Context(), admin.Queue, "shop:bad")
	require.NoError(t, err)
	assert.Equal(t, "failed 11 | error 11", happenings(events)[1])
}
