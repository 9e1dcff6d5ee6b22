package integration_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestStoreJoinsTransactions: everything a store does in the caller's transaction is committed or rolled back with it.
func TestStoreJoinsTransactions(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		store, owner := storeOn(t, h, queue.StoreConfig{Retention: time.Nanosecond}), queue.NewOwner()
		id := item("shop", "a").ID
		state := func(ctx context.Context) string {
			return value[string](t, h, "select coalesce(min(q::text), 'none') from inbox_queue q where message_id = 'a'")
		}
		claim := func(ctx context.Context) error {
			msgs, err := store.Claim(ctx, queue.Claim{Owner: owner, LeaseTTL: time.Minute, Limit: 1})
			assert.Len(t, msgs, 1)
			return err
		}
		counted := func(n int, err error) error { assert.Equal(t, 1, n); return err }
		for _, step := range []struct {
			name string
			call func(ctx context.Context) error
			then string // prepares the next step
		}{
			{"see", func(ctx context.Context) error { _, err := store.AlreadyProcessed(ctx, id, nil); return err }, ""},
			{"enqueue", func(ctx context.Context) error { _, err := store.Enqueue(ctx, item("shop", "a")); return err }, ""},
			{"claim", claim, ""},
			{"renew", func(ctx context.Context) error {
				ours, err := store.Renew(ctx, owner, time.Hour, id)
				assert.Len(t, ours, 1)
				return err
			}, ""},
			{"release", func(ctx context.Context) error { return counted(store.Release(ctx, owner, id)) }, ""},
			{"claim again", claim, ""},
			{"abandon", func(ctx context.Context) error { return counted(store.Abandon(ctx, owner, "", 0, id)) },
				"update inbox_queue set due_at = clock_timestamp()"},
			{"claim for the third time", claim, "update inbox_queue set locked_until = '2020-01-01'"},
			{"reap", func(ctx context.Context) error { return counted(store.ReapExpired(ctx)) },
				"update inbox_queue set due_at = clock_timestamp(), crashes = 0"},
			{"claim for the last time", claim, ""},
			{"fail", func(ctx context.Context) error { return counted(store.Fail(ctx, owner, "", id)) }, ""},
			{"mark processing", func(ctx context.Context) error { return store.MarkProcessing(ctx, id) }, ""},
			{"mark dead", func(ctx context.Context) error { return store.MarkDead(ctx, id, "why") }, ""},
			{"mark processed", func(ctx context.Context) error { return store.MarkProcessed(ctx, id) }, ""},
			{"clean", func(ctx context.Context) error { _, err := store.Clean(ctx); return err }, ""},
		} {
			before := state(t.Context())
			end := openTx(t, h, step.call)
			assert.Equal(t, before, state(t.Context()), "%s is visible before its commit", step.name)
			end(false)
			assert.Equal(t, before, state(t.Context()), "%s is not rolled back", step.name)
			end = openTx(t, h, step.call)
			end(true)
			assert.NotEqual(t, before, state(t.Context()), "%s did nothing", step.name)
			if step.then != "" {
				h.exec(t, step.then)
			}
		}
	})
}

// TestStoreInAnotherTransaction: with a transaction of another database, or one that has ended, a store returns an
// error and does nothing.
func TestStoreInAnotherTransaction(t *testing.T) {
	parallel(t)
	url := newMigratedDatabase(t)
	h, other := newPgxHandle(t, url), newPgxHandle(t, url)
	store := storeOn(t, h, queue.StoreConfig{})
	var ended context.Context
	require.NoError(t, outbox.InTx(t.Context(), other.db, func(ctx context.Context) error {
		_, err := store.Enqueue(ctx, item("shop", "a"))
		require.ErrorIs(t, err, outbox.ErrOtherDB)
		_, err = store.Claim(ctx, queue.Claim{Owner: queue.NewOwner(), LeaseTTL: time.Minute, Limit: 1})
		require.ErrorIs(t, err, outbox.ErrOtherDB)
		_, err = store.Ack(ctx, queue.NewOwner(), item("shop", "a").ID)
		require.ErrorIs(t, err, outbox.ErrOtherDB)
		return nil
	}))
	require.NoError(t, outbox.InTx(t.Context(), h.db, func(ctx context.Context) error { ended = ctx; return nil }))
	_, err := store.Enqueue(ended, item("shop", "a"))
	require.ErrorIs(t, err, outbox.ErrNoTx)
	require.ErrorIs(t, err, outbox.ErrTxEnded)
	_, err = store.Get(t.Context(), item("shop", "a").ID)
	require.ErrorIs(t, err, queue.ErrNotFound)
}

