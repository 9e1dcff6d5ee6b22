package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestClaimHasRoomForPayloads: a claim returns payloads up to its byte limit, or one larger message alone, and does not
// lose the rest.
func TestClaimHasRoomForPayloads(t *testing.T) {
	h := onPgx(t)
	store := storeOn(t, h, queue.StoreConfig{})
	const n, size = 40, 10_000
	items := make([]queue.Item, n)
	for i := range items {
		items[i] = item("shop", fmt.Sprint(i))
		items[i].Payload = bytes.Repeat([]byte{'x'}, size)
		switch {
		case i%10 == 0:
			items[i].Payload = bytes.Repeat([]byte{'x'}, 8*size) // exceeds the limit
		case i%3 == 0:
			items[i].DueAt = time.Now().Add(-time.Minute)
		}
	}
	_, err := store.Enqueue(t.Context(), items...)
	require.NoError(t, err)
	const room = 5*size + size/2
	owner, came := queue.NewOwner(), map[queue.ID]bool{}
	for claims := 0; len(came) < n; claims++ {
		require.Less(t, claims, 3*n, "%d of %d messages were claimed", len(came), n)
		msgs, err := store.Claim(t.Context(), queue.Claim{Owner: owner, LeaseTTL: time.Minute, Limit: 1000, MaxBytes: room})
		require.NoError(t, err)
		total := 0
		for _, msg := range msgs {
			total += len(msg.Payload)
			assert.False(t, came[msg.ID], "%s was claimed twice", msg.ID)
			came[msg.ID] = true
		}
		// Each statement may return one message regardless: the last one, if the limit was not reached before.
		assert.LessOrEqual(t, total, room+8*size, "%d messages", len(msgs))
	}
	_, err = store.Claim(t.Context(), queue.Claim{Owner: owner, LeaseTTL: time.Minute, Limit: 1, MaxBytes: -1})
	assert.ErrorIs(t, err, queue.ErrInvalid)
}

// TestDispatcherHasRoomForPayloads: payloads of messages in flight, expired ones included, exceed MaxBytes by at most
// one message; and all are handled.
func TestDispatcherHasRoomForPayloads(t *testing.T) {
	h := onPgx(t)
	store := storeOn(t, h, quickStore())
	const n, size, room = 60, 100_000, 450_000
	all := items("orders", n)
	for i := range all {
		all[i].Payload = bytes.Repeat([]byte{'x'}, size)
		if i%2 == 0 {
			all[i].ExpiresAt = time.Now().Add(time.Second)
		}
	}
	storeAll(t, store, all...)
	eventually(t, func() bool {
		return h.count(t, "SELECT count(*) FROM inbox_queue WHERE expires_at < now()") == n/2
	}, "half of them expire")
	var inHand, most, handled, dead atomic.Int64
	goOn := make(chan struct{})
	release := sync.OnceFunc(func() { close(goOn) })
	took := func(msg *queue.Message) func() {
		now := inHand.Add(int64(len(msg.Payload)))
		for was := most.Load(); now > was && !most.CompareAndSwap(was, now); was = most.Load() {
		}
		<-goOn
		return func() { inHand.Add(-int64(len(msg.Payload))) }
	}
	cfg := quickDispatcher(map[string]queue.Handler{"orders": {Handle: func(_ context.Context, msg *queue.Message) error {
		defer took(msg)()
		handled.Add(1)
		return nil
	}}})
	cfg.MaxBytes, cfg.Concurrency = room, 50
	cfg.OnDead = func(_ context.Context, msg *queue.Message, _ error) error {
		defer took(msg)()
		dead.Add(1)
		return nil
	}
	dispatching(t, store, cfg)
	defer release()
	eventually(t, func() bool { return inHand.Load() >= room }, "the byte limit is reached")
	release()
	eventually(t, func() bool { return handled.Load() == n/2 && dead.Load() == n/2 }, "all are handled or dead")
	assert.LessOrEqual(t, most.Load(), int64(room+size))
}

