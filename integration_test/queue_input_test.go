package integration_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestBadInputOfStore: invalid items are refused with the reason, and the whole call changes nothing.
func TestBadInputOfStore(t *testing.T) {
	h := onPgx(t)
	ctx := t.Context()
	x := ibx{
		handle: h, store: storeOn(t, h, queue.StoreConfig{MaxPayloadBytes: 100}), name: "bad", owner: queue.NewOwner(),
	}
	for why, change := range map[string]func(*queue.Item){
		"its message id is invalid UTF-8": func(it *queue.Item) { it.MessageID = "a\x00" },
		"its source is invalid UTF-8":     func(it *queue.Item) { it.Source = "\xff" },
		"its topic is invalid UTF-8":      func(it *queue.Item) { it.Topic = "\xff" },
		"its key is invalid UTF-8":        func(it *queue.Item) { it.Key = "\x00" },
		"its key has 1025 bytes":          func(it *queue.Item) { it.Key = strings.Repeat("k", 1025) },
		"its metadata \"k\" is invalid UTF-8": func(it *queue.Item) {
			it.Metadata = map[string]string{"k": "\x00"}
		},
		"its metadata has 1048": func(it *queue.Item) {
			it.Metadata = map[string]string{"k": strings.Repeat("v", 1<<20)}
		},
		"its payload has 101 bytes": func(it *queue.Item) { it.Payload = make([]byte, 101) },
		"its DueAt is in the year 10000": func(it *queue.Item) {
			it.DueAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
		},
		"its ExpiresAt is in the year -1, which RFC 3339 cannot": func(it *queue.Item) {
			it.ExpiresAt = time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC)
		},
	} {
		refusesItem(t, x, why, change)
	}
	for _, bad := range []queue.ID{
		{}, {Source: "a"}, {MessageID: "a"}, {Source: "a", MessageID: "\x00"},
		{Source: strings.Repeat("a", 256), MessageID: "a"},
	} {
		_, err := x.store.Ack(ctx, x.owner, x.id("a"), bad)
		invalid(t, err, "ID 1 of Ack")
		_, err = x.store.Renew(ctx, x.owner, time.Minute, bad)
		invalid(t, err, "ID 0 of Renew")
		_, err = x.store.Get(ctx, bad)
		invalid(t, err, "Get")
		invalid(t, x.store.MarkProcessed(ctx, bad), "MarkProcessed")
	}
	_, err := x.store.Renew(ctx, x.owner, 0, x.id("a"))
	invalid(t, err, "the lease of Renew is 0s")
	for _, mark := range []error{
		x.store.MarkDead(ctx, x.id("a"), ""), x.store.MarkProcessed(ctx, x.id("a")), x.store.MarkProcessing(ctx, x.id("a")),
	} {
		require.ErrorIs(t, mark, queue.ErrNotFound)
	}
	stored, err := x.store.Enqueue(ctx)
	require.NoError(t, err)
	assert.Empty(t, stored)
	assert.Zero(t, h.count(t, "select count(*) from inbox_queue"))
}

func TestStoreConfigIsChecked(t *testing.T) {
	h := newPgxHandle(t, postgresServer(t).URL())
	for field, cfg := range map[string]queue.StoreConfig{
		"StoreConfig.MaxPayloadBytes": {MaxPayloadBytes: -1}, "StoreConfig.MaxAttempts": {MaxAttempts: -2},
		"StoreConfig.Retention":    {Retention: -2},
		"StoreConfig.Backoff.Max":  {Backoff: outbox.Backoff{Initial: time.Minute, Max: time.Second}},
		"StoreConfig.Backoff.Func": {Backoff: outbox.Backoff{Func: func(int) time.Duration { panic("no") }}},
	} {
		_, err := queue.NewStore(h.db, cfg, nil)
		require.ErrorContains(t, err, field)
	}
	_, err := queue.NewStore(nil, queue.StoreConfig{}, nil)
	require.ErrorIs(t, err, outbox.ErrNoDB)
}

// TestStoresManyAtOnce: items of many statements are one call and one transaction. The long variant has 100,000.
func TestStoresManyAtOnce(t *testing.T) {
	h := onPgx(t)
	store := storeOn(t, h, queue.StoreConfig{})
	n := rounds(2100, 100_000)
	storeAll(t, store, numberedItems("shop", n)...)
	assert.Equal(t, n, h.count(t, "select count(*) from inbox_queue"))
	assert.Equal(t, 1, h.count(t, "select count(distinct xmin::text) from inbox_queue"), "transactions")
	msgs := claimed(t, store, queue.NewOwner(), 2000)
	require.Len(t, msgs, 2000)
	assert.Equal(t, "001999", msgs[1999].MessageID)
}

