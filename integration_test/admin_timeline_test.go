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
)

// happenings are what a timeline tells, without times.
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

// TestTimeline follows a message that fails, dies, is requeued, is published and replayed.
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
		assert.Equal(t, i < 2, e.Until.After(e.At), "the last one is followed by no other")
	}
	assert.Equal(t, "died", got[4])
	assert.Equal(t, "letter", events[5].What)
	letter, err := a.Get(t.Context(), admin.Outbox, events[5].Letter)
	require.NoError(t, err)
	assert.Equal(t, "dead_letters", letter.Topic)

	w.answers(nil)
	_, err = a.Requeue(t.Context(), admin.Act{Filter: admin.Filter{IDs: []string{id}}, Reason: "mended"})
	require.NoError(t, err)
	w.arrives(t, "bad")
	published := func() bool { return h.count(t, "select count(*) from outbox where published_at is null") == 0 }
	eventually(t, published, "it is published, and its letter")
	_, err = a.Replay(t.Context(), admin.Act{Filter: admin.Filter{IDs: []string{id}}, Reason: "lost"})
	require.NoError(t, err)
	eventually(t, published, "it is published again")
	events, err = a.Timeline(t.Context(), admin.Outbox, id)
	require.NoError(t, err)
	got = happenings(events)
	require.Len(t, got, 10, got)
	assert.Equal(t, []string{"died", "letter | default/f1", "requeue | alice | mended", "published", "replay | alice | lost",
		"published"}, got[4:])
	for i := range events[1:] {
		assert.False(t, events[i+1].At.Before(events[i].At))
	}

	site := newSite(t, h, ui.Access{})
	page := site.get("message?id=" + id)
	require.Equal(t, http.StatusOK, page.status, page.body)
	page.says(t, "timeline", "Timeline",
		"Failed , attempt 2 by f1", "Requeued by alice", "mended", "Replayed", "Published")
	shown := ctl{t: t, url: h.url}.run("messages", "show", id)
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

// TestHistoryIsBounded: of 100 attempts the last 20 are kept, and what succeeds touches none.
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
	var notes []struct {
		Attempt int    `json:"attempt"`
		Error   string `json:"error"`
	}
	require.NoError(t, json.Unmarshal([]byte(value[string](t, h, "select max(history::text) from outbox")), &notes))
	require.Len(t, notes, 20)
	for i, n := range notes {
		assert.Len(t, n.Error, 256)
		assert.Equal(t, notes[0].Attempt+i, n.Attempt)
	}
	for _, statement := range []string{
		sqltext.SettlePublished, sqltext.SettlePublishedDelete, sqltext.SettleSpan, sqltext.SettleSpanDelete,
		sqltext.SettleUnlocked, sqltext.SettleUnlockedDelete, sqltext.InsertMessages,
	} {
		assert.NotContains(t, statement, "history", "what succeeds at first pays nothing")
	}
}