// TestATopicWithALimitHasItsTurn: a topic with a backlog whose slots were all in use is claimed alongside limited
// topics that always have more messages than free slots and never reach their limits.
func TestATopicWithALimitHasItsTurn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		bound              string
		size, room, places int
	}{
		{bound: "bytes", size: 10_000, room: 20_000, places: 50},
		{bound: "places", size: 1, places: 4},
	} {
		t.Run(c.bound, func(t *testing.T) {
			if c.bound == "bytes" {
				extended(t)
			}
			h := onPgx(t)
			store := storeOn(t, h, quickStore())
			const n, few = 400, 5
			storeAll(t, store, items("small", few)...)
			var others []queue.Item
			one, other := items("large", n), items("many", n)
			for i := range n {
				one[i].Payload, other[i].Payload = bytes.Repeat([]byte{'x'}, c.size), bytes.Repeat([]byte{'x'}, c.size)
				others = append(others, one[i], other[i])
			}
			storeAll(t, store, others...)
			var large, small, before atomic.Int64
			count := func(context.Context, *queue.Message) error { large.Add(1); return nil }
			cfg := quickDispatcher(map[string]queue.Handler{
				"large": {Handle: count, Concurrency: c.places - 1}, "many": {Handle: count, Concurrency: c.places - 1},
				"small": {Concurrency: 1, Handle: func(context.Context, *queue.Message) error {
					if small.Add(1) == few {
						before.Store(large.Load())
					}
					return nil
				}},
			})
			cfg.MaxBytes, cfg.Concurrency = c.room, c.places
			dispatching(t, store, cfg)
			eventually(t, func() bool { return small.Load() == few && large.Load() == 2*n }, "all are handled")
			assert.Less(t, before.Load(), int64(n), "handled before the last small one")
		})
	}
}

// numberedItems returns n items to store.
func numberedItems(source string, n int) []queue.Item {
	all := make([]queue.Item, n)
	for i := range all {
		all[i] = item(source, fmt.Sprintf("%06d", i))
	}
	return all
}

// idsOf returns the IDs of messages.
func idsOf(msgs []queue.Message) []queue.ID {
	ids := make([]queue.ID, len(msgs))
	for i, msg := range msgs {
		ids[i] = msg.ID
	}
	return ids
}

// openTx runs fn in a transaction, which end commits or rolls back.
func openTx(t testing.TB, h handle, fn func(ctx context.Context) error) (end func(commit bool)) {
	t.Helper()
	done, goOn, ended := make(chan struct{}), make(chan bool, 1), make(chan error, 1)
	go func() {
		ended <- outbox.InTx(context.WithoutCancel(t.Context()), h.db, func(ctx context.Context) error {
			err := fn(ctx)
			close(done)
			if commit := <-goOn; err == nil && !commit {
				err = errTakenBack
			}
			return err
		})
	}()
	<-done
	return func(commit bool) {
		t.Helper()
		goOn <- commit
		if err := <-ended; commit {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, errTakenBack)
		}
	}
}

// TestLateEnqueueIsClaimed: a message whose transaction commits after thousands with higher ids were claimed is claimed
// immediately, even if the transaction was open for longer than the cursor waits for it.
func TestLateEnqueueIsClaimed(t *testing.T) {
	h := onPgx(t)
	store, writer, owner := storeOn(t, h, queue.StoreConfig{}), storeOn(t, h, queue.StoreConfig{}), queue.NewOwner()
	for _, open := range []time.Duration{0, 1500 * time.Millisecond} {
		name := fmt.Sprint("late ", open)
		end := openTx(t, h, func(ctx context.Context) error {
			_, err := writer.Enqueue(ctx, item(name, "late"))
			return err
		})
		began := time.Now()
		storeAll(t, writer, numberedItems(name, 5000)...)
		for done := 0; done < 5000 || time.Since(began) < open; {
			msgs := claimed(t, store, owner, 500)
			n, err := store.Ack(t.Context(), owner, idsOf(msgs)...)
			require.NoError(t, err)
			done += n
		}
		end(true)
		committed, claims := time.Now(), 0
		eventually(t, func() bool {
			claims++
			msgs := claimed(t, store, owner, 500)
			return len(msgs) == 1 && msgs[0].ID.MessageID == "late"
		}, "the late message is claimed")
		t.Logf("open for %s and more: claimed %s after its commit, by claim %d", open, time.Since(committed), claims)
	}
}