// TestBackoffOfMessages: 2 s after the first failure, doubling to 60 s, with a jitter of 20%.
func TestBackoffOfMessages(t *testing.T) {
	h := onPgx(t)
	x := ibx{handle: h, store: storeOn(t, h, queue.StoreConfig{}), name: "backoff", owner: queue.NewOwner()}
	for failures, seconds := range map[int]float64{1: 2, 2: 4, 3: 8, 4: 16, 5: 32, 6: 60, 7: 60, 9: 60} {
		id := x.has(t, fmt.Sprint(failures))
		h.exec(t, "update inbox_queue set attempts = $1 where message_id = $2", failures-1, id.MessageID)
		before := value[time.Time](t, h, "select clock_timestamp()")
		settles(t, 1)(x.abandon(t)(x.owner, id))
		wait := x.get(t, id.MessageID).DueAt.Sub(before).Seconds()
		assert.GreaterOrEqual(t, wait, 0.8*seconds, "after %d", failures)
		assert.LessOrEqual(t, wait, 1.2*seconds+patience.Seconds(), "after %d", failures)
	}
}

// TestLastErrorIsCut: an error of any length and with any bytes is kept as 1 KiB of text.
func TestLastErrorIsCut(t *testing.T) {
	h := onPgx(t)
	x := ibx{handle: h, store: storeOn(t, h, queue.StoreConfig{}), name: "cut", owner: queue.NewOwner()}
	bad := strings.Repeat("ü\x00\xff", 1000)
	settles(t, 1)(x.store.Abandon(t.Context(), x.owner, bad, 0, x.has(t, "a")))
	settles(t, 1)(x.store.Fail(t.Context(), x.owner, bad, x.has(t, "b")))
	require.NoError(t, x.store.MarkDead(t.Context(), x.has(t, "c"), bad))
	for _, id := range []string{"a", "b", "c"} {
		text := x.get(t, id).LastError
		assert.LessOrEqual(t, len(text), 1024)
		assert.Greater(t, len(text), 1000)
		assert.True(t, strings.HasSuffix(text, "…"))
	}
}

// TestExpiry: an unclaimed message that has expired is no longer claimed, and is dead after the next reaping.
func TestExpiry(t *testing.T) {
	h := onPgx(t)
	x := ibx{handle: h, store: storeOn(t, h, queue.StoreConfig{}), name: "expiry", owner: queue.NewOwner()}
	late, held, later := x.item("late"), x.item("held"), x.item("later")
	held.ExpiresAt, late.ExpiresAt, later.ExpiresAt = time.Now().Add(time.Hour), time.Now().Add(-time.Second),
		time.Now().Add(time.Hour)
	x.put(t, held)
	require.Len(t, x.claim(t, x.owner, 1), 1)
	h.exec(t, "update inbox_queue set expires_at = clock_timestamp() - interval '1 second'")
	x.put(t, late, later)
	msgs := x.claim(t, x.owner, 10)
	require.Len(t, msgs, 1)
	assert.Equal(t, "later", msgs[0].MessageID)
	x.reap(t)
	assert.Equal(t, queue.Dead, x.get(t, "late").State)
	assert.Equal(t, "expired", x.get(t, "late").LastError)
	assert.Equal(t, queue.Processing, x.get(t, "held").State, "its handler may still finish in time")
	settles(t, 1)(x.store.Ack(t.Context(), x.owner, x.id("held")))
}

