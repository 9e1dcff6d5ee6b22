package integration_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/clean"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
)

func txInbox(t testing.TB, h handle, cfg middleware.InboxConfig) []message.HandlerMiddleware {
	t.Helper()
	return []message.HandlerMiddleware{newTx(t, h, middleware.TxConfig{}), newInbox(t, h, cfg)}
}

// TestInboxHandlesAMessageOnce delivers a message that failed once, and then again and again: its handler's writes are
// there once, and each consumer handles it separately.
func TestInboxHandlesAMessageOnce(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		obs := &seen{}
		mws := []message.HandlerMiddleware{
			newTx(t, h.seenBy(t, obs), middleware.TxConfig{}),
			newInbox(t, h, middleware.InboxConfig{}),
		}
		msg := newMessage("")
		_, err := chain(failing(bookSilently(h), errHandler), mws...)(msg)
		require.ErrorIs(t, err, errHandler, "a failed attempt does not count")
		for range 3 {
			_, err := chain(bookSilently(h), mws...)(msg.Copy())
			require.NoError(t, err)
		}
		assert.Equal(t, 1, effects(t, h, msg))
		assert.Equal(t, []observe.Outcome{observe.Failed, observe.Processed, observe.Duplicate, observe.Duplicate},
			obs.outcomes())

		_, err = chain(bookSilently(h), txInbox(t, h, middleware.InboxConfig{Consumer: "another"})...)(msg.Copy())
		require.NoError(t, err)
		assert.Equal(t, 2, effects(t, h, msg), "each consumer handles it")
	})
}

// TestInboxConcurrentDeliveriesApplyOnce delivers a message eight times concurrently at each isolation level: it is
// applied once, and if the first delivery fails another one takes over.
func TestInboxConcurrentDeliveriesApplyOnce(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		levels := []sql.IsolationLevel{sql.LevelDefault, sql.LevelRepeatableRead, sql.LevelSerializable}
		for round := range 2 * len(levels) {
			level := levels[round/2]
			msg := newMessage(fmt.Sprint(round))
			inside := make(chan struct{}, 8)
			goOn := make(chan struct{})
			var fails atomic.Bool
			fails.Store(round%2 == 1) // the first fails and another must take over
			handler := chain(func(msg *message.Message) ([]*message.Message, error) {
				inside <- struct{}{}
				<-goOn
				produced, err := book(h)(msg)
				if fails.Swap(false) {
					return nil, errHandler
				}
				return produced, err
			}, stack(t, h, middleware.StackConfig{Tx: middleware.TxConfig{Isolation: level}})...)
			before := outboxed(t, h)
			var failures atomic.Int32
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					if _, err := handler(msg.Copy()); err != nil {
						failures.Add(1)
					}
				})
			}
			<-inside
			h.reaches(t, 7, "the other copies wait for the first",
				`select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%inbox%'
					and datname = current_database()`)
			close(goOn)
			wg.Wait()
			assert.Equal(t, 1, effects(t, h, msg), level)
			assert.Equal(t, before+1, outboxed(t, h), level)
			assert.EqualValues(t, round%2, failures.Load(), level)
		}
	})
}

func TestInboxKey(t *testing.T) {
	h := onPgx(t)
	byOrder := middleware.InboxConfig{Key: func(msg *message.Message) (string, error) {
		return msg.Metadata.Get("order"), nil
	}}
	first, second := newMessage(""), newMessage("")
	first.Metadata.Set("order", "7")
	second.Metadata.Set("order", "7")
	for _, msg := range []*message.Message{first, second} {
		_, err := chain(bookSilently(h), txInbox(t, h, byOrder)...)(msg)
		require.NoError(t, err)
	}
	assert.Equal(t, []int{1, 0}, []int{effects(t, h, first), effects(t, h, second)})

	for name, key := range map[string]string{
		"missing": "", "NUL": "a\x00", "UTF-8": "\xff", "long": strings.Repeat("k", 1024+1),
	} {
		msg := message.NewMessage(key, nil)
		_, err := chain(bookSilently(h), txInbox(t, h, middleware.InboxConfig{})...)(msg)
		require.ErrorIs(t, err, outbox.ErrPoison, name)
	}
	longest := message.NewMessage(strings.Repeat("k", 1024), nil)
	_, err := chain(bookSilently(h), txInbox(t, h, middleware.InboxConfig{})...)(longest)
	require.NoError(t, err)
}