// TestSeenAgainIsNotLost: a row that was locked when the cursor passed it is found, whether its transaction commits or
// not.
func TestSeenAgainIsNotLost(t *testing.T) {
	h := onPgx(t)
	for _, commit := range []bool{true, false} {
		for name, lock := range map[string]func(ctx context.Context, store *queue.Store, id queue.ID) error{
			"enqueue": func(ctx context.Context, store *queue.Store, id queue.ID) error {
				_, err := store.Enqueue(ctx, item(id.Source, id.MessageID))
				return err
			},
			"look up": func(ctx context.Context, store *queue.Store, id queue.ID) error {
				_, err := store.AlreadyProcessed(ctx, id, nil)
				return err
			},
			"claim": func(ctx context.Context, store *queue.Store, _ queue.ID) error {
				msgs, err := store.Claim(ctx, queue.Claim{Owner: queue.NewOwner(), LeaseTTL: time.Minute, Limit: 1})
				if err == nil && len(msgs) != 1 {
					err = fmt.Errorf("claimed %d", len(msgs))
				}
				return err
			},
		} {
			if name == "claim" && commit {
				continue // another worker has it
			}
			source := fmt.Sprint(name, commit)
			store, owner := storeOn(t, h, queue.StoreConfig{}), queue.NewOwner()
			storeAll(t, store, item(source, "locked"))
			end := openTx(t, h, func(ctx context.Context) error { return lock(ctx, store, item(source, "locked").ID) })
			for i := range 5 { // the cursor advances
				storeAll(t, store, item(source, fmt.Sprint(i)))
				require.Len(t, claimed(t, store, owner, 10), 1)
			}
			end(commit)
			eventually(t, func() bool { return len(claimed(t, store, owner, 10)) == 1 }, "%s is claimed", source)
			h.exec(t, "delete from inbox_queue")
		}
	}
}

// TestNothingGoesBackToReady: no update makes a row ready without a due time, because cursors may have passed it.
func TestNothingGoesBackToReady(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `create function no_way_back() returns trigger language plpgsql as $$ begin
		if new.state = 'processing' and new.due_at is null and (old.due_at is not null or old.state <> 'processing' or old.owner is not null and new.owner is null)
		then raise 'it goes back to ready: % %', old, new; end if; return new; end $$`)
	h.exec(t, `create trigger no_way_back before update on inbox_queue for each row execute function no_way_back()`)
	ctx, owner := t.Context(), queue.NewOwner()
	store := storeOn(t, h, queue.StoreConfig{})
	x := ibx{handle: h, store: store, name: "back", owner: owner}
	for i, back := range []func(id queue.ID) error{
		func(id queue.ID) error { _, err := store.Release(ctx, owner, id); return err },
		func(id queue.ID) error { _, err := store.Abandon(ctx, owner, "", 0, id); return err },
		func(id queue.ID) error { x.lapse(t, id.MessageID); _, err := store.ReapExpired(ctx); return err },
		func(id queue.ID) error {
			_, _ = store.Fail(ctx, owner, "", id)
			return store.MarkProcessing(ctx, id)
		},
		func(id queue.ID) error {
			_, _ = store.Release(ctx, owner, id)
			_, err := store.Enqueue(ctx, x.item(id.MessageID))
			return err
		},
	} {
		require.NoError(t, back(x.has(t, fmt.Sprint(i))), "%d", i)
		assert.Equal(t, "true", x.column(t, fmt.Sprint(i), "due_at is not null and owner is null and state = 'processing'"),
			"%d", i)
		x.exec(t, "delete from inbox_queue")
	}
	x.processed(t, "seen", nil)
	storeAll(t, store, x.item("seen"), x.item("twice"))
	storeAll(t, store, x.item("twice"))
	assert.Equal(t, "true", x.column(t, "twice", "due_at is not null"))
	assert.Len(t, claimed(t, store, owner, 10), 2)
}