// TestCleanKeepsUnfinished: only done messages, and those seen but never processed, are deleted, in short batches. A
// later copy counts as new, as the documentation of the retention says.
func TestCleanKeepsUnfinished(t *testing.T) {
	h := onPgx(t)
	store := storeOn(t, h, queue.StoreConfig{})
	h.exec(t, `insert into inbox_queue (source, message_id, topic, state, done_at, first_seen_at, last_seen_at)
		select s, i, 'orders', s, now() - interval '40 days', now() - interval '40 days', now() - interval '40 days'
		  from unnest('{seen,processing,dead,done}'::text[]) s, generate_series(1, 2500) i`)
	h.exec(t, `insert into inbox_queue (source, message_id, first_seen_at) values ('seen', 'again', now() - interval '40 days')`)
	counted, err := newAdmin(t, h).Clean(t.Context(), admin.CleanConfig{QueueRetention: 30 * 24 * time.Hour, DryRun: true})
	require.NoError(t, err)
	assert.EqualValues(t, 5000, counted.Queue.N)
	h.exec(t, `create table batches (n int)`)
	h.exec(t, `create function batch() returns trigger language plpgsql as $$ begin insert into batches select count(*) `+
		`from gone; return null; end $$`)
	h.exec(t, `create trigger batch after delete on inbox_queue referencing old table as gone for each statement `+
		`execute function batch()`)
	n, err := store.Clean(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 5000, n, "done, and seen")
	assert.Equal(t, []int{0, 1000, 1000, 1000, 1000, 1000}, column[int](t, h, "select n from batches order by 1"))
	assert.Equal(t, []string{"dead 2500", "processing 2500", "seen 1"},
		column[string](t, h, "select state || ' ' || count(*) from inbox_queue group by state order by 1"))
	stored, err := store.Enqueue(t.Context(), item("done", "1"))
	require.NoError(t, err)
	assert.Equal(t, queue.New, stored[0].Result)
}

// TestMarkedByHand follows callers that handle a message where it arrives, without the queue.
func TestMarkedByHand(t *testing.T) {
	h := onPgx(t)
	ctx := t.Context()
	x := ibx{handle: h, store: storeOn(t, h, queue.StoreConfig{}), name: "hand", owner: queue.NewOwner()}
	assert.False(t, x.processed(t, "a", nil))
	require.NoError(t, x.store.MarkProcessing(ctx, x.id("a")))
	assert.Equal(t, queue.Processing, x.get(t, "a").State)
	assert.True(t, x.get(t, "a").DueAt.IsZero())
	assert.Empty(t, claimed(t, x.store, x.owner, 10), "the caller that marked it owns it")
	assert.False(t, x.processed(t, "a", nil))
	require.NoError(t, x.store.MarkProcessed(ctx, x.id("a")))
	assert.True(t, x.processed(t, "a", nil))
	require.NoError(t, x.store.MarkDead(ctx, x.id("a"), "late"))
	require.NoError(t, x.store.MarkProcessing(ctx, x.id("a")))
	assert.Equal(t, queue.Done, x.get(t, "a").State, "done messages stay done")

	x.processed(t, "b", nil)
	require.NoError(t, x.store.MarkProcessing(ctx, x.id("b")))
	x.put(t, x.item("b"))
	assert.Len(t, x.claimDue(t), 1, "stored after all")
	require.NoError(t, x.store.MarkDead(ctx, x.id("b"), "why"))
	settles(t, 0)(x.store.Ack(ctx, x.owner, x.id("b")))
	h.exec(t, "update inbox_queue set attempts = 3, crashes = 1 where message_id = 'b'")
	require.NoError(t, x.store.MarkProcessing(ctx, x.id("b")))
	assert.Zero(t, h.count(t, "select attempts + crashes from inbox_queue where message_id = 'b'"), "all attempts again")
	assert.Len(t, x.claimDue(t), 1, "the message is requeued")

	late := x.item("c")
	late.ExpiresAt = time.Now().Add(-time.Hour)
	x.put(t, late)
	settles(t, 1)(x.store.ReapExpired(ctx))
	require.NoError(t, x.store.MarkProcessing(ctx, x.id("c")))
	settles(t, 0)(x.store.ReapExpired(ctx))
	assert.Len(t, x.claimDue(t), 1, "the message is requeued although it has expired")
}

// TestRoleOfTheQueue: a role with the four privileges on the table, USAGE and SELECT on its sequence, and SELECT on
// paused topics can do everything here. It creates and truncates nothing.
func TestRoleOfTheQueue(t *testing.T) {
	parallel(t)
	url := newMigratedDatabase(t)
	admin := newPgxHandle(t, url)
	role := newRole(t, admin)
	admin.exec(t, "grant select, insert, update, delete on inbox_queue to "+role)
	admin.exec(t, "grant usage, select on sequence inbox_queue_id_seq to "+role)
	admin.exec(t, "grant select on outbox_topics to "+role)
	h := newPgxHandle(t, url+"&role="+role)
	x := ibx{handle: h, store: storeOn(t, h, queue.StoreConfig{}), name: "role", owner: queue.NewOwner()}
	id := x.has(t, "a")
	settles(t, 1)(x.store.Release(t.Context(), x.owner, id))
	require.Len(t, x.claimDue(t), 1)
	x.reap(t)
	settles(t, 1)(x.store.Ack(t.Context(), x.owner, id))
	assert.True(t, x.processed(t, "a", nil))
	_, err := storeOn(t, h, queue.StoreConfig{Retention: time.Nanosecond}).Clean(t.Context())
	require.NoError(t, err)
}