func TestInboxNeedsWhatIsAroundIt(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		msg := newMessage("")
		nameless, err := middleware.Inbox(h.db, middleware.InboxConfig{Service: "shop"}, nil)
		require.NoError(t, err)
		_, err = chain(bookSilently(h), newTx(t, h, middleware.TxConfig{}), nameless)(msg)
		require.ErrorContains(t, err, "InboxConfig.Consumer")

		other := openHandles(t, h.url)[0]
		_, err = chain(bookSilently(h), newTx(t, h, middleware.TxConfig{}), newInbox(t, other, middleware.InboxConfig{}))(msg)
		require.ErrorIs(t, err, outbox.ErrOtherDB)
		require.ErrorContains(t, err, "one handle")

		_, err = chain(book(h), txInbox(t, h, middleware.InboxConfig{})...)(msg)
		require.ErrorContains(t, err, "middleware.Outbox", "the Router would publish what it returned after the commit")

		_, err = chain(bookSilently(h), txInbox(t, h.with(t, sqltext.Tables{Inbox: "nowhere"}), middleware.InboxConfig{})...)(
			msg)
		require.ErrorContains(t, err, "schema.Migrate")

		assert.Zero(t, effects(t, h, msg))
		assert.Zero(t, h.count(t, "select count(*) from inbox"), "nothing is half done")
	})
}

// TestInboxPassedTwice: if a middleware repeats the handler inside the transaction, the inbox must not mistake its own
// row for a duplicate.
func TestInboxPassedTwice(t *testing.T) {
	h := onPgx(t)
	msg := newMessage("")
	once := newInbox(t, h, middleware.InboxConfig{})
	_, err := chain(bookSilently(h), newTx(t, h, middleware.TxConfig{}), once, once)(msg)
	require.ErrorContains(t, err, "twice")

	retry := func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if produced, err := next(msg); err == nil {
				return produced, nil
			}
			return next(msg)
		}
	}
	failOnce := func() message.HandlerFunc {
		calls := 0
		return func(msg *message.Message) ([]*message.Message, error) {
			if calls++; calls == 1 {
				return nil, errHandler
			}
			return nil, write(h, msg)
		}
	}
	_, err = chain(failOnce(), newTx(t, h, middleware.TxConfig{}), retry, once)(msg)
	require.ErrorContains(t, err, "twice")
	assert.Zero(t, effects(t, h, msg))
	assert.Zero(t, h.count(t, "select count(*) from inbox"))

	for _, outside := range [][]message.HandlerMiddleware{
		append([]message.HandlerMiddleware{retry}, stack(t, h, middleware.StackConfig{})...),
		append(append([]message.HandlerMiddleware{}, stack(t, h, middleware.StackConfig{})[0], retry),
			stack(t, h, middleware.StackConfig{})[1:]...),
	} {
		msg := newMessage("")
		_, err = chain(failOnce(), outside...)(msg)
		require.NoError(t, err)
		assert.Equal(t, 1, effects(t, h, msg))
	}
}

func TestInboxContentCheck(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		obs := &seen{}
		var told []string
		handler := chain(bookSilently(h), txInbox(t, h.seenBy(t, obs), middleware.InboxConfig{
			CheckContent: true,
			OnMismatch: func(_ context.Context, msg *message.Message) error {
				told = append(told, string(msg.Payload))
				return nil
			},
		})...)
		msg := newMessage("content")
		other := message.NewMessage(msg.UUID, []byte("other content"))
		for _, m := range []*message.Message{msg, msg.Copy(), other} {
			_, err := handler(m)
			require.NoError(t, err, "a mismatch is acked nevertheless")
		}
		assert.Equal(t, 1, effects(t, h, msg))
		assert.Equal(t, []string{"other content"}, told)
		assert.Equal(t, []observe.Outcome{observe.Processed, observe.Duplicate, observe.Mismatch, observe.Duplicate},
			obs.outcomes())

		unchecked := newMessage("content") // recorded without a hash
		_, err := chain(bookSilently(h), txInbox(t, h, middleware.InboxConfig{})...)(unchecked)
		require.NoError(t, err)
		_, err = handler(message.NewMessage(unchecked.UUID, []byte("whatever")))
		require.NoError(t, err)
		assert.Len(t, told, 1)
	})
}