// TestClaimsPassPausedTopicsInPages: many messages of a paused topic come before a few others, new and due. Each
// statement of a claim reads at most a page of them, and the others are found. With OUTBOX_LONG there are a million.
func TestClaimsPassPausedTopicsInPages(t *testing.T) {
	extended(t)
	parallel(t)
	paused, others := 35_000, 100
	if long {
		paused = 1_000_000
	}
	var seen statementLog
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = &seen })
	ad, err := admin.New(h.db, admin.Config{Actor: "test"}, nil)
	require.NoError(t, err)
	require.NoError(t, ad.Pause(t.Context(), "paused", "test"))
	h.exec(t, "ALTER TABLE inbox_queue SET (autovacuum_enabled = off)")
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, due_at) SELECT 'paused', i, 'paused', 'processing',
		CASE WHEN i % 2 = 0 THEN now() - interval '1 hour' END FROM generate_series(1, $1::int) i`, paused)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, due_at) SELECT 'others', i, 'others', 'processing',
		CASE WHEN i % 2 = 0 THEN now() END FROM generate_series(1, $1::int) i`, others)
	h.exec(t, "ANALYZE inbox_queue")
	all, pages := sqltext.Tables{}.Render(sqltext.ClaimTopics), sqltext.Tables{}.Render(sqltext.ClaimPages)
	store, owner := storeOn(t, h, queue.StoreConfig{}), queue.NewOwner()
	seen.take()
	began := time.Now()
	msgs := claimed(t, store, owner, others)
	took := time.Since(began)
	require.NotEmpty(t, msgs, "a claim continues until it finds a message")
	statements := 0
	var first []any
	for _, s := range seen.take() {
		assert.NotEqual(t, all, s.SQL, "a full read has pages")
		if s.SQL == pages {
			if statements++; first == nil {
				first = claimArgs(s.Args)
			}
		}
	}
	settles(t, len(msgs))(store.Release(t.Context(), owner, idsOf(msgs)...))
	before, after := blocksVisited(t, h, all, first), blocksVisited(t, h, pages, first)
	t.Logf("%d messages of a paused topic: %d blocks in one statement, %d in a page; "+
		"%d of %d others found by %d statements in %s",
		paused, before, after, len(msgs), others, statements, took)
	assert.Greater(t, statements, paused/2/10_000)
	assert.Less(t, after, min(int64(100_000), before+before/2),
		"a page of new messages, one of due ones, and one for suspects")
	handle := func(context.Context, *queue.Message) error { return nil }
	d := dispatching(t, store, quickDispatcher(map[string]queue.Handler{"others": {Handle: handle}}))
	h.reaches(t, others, "all of the others are handled", "select count(*) from inbox_queue where state = 'done'")
	drain(t, d)
	require.NoError(t, ad.Resume(t.Context(), "paused", "test"))
	require.NotEmpty(t, claimed(t, store, owner, 10), "the skipped messages are found")
}

