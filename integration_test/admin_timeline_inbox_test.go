package integration_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/middleware"
)

// refusingUntilMended has the handler shop/book refuse each message until it is mended.
func refusingUntilMended(t testing.TB, h handle, most int) (f *feed, mend func(error)) {
	answer := make(chan error, 1)
	answer <- errors.New("refused " + strings.Repeat("x", 300))
	f = newFeed()
	startRouter(t, func(r *message.Router) {
		r.AddMiddleware(stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{
			Service: "shop", Outcomes: middleware.OutcomesConfig{MaxAttempts: most, MinDeadAge: -1},
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
	t.Parallel()
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
		assert.Equal(t, "letter", events[4].What)

		_, err = a.Redrive(t.Context(), admin.Act{
			Filter: admin.Filter{In: admin.Inbox, IDs: []string{id}}, Reason: "mended",
		})
		require.NoError(t, err)
		letter := events[4].Letter
		mend(errors.New("not quite"))
		assert.False(t, f.deliver(t, bad.Copy()))
		mend(nil)
		assert.True(t, f.deliver(t, bad.Copy()))
		assert.True(t, f.deliver(t, good))
		events, err = a.Timeline(t.Context(), admin.Inbox, id)
		require.NoError(t, err)
		assert.Equal(t, []string{
			"written", "failed 1 | " + refused[:256], "failed 2 | " + refused[:256], "died",
			"letter | shop/book", "redrive | alice | mended", "failed 1 | not quite", "processed",
		}, happenings(events))
		for i := range events[1:] {
			assert.False(t, events[i+1].At.Before(events[i].At), happenings(events)[i+1])
		}

		page := newSite(t, h, ui.Access{}).get("message?in=inbox&id=" + id)
		require.Equal(t, http.StatusOK, page.status, page.body)
		page.says(t, "timeline", "Failed , attempt 2", "Redriven by alice", "not quite", "Processed")
		shown := ctl{t: t, url: h.url}.run("inbox", "show", id) // once, as a pooler keeps what it prepares
		assert.Regexp(t, `redrive +alice +mended; entry 1`, shown.out, shown.err)
		assert.Regexp(t, `(?m)^attempts +1 since the redrive$`, shown.out)
		assert.Regexp(t, `(?m)^written +`+events[0].At.UTC().Format("2006-01-02 15:04:05"), shown.out)
		assert.Contains(t, shown.out, "message "+letter)

		assert.Zero(t, h.count(t, "SELECT count(*) FROM inbox WHERE message_id = $1 AND history IS NOT NULL", good.UUID))
	})
	for _, statement := range []string{sqltext.ClaimInbox, sqltext.InboxHandled, sqltext.UnclaimInbox} {
		assert.NotContains(t, statement, "history", "what succeeds at first pays nothing")
	}
}

// TestTimelineOfWhatIsDiscarded: a failing message of the inbox that is discarded has not died, and a dead one once.
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
		dead.UUID:    {"written", "failed", "failed", "died", "letter", "discard"},
	} {
		id := "shop/book:" + uuid
		m, err := a.Get(t.Context(), admin.Inbox, id)
		require.NoError(t, err)
		r, err := a.Discard(t.Context(), admin.Act{
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

// TestHistoryOfTheInboxIsBounded: of 30 attempts the last 20 are kept.
func TestHistoryOfTheInboxIsBounded(t *testing.T) {
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