func TestInboxWithOtherTables(t *testing.T) {
	h := onPgx(t)
	names := sqltext.Tables{Schema: "Shop", Outbox: "shop-out", Inbox: "shop-in"}
	h.exec(t, `create schema "Shop"`)
	require.NoError(t, makeTables(t.Context(), h.with(t, names).db))
	handler := book(h)
	mws := stackFor(t, newOutboxPublisher(t, h.with(t, names)), middleware.StackConfig{
		Inbox: middleware.InboxConfig{Consumer: "test"}, Outbox: middleware.OutboxConfig{Topic: "events"},
	}, nil)
	_, err := chain(handler, mws...)(newMessage(""))
	require.NoError(t, err)
	_, err = chain(failing(handler, outbox.Poison(errHandler)), mws...)(newMessage(""))
	require.NoError(t, err)
	assert.Equal(t, 2, h.count(t, `select count(*) from "Shop"."shop-in"`))
	assert.Equal(t, 2, h.count(t, `select count(*) from "Shop"."shop-out"`))
	assert.Zero(t, outboxed(t, h)+h.count(t, "select count(*) from inbox"))
}

// agedInbox inserts each inbox rows of each kind.
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

// cleanings is an observer of clean-ups.
type cleanings struct {
	deaf
	ends chan meter.CleanEnd
}

func (c cleanings) CleanEnd(_ context.Context, end meter.CleanEnd) { c.ends <- end }

func TestForwarderCleansTheInbox(t *testing.T) {
	h := onPgx(t)
	cleaned := cleanings{ends: make(chan meter.CleanEnd, 100)}
	h = h.seenBy(t, cleaned)
	agedInbox(t, h, clean.Batch+10) // more than one statement deletes
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
	h.reaches(t, 0, "it continues", "select count(*) from inbox where message_id = 'new1'")
}

func TestCleaningTheInbox(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		agedInbox(t, h, 25)
		db := (*core.DB)(h.db)
		n, err := clean.Inbox(t.Context(), db, 32*24*time.Hour, "", patience, nil)
		require.NoError(t, err)
		require.Zero(t, n)
		n, err = clean.Inbox(t.Context(), db, 30*24*time.Hour, "", patience, nil)
		require.NoError(t, err)
		assert.EqualValues(t, 50, n)
		assert.Equal(t, []string{"dead", "failing", "new"}, inboxKinds(t, h))

		nowhere := (*core.DB)(h.with(t, sqltext.Tables{Inbox: "nowhere"}).db)
		_, err = clean.Inbox(t.Context(), nowhere, time.Hour, "", patience, nil)
		require.ErrorContains(t, err, "schema.Migrate")
	})
}

// TestCleaningKeepsWhatStillFails: a failing message dies MinDeadAge after its first failure, which may be longer than
// the retention, so its failures are remembered as long as it is redelivered.
func TestCleaningKeepsWhatStillFails(t *testing.T) {
	h := onPgx(t)
	failed := func(ago string) {
		h.exec(t, "update inbox set history = jsonb_build_array(jsonb_build_object('at', now() - interval '"+ago+"'))")
	}
	h.exec(t, "insert into inbox (consumer, message_id, received_at, attempts) "+
		"values ('c', '1', now() - interval '2 h', 9)")
	failed("1 minute")
	cleaned := func() int64 {
		n, err := clean.Inbox(t.Context(), (*core.DB)(h.db), time.Hour, "", patience, nil)
		require.NoError(t, err)
		return n
	}
	require.Zero(t, cleaned())
	failed("61 minutes")
	require.EqualValues(t, 1, cleaned())
}

// The role may lack grants on the inbox, because its forwarder is not meant to touch it.
func TestInboxRetentionOff(t *testing.T) {
	h := onPgx(t)
	agedInbox(t, h, 5)
	cfg := quickConfig()
	cfg.CleanInterval, cfg.InboxRetention, cfg.Retention = 10*time.Millisecond, -1, time.Minute
	h.publish(t, "orders", "", "1") // the clean-up skips a row that is not committed yet, for an hour
	w := startForwarder(t, h, cfg)
	w.arrives(t, "1")
	h.reaches(t, 1, "it is settled", "select count(*) from outbox where published_at is not null")
	h.exec(t, "update outbox set published_at = published_at - interval '1 hour'")
	eventually(t, func() bool { return outboxed(t, h) == 0 }, "the outbox is cleaned")
	assert.Len(t, inboxKinds(t, h), 5)

	limited := newPgxHandle(t, h.url+"&role="+newRole(t, h))
	_, err := clean.Inbox(t.Context(), (*core.DB)(limited.db), time.Hour, "", patience, nil)
	require.ErrorContains(t, err, "InboxRetention")
}