// TestAPageWithoutRoomIsReadAgain: a claim that had no room for all payloads of a page leaves none of them behind.
func TestAPageWithoutRoomIsReadAgain(t *testing.T) {
	const large, size = 20, 1000
	h := onPgx(t)
	ad, err := admin.New(h.db, admin.Config{Actor: "test"}, nil)
	require.NoError(t, err)
	require.NoError(t, ad.Pause(t.Context(), "paused", "test"))
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, payload)
		SELECT 'shop', i, CASE WHEN i <= $1::int THEN 'large' ELSE 'paused' END, 'processing',
			convert_to(repeat('x', $2::int), 'UTF8') FROM generate_series(1, 25000) i`, large, size)
	store, owner, came := storeOn(t, h, queue.StoreConfig{}), queue.NewOwner(), 0
	for came < large {
		msgs, err := store.Claim(t.Context(), queue.Claim{
			Owner: owner, LeaseTTL: time.Minute, Limit: 100, MaxBytes: 2*size + size/2,
		})
		require.NoError(t, err)
		require.NotEmpty(t, msgs, "%d of %d were claimed", came, large)
		came += len(msgs)
	}
}

// TestReapsBehindABacklog: abandoned messages behind many unclaimed ones, in both reading orders, more than one
// statement reads.
func TestReapsBehindABacklog(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	const backlog, gone = 25_000, 600
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, due_at)
		SELECT 's', kind || i, 't', 'processing', CASE kind WHEN 'due' THEN now() - interval '1 hour' END
		  FROM (VALUES ('fresh'), ('due')) k(kind), generate_series(1, $1::int) i`, backlog)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, due_at, owner, locked_until)
		SELECT 'gone', kind || i, 'gone', 'processing', CASE kind WHEN 'due' THEN now() - interval '1 minute' END, gen_random_uuid(), now() - interval '1 second'
		  FROM (VALUES ('fresh'), ('due')) k(kind), generate_series(1, $1::int) i`, gone)
	// Handlers that have acked some of them are still running.
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context())
	_, err = tx.Exec(t.Context(),
		`SELECT FROM inbox_queue WHERE source = 'gone' AND message_id IN ('fresh1', 'due2') FOR UPDATE`)
	require.NoError(t, err)
	reaped, err := s.ReapExpired(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 2*gone-2, reaped)
	require.NoError(t, tx.Rollback(t.Context()))
	reaped, err = s.ReapExpired(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 2, reaped)
	assert.Equal(t, 2*gone, h.count(t, `SELECT count(*)::int FROM inbox_queue WHERE source = 'gone' AND owner IS NULL `+
		`AND attempts = 1 AND crashes = 1`))
	assert.Zero(t, h.count(t, `SELECT count(*)::int FROM inbox_queue WHERE source = 's' AND attempts > 0`))

	// A Dispatcher limits the time of each round and continues in the next one.
	h.exec(t, `UPDATE inbox_queue SET owner = gen_random_uuid(), locked_until = now() - interval '1 second', `+
		`due_at = now() - interval '1 second' WHERE source = 'gone'`)
	cfg := quickDispatcher(map[string]queue.Handler{"gone": {Handle: func(context.Context, *queue.Message) error {
		return nil
	}}})
	cfg.LeaseTTL = time.Second
	dispatching(t, s, cfg)
	h.reaches(t, 0, "all are released", `SELECT count(*)::int FROM inbox_queue WHERE source = 'gone' AND crashes < 2`)
}

// TestReapLeavesWhatIsHandled: a message stays with its owner until the lease expires, even if the message itself has
// expired.
func TestReapLeavesWhatIsHandled(t *testing.T) {
	h := onPgx(t)
	s, owner := storeOn(t, h, quickStore()), queue.NewOwner()
	storeAll(t, s, items("orders", 2)...)
	require.Len(t, claimed(t, s, owner, 2), 2)
	h.exec(t, `UPDATE inbox_queue SET expires_at = now() - interval '1 hour' WHERE message_id = 'orders-1'`)
	reaped, err := s.ReapExpired(t.Context())
	require.NoError(t, err)
	assert.Zero(t, reaped)
	assert.Empty(t, claimed(t, s, queue.NewOwner(), 2))
	n, err := s.Ack(t.Context(), owner, itemID("orders", 0), itemID("orders", 1))
	require.NoError(t, err)
	assert.Equal(t, 2, n)
}

// TestUnackOfOnesOwnAckOnly: a handler committed its ack; before that is noticed, the message was made pending again
// and another handled it. That ack stays.
func TestUnackOfOnesOwnAckOnly(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("orders", 1)...)
	var calls atomic.Int32
	handled := make(chan struct{})
	d := dispatching(t, s, quickDispatcher(map[string]queue.Handler{
		"orders": {Handle: func(ctx context.Context, _ *queue.Message) error {
			defer close(handled) // panics if closed twice
			calls.Add(1)
			err := h.execTx(ctx, "commit")
			h.exec(t, "update inbox_queue set done_at = done_at + interval '1 millisecond' where state = 'done'")
			return errors.Join(err, errHandler)
		}},
	}))
	<-handled
	require.NoError(t, d.Close())
	untilState(t, s, itemID("orders", 0), queue.Done)
	assert.EqualValues(t, 1, calls.Load())
}

// TestFailedAckKeepsNoLease: the ack failed, so the row is not locked, and the loss of the message is detected.
func TestFailedAckKeepsNoLease(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("orders", 1)...)
	cfg := quickSubscriber()
	cfg.LeaseTTL = time.Second
	messages, err := subscriberOn(t, s, cfg).Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	msg := <-messages
	_, work := core.TakeWork(msg)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = work.Ack(over)
	require.ErrorIs(t, err, context.Canceled)
	h.exec(t, "update inbox_queue set owner = gen_random_uuid(), locked_until = now() + interval '1 hour'")
	within(t, "its context ends", msg.Context().Done())
	msg.Nack()
}

// TestExpiredWhileItIsHandled: a message and its lease expire while its handler runs. It is not marked dead before the
// handler returns.
func TestExpiredWhileItIsHandled(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("orders", 1)...)
	begun, gate := make(chan struct{}), make(chan struct{})
	var dead atomic.Int32
	cfg := quickDispatcher(map[string]queue.Handler{
		"orders": {Detached: true, Handle: func(context.Context, *queue.Message) error {
			close(begun)
			<-gate
			return nil
		}},
	})
	cfg.LeaseTTL = 2 * time.Second
	cfg.OnDead = func(context.Context, *queue.Message, error) error { dead.Add(1); return nil }
	dispatching(t, s, cfg)
	<-begun
	h.exec(t, "update inbox_queue set owner = null, locked_until = null, due_at = now(), expires_at = "+
		"now() - interval '1 hour'")
	h.reaches(t, 1, "the dispatcher takes it to mark it dead",
		"select count(*) from inbox_queue where owner is not null or state <> 'processing'")
	close(gate)
	untilState(t, s, itemID("orders", 0), queue.Done)
	assert.Zero(t, dead.Load())
}

// TestIngestForgetsWhoLeft: a delivery that ended before its turn is not stored by a later one.
func TestIngestForgetsWhoLeft(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	ingest, err := queue.Ingest(s, queue.IngestConfig{Item: func(msg *message.Message) (queue.Item, error) {
		return queue.Item{ID: queue.ID{Source: "broker", MessageID: msg.UUID}, Topic: "orders"}, nil
	}})
	require.NoError(t, err)
	deliver := func(ctx context.Context, id string) error {
		msg := message.NewMessage(id, nil)
		msg.SetContext(ctx)
		return ingest(msg)
	}
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "lock table inbox_queue in exclusive mode")
	require.NoError(t, err)
	first := make(chan error, 1)
	go func() { first <- deliver(t.Context(), "first") }()
	h.reaches(t, 1, "the first writes",
		"select count(*) from pg_locks where not granted and database = (select oid from pg_database "+
			"where datname = current_database())")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, deliver(over, "left"), context.Canceled)
	require.NoError(t, tx.Rollback(t.Context()))
	require.NoError(t, <-first)
	require.NoError(t, deliver(t.Context(), "later"))
	assert.Equal(t, []string{"first", "later"}, column[string](t, h, "select message_id from inbox_queue order by 1"))
}