// TestEnqueueStoresAllOrNone: without a transaction, a call that fails after some messages were written stores none of
// them. A trigger keeps one from being stored, which a second statement finds out.
func TestEnqueueStoresAllOrNone(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, queue.StoreConfig{HashContent: true})
	h.exec(t, `create function swallow() returns trigger language plpgsql as $$ begin return null; end $$;
		create trigger swallow before insert on inbox_queue for each row when (new.message_id = 'b')
		execute function swallow()`)
	_, err := s.Enqueue(t.Context(), item("shop", "a"), item("shop", "b"), item("shop", "c"))
	require.ErrorIs(t, err, outbox.ErrNotStored)
	assert.Zero(t, h.count(t, "select count(*) from inbox_queue"))

	storeAll(t, s, queue.Item{ID: queue.ID{Source: "orders", MessageID: "busy"}, Topic: "orders", Payload: []byte("1")})
	require.Len(t, claimed(t, s, queue.NewOwner(), 10), 1)
	err = newQueuePublisher(t, s, outbox.OwnTx).Publish("orders", message.NewMessage("one", nil),
		message.NewMessage("busy", []byte("2")))
	require.ErrorContains(t, err, "send it again")
	assert.Equal(t, 1, h.count(t, "select count(*) from inbox_queue"), "the other message of the call is not stored")
}

// TestConflictsAreNotTheCallers: a call outside a transaction is tried again after a deadlock or a serialization
// failure, however many messages it stores. In the caller's transaction, which they abort, they are the caller's.
func TestConflictsAreNotTheCallers(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, queue.StoreConfig{})
	pub := newQueuePublisher(t, s, outbox.OwnTx)
	hook, err := queue.NewWebhook(s, queue.WebhookConfig{
		Verify:           func(*http.Request, []byte) error { return nil },
		Item:             func(*http.Request, []byte) (queue.Item, error) { return item("hook", "1"), nil },
		ConflictOnChange: true,
	}, nil)
	require.NoError(t, err)
	h.exec(t, "create sequence tries") // it is not rolled back
	for _, state := range []string{"40P01", "40001"} {
		h.exec(t, `create or replace function conflict() returns trigger language plpgsql as $$ begin
				if nextval('tries') <= 2 then raise exception 'conflict' using errcode = '`+state+`'; end if;
				return new; end $$;
			drop trigger if exists conflict on inbox_queue;
			create trigger conflict before insert on inbox_queue for each row execute function conflict()`)
		for name, call := range map[string]func(ctx context.Context) error{
			"an item":   func(ctx context.Context) error { _, err := s.Enqueue(ctx, item("shop", "1")); return err },
			"items":     func(ctx context.Context) error { _, err := s.Enqueue(ctx, numberedItems("shop", 3)...); return err },
			"a message": func(ctx context.Context) error { return pub.PublishContext(ctx, "jobs", newMessage("1")) },
			"messages":  func(ctx context.Context) error { return pub.PublishContext(ctx, "jobs", newMessages(3)...) },
			"a webhook": func(ctx context.Context) error {
				response := httptest.NewRecorder()
				hook.ServeHTTP(response, httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil))
				if response.Code != http.StatusOK {
					return errors.New(response.Body.String())
				}
				return nil
			},
		} {
			h.exec(t, "delete from inbox_queue; alter sequence tries restart")
			require.NoError(t, call(t.Context()), "%s, %s", name, state)
			assert.NotZero(t, h.count(t, "select count(*) from inbox_queue"), "%s, %s", name, state)
		}
		h.exec(t, "delete from inbox_queue; alter sequence tries restart")
		err := outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
			return pub.PublishContext(ctx, "jobs", newMessages(3)...)
		})
		require.Equal(t, state, text.SQLState(err), "%v", err)
		assert.Equal(t, 1, h.count(t, "select last_value from tries"), "tries in a transaction, %s", state)
	}
}

func newQueuePublisher(t testing.TB, s *queue.Store, without outbox.WithoutTx) *queue.Publisher {
	t.Helper()
	pub, err := queue.NewPublisher(s, queue.PublisherConfig{WithoutTx: without})
	require.NoError(t, err)
	return pub
}