// TestOddRowsOfQueue inserts rows by SQL that Store.Enqueue would not write: they are handled like all others, and stop
// neither claims nor reaping. Messages claimed by a dead process are reaped when a Dispatcher starts.
func TestOddRowsOfQueue(t *testing.T) {
	parallel(t)
	odd := []struct {
		set  string
		want message.Metadata
	}{
		{
			`metadata = '{"tenant": 42, "tags": ["a", "b"], "by": "sql"}'`,
			message.Metadata{"tenant": "42", "tags": `["a", "b"]`, "by": "sql"},
		},
		{`metadata = '[]'`, message.Metadata{"": "[]"}},
		{`metadata = 'null'`, message.Metadata{}},
		{`metadata = '"text"'`, message.Metadata{"": `"text"`}},
		{`first_seen_at = '-infinity'`, message.Metadata{}},
		{`last_seen_at = 'infinity'`, message.Metadata{}},
		{`expires_at = '290000-01-01'`, message.Metadata{}},
	}
	overEach(t, newMigratedDatabase(t), func(t *testing.T, h handle) {
		h.exec(t, `truncate inbox_queue`)
		s := storeOn(t, h, quickStore())
		storeAll(t, s, items("odd", len(odd))...)
		storeAll(t, s, items("died", len(odd))...)
		for i, o := range odd {
			h.exec(t, `update inbox_queue set `+o.set+` where message_id in ($1, $2)`, itemID("odd", i).MessageID,
				itemID("died", i).MessageID)
		}
		_, err := s.Claim(t.Context(), queue.Claim{
			Owner: queue.NewOwner(), LeaseTTL: time.Second, Limit: len(odd), Topics: []string{"died"},
		})
		require.NoError(t, err)
		h.exec(t, `update inbox_queue set locked_until = now() - interval '1 second' where topic = 'died'`)
		var mu sync.Mutex
		got := map[queue.ID][]message.Metadata{}
		handler := queue.Handler{Handle: func(_ context.Context, msg *queue.Message) error {
			mu.Lock()
			defer mu.Unlock()
			got[msg.ID] = append(got[msg.ID], msg.Metadata)
			return nil
		}}
		dispatching(t, s, quickDispatcher(map[string]queue.Handler{"odd": handler, "died": handler}))
		h.reaches(t, 0, "all messages are handled", `select count(*)::int from inbox_queue where state <> 'done'`)
		for i, o := range odd {
			for _, topic := range []string{"odd", "died"} {
				assert.Equal(t, []message.Metadata{o.want}, got[itemID(topic, i)], "%s: %s", topic, o.set)
			}
			_, err := s.Get(t.Context(), itemID("odd", i))
			assert.NoError(t, err, o.set)
		}
	})
}

// TestRowWithTheHighestAttempts: its counter stays at the maximum, and others in the batch do not fail.
func TestRowWithTheHighestAttempts(t *testing.T) {
	h := onPgx(t)
	cfg := quickStore()
	cfg.MaxAttempts = -1
	s := storeOn(t, h, cfg)
	storeAll(t, s, items("orders", 2)...)
	settle := map[string]func(queue.Owner, ...queue.ID) (int, error){
		"abandon": func(owner queue.Owner, ids ...queue.ID) (int, error) {
			return s.Abandon(t.Context(), owner, "", 0, ids...)
		},
		"fail": func(owner queue.Owner, ids ...queue.ID) (int, error) {
			return s.Fail(t.Context(), owner, "", ids...)
		},
		"reap": func(queue.Owner, ...queue.ID) (int, error) {
			h.exec(t, `update inbox_queue set locked_until = now() - interval '1 second'`)
			return s.ReapExpired(t.Context())
		},
	}
	for what, fn := range settle {
		h.exec(t, `update inbox_queue set state = 'processing', due_at = now(), crashes = 0, attempts = case message_id `+
			`when 'orders-0' then 2147483647 else 0 end`)
		owner := queue.NewOwner()
		require.Len(t, claimed(t, s, owner, 2), 2, what)
		h.exec(t, `update inbox_queue set crashes = 2147483647 where message_id = 'orders-0'`)
		n, err := fn(owner, itemID("orders", 0), itemID("orders", 1))
		require.NoError(t, err, what)
		assert.Equal(t, 2, n, what)
		assert.Equal(t, []int{2147483647, 1}, column[int](t, h, `select attempts from inbox_queue order by message_id`), what)
	}
}