// TestPublishIntoTheQueue: messages are stored in the transaction of their context, or refused without one.
func TestPublishIntoTheQueue(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	pub := newQueuePublisher(t, s, outbox.RequireTx)
	stored := func() int { return h.count(t, "select count(*) from inbox_queue") }

	require.ErrorIs(t, pub.Publish("jobs", newMessage("bare")), outbox.ErrNoTx)
	require.ErrorIs(t, pub.PublishContext(t.Context(), "jobs", newMessage("bare")), outbox.ErrNoTx)
	require.NoError(t, pub.Publish("jobs"), "no message")
	assert.Zero(t, stored())

	for _, fails := range []bool{true, false} {
		err := outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
			msg, later := message.NewMessage("one", []byte("1")), message.NewMessage("later", nil)
			msg.SetContext(ctx)
			outbox.SetKey(msg, "K")
			msg.Metadata.Set("kind", "order")
			outbox.SetDelay(later, time.Hour)
			assert.ErrorIs(t, pub.Publish("jobs", msg, newMessage("bare")), core.ErrMixedTx)
			require.NoError(t, pub.Publish("jobs", msg))
			require.NoError(t, pub.PublishContext(ctx, "jobs", later))
			if fails {
				return errHandler
			}
			return nil
		})
		assert.Equal(t, fails, err != nil)
	}
	assert.Equal(t, 2, stored(), "the rolled-back message is gone")
	m := got(t, s, queue.ID{Source: "jobs", MessageID: "one"})
	assert.Equal(t, "K", m.Key)
	assert.Equal(t, "order", m.Metadata.Get("kind"))
	due := got(t, s, queue.ID{Source: "jobs", MessageID: "later"}).DueAt
	assert.WithinDuration(t, time.Now().Add(time.Hour), due, time.Minute)

	other := newPgxHandle(t, newMigratedDatabase(t))
	require.NoError(t, outbox.InTx(t.Context(), other.db, func(ctx context.Context) error {
		require.ErrorIs(t, pub.PublishContext(ctx, "jobs", newMessage("x")), outbox.ErrOtherDB)
		return nil
	}))
	own := newQueuePublisher(t, s, outbox.OwnTx)
	broken := newMessage("broken")
	broken.Metadata.Set("_watermill_delayed_until", "tomorrow")
	for name, msg := range map[string]*message.Message{
		"no UUID": message.NewMessage("", nil), "nil": nil, "a delay that is not a duration": broken,
	} {
		err := own.PublishContext(t.Context(), "jobs", msg)
		require.ErrorIs(t, err, outbox.ErrPoison, name)
		require.ErrorIs(t, err, queue.ErrInvalid, name)
	}
	assert.Equal(t, 2, stored())
}

// TestQueueAsDestination: a forwarder publishes an outbox to the queue of another database. Copies are recognised, and
// a message that the queue refuses dies immediately and delays no other.
func TestQueueAsDestination(t *testing.T) {
	t.Parallel()
	from, to := newPgxHandle(t, newMigratedDatabase(t)), newPgxHandle(t, newMigratedDatabase(t))
	store := storeOn(t, to, queue.StoreConfig{MaxPayloadBytes: 1000})
	pub := newQueuePublisher(t, store, outbox.OwnTx)
	const n = 200
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = newMessage(itoa(i))
	}
	require.NoError(t, outbox.InTx(t.Context(), from.db, func(ctx context.Context) error {
		return newOutboxPublisher(t, from).PublishContext(ctx, "jobs",
			append(slices.Clone(msgs), message.NewMessage("large", make([]byte, 2000)))...)
	}))
	runForwarder(t, from, pub, forwarder.Config{PollInterval: 20 * time.Millisecond}, newLogCapture(t))
	eventually(t, func() bool {
		return from.count(t, "select count(*) from outbox where published_at is not null") == n &&
			from.count(t, "select count(*) from outbox where dead_at is not null and uuid = 'large'") == 1
	}, "all messages are published or dead")
	stored := func() int { return to.count(t, "select count(*) from inbox_queue where source = 'jobs'") }
	assert.Equal(t, n, stored())
	commits := to.count(t, "select count(distinct xmin::text) from inbox_queue")
	assert.Less(t, commits, n*4/5, "concurrent calls are committed together")
	require.NoError(t, pub.Publish("jobs", msgs...))
	assert.Equal(t, n, stored(), "copies")
	require.NoError(t, pub.Publish("others", msgs...))
	assert.Equal(t, 2*n, to.count(t, "select count(*) from inbox_queue"), "another topic is another message")
	t.Logf("%d commits", commits)
}

// TestTopicsOfOthersAreLeftAlone: services with other limits share the table. A service that handles one topic ends no
// message of another, and calls no OnDead for it.
func TestTopicsOfOthersAreLeftAlone(t *testing.T) {
	handlers := map[string]queue.Handler{"mine": {Handle: func(context.Context, *queue.Message) error { return nil }}}
	for name, start := range map[string]func(t *testing.T, h handle, s *queue.Store){
		"dispatcher": func(t *testing.T, _ handle, s *queue.Store) {
			cfg := quickDispatcher(handlers)
			cfg.LeaseTTL = time.Second
			dispatching(t, s, cfg)
		},
		"dispatcher with OnDead": func(t *testing.T, h handle, s *queue.Store) {
			cfg := quickDispatcher(handlers)
			cfg.LeaseTTL = time.Second
			cfg.OnDead = func(ctx context.Context, msg *queue.Message, err error) error {
				return h.execTx(ctx, "insert into graves values ($1, $2)", msg.Topic, err.Error())
			}
			dispatching(t, s, cfg)
		},
		"subscriber": func(t *testing.T, _ handle, s *queue.Store) {
			cfg := quickSubscriber()
			cfg.LeaseTTL = time.Second
			sub := subscriberOn(t, s, cfg)
			for _, topic := range []string{"idle", "mine"} { // both share the maintenance that the first one starts
				_, err := sub.Subscribe(t.Context(), topic)
				require.NoError(t, err)
			}
		},
		"claims": func(t *testing.T, _ handle, s *queue.Store) {
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			t.Cleanup(func() { cancel(); <-ended })
			go func() {
				defer close(ended)
				for ctx.Err() == nil { // the first topic's calls must not keep reaping from the second
					for _, topic := range []string{"idle", "mine"} {
						_, _ = s.Claim(ctx, queue.Claim{
							Owner: queue.NewOwner(), LeaseTTL: time.Minute, Limit: 10, Topics: []string{topic},
						})
					}
				}
			}()
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := onPgx(t)
			h.exec(t, "create table graves (topic text, cause text)")
			cfg := quickStore()
			cfg.MaxAttempts = 2
			s := storeOn(t, h, cfg)
			h.exec(t, `insert into inbox_queue (source, message_id, topic, state, attempts, owner, locked_until, expires_at)
				select topic, kind, topic, 'processing', case kind when 'late' then 0 else 1 end,
				       case kind when 'killed' then gen_random_uuid() end,
				       case kind when 'killed' then now() - interval '1 minute' end,
				       case kind when 'late' then now() - interval '1 minute' end
				  from unnest(array['mine', 'theirs']) topic, unnest(array['late', 'killed']) kind`)
			h.exec(t, `insert into inbox_queue (source, message_id, topic, state, attempts, due_at)
				values ('theirs', 'failed', 'theirs', 'processing', 5, now() - interval '1 hour')`)
			dead := func(topic string) int {
				return h.count(t, "select count(*) from inbox_queue where state = 'dead' and topic = $1", topic)
			}
			start(t, h, s)
			eventually(t, func() bool { return dead("mine") == 2 }, "messages of its own topic are dead")
			if name == "dispatcher" || name == "dispatcher with OnDead" {
				msg := untilMessage(t, s, queue.ID{Source: "theirs", MessageID: "failed"}, "was checked",
					func(msg queue.Message) bool { return msg.LastError != "" })
				assert.Equal(t, "no handler for the topic", msg.LastError)
			}
			assert.Zero(t, dead("theirs"))
			assert.Equal(t, 1, h.count(t, `select count(*) from inbox_queue
				where topic = 'theirs' and message_id = 'killed' and owner is not null`))
			assert.Zero(t, h.count(t, "select count(*) from graves where topic = 'theirs'"))
			if name == "dispatcher with OnDead" {
				assert.Equal(t, 2, h.count(t, "select count(*) from graves"))
				assert.Equal(t, queue.State("dead"), got(t, s, queue.ID{Source: "mine", MessageID: "killed"}).State)
				assert.Contains(t, got(t, s, queue.ID{Source: "mine", MessageID: "killed"}).LastError, "lease expired")
			}
			_, err := s.ReapExpired(t.Context())
			require.NoError(t, err)
			assert.Equal(t, 2, dead("theirs"), "ReapExpired is for all topics")
		})
	}
}

// TestKnownMessagesWaitForTheStandby: rows whose result would be Busy, AlreadyDone or "processed" may not be on a
// standby, because the wait of the session that committed them was interrupted. If a sender deleted its message after
// such a result, a failover would lose it.
func TestKnownMessagesWaitForTheStandby(t *testing.T) {
	extended(t)
	t.Parallel()
	_, h := ownMigratedServer(t)
	store := storeOn(t, h, queue.StoreConfig{})
	briefly := func(act func(ctx context.Context) error) error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return act(ctx)
	}
	enqueue := func(id string) (result queue.StoreResult, err error) {
		err = briefly(func(ctx context.Context) error {
			stored, err := store.Enqueue(ctx, item("sender", id))
			if err == nil {
				result = stored[0].Result
			}
			return err
		})
		return result, err
	}
	owner, done := queue.NewOwner(), item("sender", "done").ID
	_, err := enqueue("done")
	require.NoError(t, err)
	setStandby(t, h, "alter system set synchronous_standby_names = 'nobody'", "nobody")
	h.pool.Reset()
	_, err = enqueue("busy")
	require.Error(t, err, "on no standby")
	require.Error(t, briefly(func(ctx context.Context) error {
		_, err := store.Claim(ctx, queue.Claim{Owner: owner, LeaseTTL: time.Minute, Limit: 2})
		return err
	}))
	const owned = "select count(*) from inbox_queue where owner is not null"
	eventually(t, func() bool { return h.count(t, owned) == 2 }, "visible, and on no standby")
	require.Error(t, briefly(func(ctx context.Context) error { _, err := store.Ack(ctx, owner, done); return err }))
	eventually(t, func() bool { return got(t, store, done).State == queue.Done }, "done, and on no standby")

	locker, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = locker.Rollback(context.Background()) }()
	// Another copy, which waits.
	_, err = locker.Exec(t.Context(), "select from inbox_queue where message_id = 'done' for update")
	require.NoError(t, err)
	for _, id := range []string{"busy", "done"} {
		result, err := enqueue(id)
		require.Errorf(t, err, "%s: %s", id, result)
	}
	err = briefly(func(ctx context.Context) error { _, err := store.AlreadyProcessed(ctx, done, nil); return err })
	require.Error(t, err)

	setStandby(t, h, "alter system reset synchronous_standby_names", "")
	h.pool.Reset()
	for id, want := range map[string]queue.StoreResult{"busy": queue.Busy, "done": queue.AlreadyDone} {
		result, err := enqueue(id)
		require.NoError(t, err)
		assert.Equal(t, want, result)
	}
	processed, err := store.AlreadyProcessed(t.Context(), done, nil)
	require.NoError(t, err)
	assert.True(t, processed)
}

// An operator's pause of a topic reaches the queue: none of its messages is claimed until it is resumed, with or
// without a limit, new or due again. Others are handled in the meantime.
func TestPauseReachesTheQueue(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	ad, err := admin.New(h.db, admin.Config{Actor: "test"}, nil)
	require.NoError(t, err)
	topics := []string{"paused", "limited", "others"}
	done := map[string]*atomic.Int64{}
	handlers := map[string]queue.Handler{}
	for _, topic := range topics {
		n := &atomic.Int64{}
		done[topic] = n
		handlers[topic] = queue.Handler{Handle: func(context.Context, *queue.Message) error { n.Add(1); return nil }}
	}
	limited := handlers["limited"]
	limited.Concurrency = 1
	handlers["limited"] = limited
	d := dispatching(t, s, quickDispatcher(handlers))
	for _, topic := range topics[:2] {
		require.NoError(t, ad.Pause(t.Context(), topic, "test"))
	}
	for _, topic := range topics {
		storeAll(t, s, items(topic, 20)...)
	}
	h.exec(t, "UPDATE inbox_queue SET due_at = clock_timestamp() WHERE topic <> 'others' AND id % 2 = 0 AND owner IS NULL")
	eventually(t, func() bool { return done["others"].Load() == 20 }, "the others are handled")
	drain(t, d)
	owner := queue.NewOwner()
	assert.Empty(t, claimed(t, s, owner, 10), "claimed by hand")
	stats, err := ad.Stats(t.Context(), admin.StatsConfig{})
	require.NoError(t, err)
	shown := map[string]bool{}
	for _, q := range stats.Queue {
		shown[q.Topic] = q.Paused
	}
	assert.Equal(t, map[string]bool{"paused": true, "limited": true, "others": false}, shown)
	h.exec(t, "UPDATE inbox_queue SET due_at = now() - interval '2 hours' WHERE state = 'processing'")
	findings, err := ad.Doctor(t.Context())
	require.NoError(t, err)
	for _, f := range findings {
		assert.NotEqual(t, "queue_waits", f.Check, "its topic is paused by an operator: %s", f)
	}
	for _, topic := range topics[:2] {
		assert.Zero(t, done[topic].Load(), topic)
		require.NoError(t, ad.Resume(t.Context(), topic, "test"))
		eventually(t, func() bool { return done[topic].Load() == 20 }, "%s is handled", topic)
	}
}
