package integration_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/queue"
)

// overlap is a change to a message in a transaction that is open while the message is stored, with the expected result
// after commit and after rollback.
type overlap struct {
	name              string
	before            func(t *testing.T, x ibx, id string) // creates the row; nil = no row
	act               func(ctx context.Context, x ibx, id string) error
	committed, undone queue.StoreResult
	state             queue.State // if committed
}

func isStored(t *testing.T, x ibx, id string)  { x.put(t, x.item(id)) }
func isClaimed(t *testing.T, x ibx, id string) { x.has(t, id) }
func isSeen(t *testing.T, x ibx, id string)    { x.processed(t, id, nil) }
func isDead(t *testing.T, x ibx, id string) {
	settles(t, 1)(x.store.Fail(t.Context(), x.owner, "", x.has(t, id)))
}
func isAbandoned(t *testing.T, x ibx, id string) { x.has(t, id); x.lapse(t, id) }

// one returns an error unless exactly one message was changed.
func one(n int, err error) error {
	if err == nil && n != 1 {
		err = fmt.Errorf("changed %d messages", n)
	}
	return err
}

func see(ctx context.Context, x ibx, id string) error {
	_, err := x.store.AlreadyProcessed(ctx, x.id(id), []byte("another"))
	return err
}

func putOther(ctx context.Context, x ibx, id string) error {
	_, err := x.store.Enqueue(ctx, x.item(id))
	return err
}

func markDead(ctx context.Context, x ibx, id string) error {
	return x.store.MarkDead(ctx, x.id(id), "why")
}

func release(ctx context.Context, x ibx, id string) error {
	return one(x.store.Release(ctx, x.owner, x.id(id)))
}

// inSavepoint returns an act behind a savepoint.
func inSavepoint(
	act func(ctx context.Context, x ibx, id string) error,
) func(ctx context.Context, x ibx, id string) error {
	return func(ctx context.Context, x ibx, id string) error {
		return outbox.InTx(ctx, x.db, func(ctx context.Context) error { return act(ctx, x, id) })
	}
}

func reap(ctx context.Context, x ibx, id string) error { return one(x.store.ReapExpired(ctx)) }

// operate returns an act of package admin, which uses its own transactions.
func operate(statement, state string) func(ctx context.Context, x ibx, id string) error {
	return func(ctx context.Context, x ibx, id string) error {
		var version int64 // version of the previewed content
		if err := drive.Collect(ctx, (*core.DB)(x.db), func(rows drive.Rows) error { return rows.Scan(&version) },
			`select hashtextextended(id || ' ' || extract(epoch from last_seen_at), 0) from inbox_queue
			 where source = $1 and message_id = $2`, x.name, id); err != nil {
			return err
		}
		return x.execTx(ctx, sqltext.Tables{}.Render(statement), []string{x.name}, []string{id}, []string{state},
			int64(0), "", []int64{version})
	}
}

var overlaps = []overlap{
	{name: "look-up of a new message", act: see, committed: queue.Updated, undone: queue.New, state: queue.Processing},
	{
		name: "look-up of a seen message", before: isSeen, act: see, committed: queue.Updated, undone: queue.Updated,
		state: queue.Processing,
	},
	{
		name: "look-up of a stored message", before: isStored, act: see, committed: queue.Updated, undone: queue.Updated,
		state: queue.Processing,
	},
	{
		name: "enqueue of a new message", act: putOther, committed: queue.Updated, undone: queue.New, state: queue.Processing,
	},
	{
		name: "enqueue of a seen message", before: isSeen, act: putOther, committed: queue.Updated, undone: queue.Updated,
		state: queue.Processing,
	},
	{
		name: "enqueue of a stored message", before: isStored, act: putOther, committed: queue.Updated, undone: queue.Updated,
		state: queue.Processing,
	},
	{name: "MarkProcessing", before: isSeen, committed: queue.Updated, undone: queue.Updated, state: queue.Processing,
		act: func(ctx context.Context, x ibx, id string) error { return x.store.MarkProcessing(ctx, x.id(id)) }},
	{name: "MarkProcessed", before: isStored, committed: queue.AlreadyDone, undone: queue.Updated, state: queue.Done,
		act: func(ctx context.Context, x ibx, id string) error { return x.store.MarkProcessed(ctx, x.id(id)) }},
	{
		name: "MarkDead", before: isStored, act: markDead, committed: queue.Updated, undone: queue.Updated, state: queue.Dead,
	},
	{
		name: "MarkDead of a claimed message", before: isClaimed, act: markDead, committed: queue.Updated, undone: queue.Busy,
		state: queue.Dead,
	},
	{name: "claim", before: isStored, committed: queue.Busy, undone: queue.Updated, state: queue.Processing,
		act: func(ctx context.Context, x ibx, id string) error {
			msgs, err := x.store.Claim(ctx, queue.Claim{
				Owner: x.owner, LeaseTTL: time.Minute, Limit: 1, Topics: []string{x.name},
			})
			return one(len(msgs), err)
		}},
	{
		name: "release", before: isClaimed, act: release, committed: queue.Updated, undone: queue.Busy,
		state: queue.Processing,
	},
	{
		name: "release behind a savepoint", before: isClaimed, act: inSavepoint(release), committed: queue.Updated,
		undone: queue.Busy, state: queue.Processing,
	},
	{
		name: "MarkDead behind two savepoints", before: isClaimed, act: inSavepoint(inSavepoint(markDead)),
		committed: queue.Updated, undone: queue.Busy, state: queue.Dead,
	},
	{name: "abandon", before: isClaimed, committed: queue.Updated, undone: queue.Busy, state: queue.Processing,
		act: func(ctx context.Context, x ibx, id string) error {
			return one(x.store.Abandon(ctx, x.owner, "", 0, x.id(id)))
		}},
	{name: "fail", before: isClaimed, committed: queue.Updated, undone: queue.Busy, state: queue.Dead,
		act: func(ctx context.Context, x ibx, id string) error {
			return one(x.store.Fail(ctx, x.owner, "", x.id(id)))
		}},
	{name: "reap", before: isAbandoned, act: reap, committed: queue.Updated, undone: queue.Busy, state: queue.Processing},
	{name: "expiry", act: reap, committed: queue.Updated, undone: queue.Updated, state: queue.Dead, before: func(
		t *testing.T, x ibx, id string,
	) {
		late := x.item(id)
		late.ExpiresAt = time.Now().Add(-time.Second)
		x.put(t, late)
	}},
	{
		name: "requeue", before: isDead, act: operate(sqltext.Queue.Act["requeue"], "dead"), committed: queue.Updated,
		undone: queue.Updated, state: queue.Processing,
	},
	{
		name: "discard", before: isStored, act: operate(sqltext.Queue.Act["discard"], "ready"), committed: queue.AlreadyDone,
		undone: queue.Updated, state: queue.Done,
	},
}

// TestEnqueueBesideAChangeOfItsRow: another transaction changes a message while it is stored, and commits or rolls
// back. A message reported as stored is stored as a whole, it is Busy only if it has an owner, and AlreadyDone only if
// it is done.
func TestEnqueueBesideAChangeOfItsRow(t *testing.T) {
	h := onPgx(t)
	enqueuesBeside(t, h, func(returned func() bool) {
		eventually(t, func() bool {
			return returned() ||
				h.count(t,
					"select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'") > 0
		}, "the enqueue waits or has returned")
	})
}

func enqueuesBeside(t *testing.T, h handle, untilItWaits func(returned func() bool)) {
	for _, o := range overlaps {
		for _, commit := range []bool{true, false} {
			name := fmt.Sprintf("%s, %s", o.name, map[bool]string{true: "committed", false: "rolled back"}[commit])
			t.Run(name, func(t *testing.T) {
				x := ibx{handle: h, store: storeOn(t, h, queue.StoreConfig{}), name: name, owner: queue.NewOwner()}
				if o.before != nil {
					o.before(t, x, "a")
				}
				end := openTx(t, h, func(ctx context.Context) error { return o.act(ctx, x, "a") })
				it := queue.Item{
					ID: x.id("a"), Topic: x.name, Key: "new", Payload: []byte("new"), Metadata: map[string]string{"new": "new"},
					Hash: []byte("new"), DueAt: time.Now().Add(time.Hour).Truncate(time.Microsecond),
					ExpiresAt: time.Now().Add(2 * time.Hour).Truncate(time.Microsecond),
				}
				var result []queue.EnqueueResult
				done := make(chan error, 1)
				go func() {
					var err error
					result, err = x.store.Enqueue(t.Context(), it)
					done <- err
				}()
				untilItWaits(func() bool { return len(done) > 0 })
				end(commit)
				require.NoError(t, within(t, "the answer", done))
				want, state := o.undone, queue.State("")
				if commit {
					want, state = o.committed, o.state
				}
				assert.Equal(t, want, result[0].Result)
				if strings.HasPrefix(o.name, "look-up") {
					assert.Equal(t, commit, result[0].Mismatch, "it was stored with another hash")
				}
				row := x.get(t, "a")
				switch {
				case state != "":
					assert.Equal(t, state, row.State)
				case result[0].Result == queue.New:
					assert.Equal(t, queue.Processing, row.State)
				}
				if want == queue.New || want == queue.Updated {
					assert.True(t, it.DueAt.Equal(row.DueAt) || row.State == queue.Dead || row.Attempts > 0, "due at %s", row.DueAt)
					assert.True(t, it.ExpiresAt.Equal(row.ExpiresAt))
					it.DueAt, it.ExpiresAt, row.DueAt, row.ExpiresAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}
					assert.Equal(t, it, row.Item)
				} else {
					was := x.item("a")
					was.Payload, was.Metadata, was.DueAt = row.Payload, row.Metadata, row.DueAt
					assert.Equal(t, was, row.Item, "none of its content is stored")
					assert.NotEqual(t, it.Payload, row.Payload)
					assert.Empty(t, row.Metadata)
				}
				require.NoError(t, x.store.MarkProcessed(t.Context(), x.id("a"))) // leaves nothing to others
			})
		}
	}
}

// TestSQLOfOtherLanguagesStoresOverASeenMessage: the INSERT in the package's documentation stores the content of a
// message that was only looked up before, and ignores a copy.
func TestSQLOfOtherLanguagesStoresOverASeenMessage(t *testing.T) {
	parallel(t)
	doc, err := os.ReadFile("../queue/doc.go")
	require.NoError(t, err)
	_, sql, found := strings.Cut(string(doc), "//	INSERT INTO")
	require.True(t, found)
	sql, _, found = strings.Cut(sql, ";")
	require.True(t, found)
	sql = "INSERT INTO" + strings.ReplaceAll(sql, "//", "")
	h := newPgxHandle(t, newMigratedDatabase(t))
	store := storeOn(t, h, queue.StoreConfig{})
	_, err = store.AlreadyProcessed(t.Context(), queue.ID{Source: "billing", MessageID: "4711"}, nil)
	require.NoError(t, err)
	for range 2 {
		h.exec(t, sql)
		h.exec(t, strings.ReplaceAll(strings.ReplaceAll(sql, "4711", "4712"), "billing", "other"))
	}
	msgs := claimed(t, store, queue.NewOwner(), 10)
	require.Len(t, msgs, 2)
	for _, msg := range msgs {
		assert.Equal(t, `{"amount": 5}`, string(msg.Payload), msg.MessageID)
	}
	h.exec(t, strings.ReplaceAll(sql, `"amount": 5`, `"amount": 6`))
	assert.Equal(t, `{"amount": 5}`, string(got(t, store, queue.ID{Source: "billing", MessageID: "4711"}).Payload),
		"a copy")
}

// TestMarkBesideAnEnqueue: callers that mark a message which is being stored find it unknown until AlreadyProcessed has
// waited for it.
func TestMarkBesideAnEnqueue(t *testing.T) {
	h := onPgx(t)
	for _, commit := range []bool{true, false} {
		x := ibx{
			handle: h, store: storeOn(t, h, queue.StoreConfig{}), name: fmt.Sprint("mark ", commit), owner: queue.NewOwner(),
		}
		end := openTx(t, h, func(ctx context.Context) error { return putOther(ctx, x, "a") })
		require.ErrorIs(t, x.store.MarkProcessed(t.Context(), x.id("a")), queue.ErrNotFound)
		marked := make(chan error, 1)
		go func() {
			done, err := x.store.AlreadyProcessed(t.Context(), x.id("a"), nil)
			assert.False(t, done)
			if err == nil {
				err = x.store.MarkProcessed(t.Context(), x.id("a"))
			}
			marked <- err
		}()
		h.reaches(t, 1, "AlreadyProcessed waits",
			"select count(*) from pg_stat_activity where datname = current_database() "+
				"and wait_event_type = 'Lock'")
		end(commit)
		require.NoError(t, within(t, "the mark", marked))
		assert.Equal(t, queue.Done, x.get(t, "a").State)
	}
}

// TestOtherContentOfABusyMessageIsRefused: new content of a message that is being handled is not stored. The webhook
// and Ingest make its sender send it again, and accept a plain copy.
func TestOtherContentOfABusyMessageIsRefused(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, queue.StoreConfig{HashContent: true})
	w := webhookOn(t, s, nil)
	ingest, err := queue.Ingest(s, queue.IngestConfig{Item: func(msg *message.Message) (queue.Item, error) {
		return queue.Item{ID: queue.ID{Source: "shop", MessageID: msg.UUID}, Topic: "orders", Payload: msg.Payload}, nil
	}})
	require.NoError(t, err)
	require.Equal(t, 200, answer(w, post("one", "payload")).StatusCode)
	require.Len(t, claimed(t, s, queue.NewOwner(), 1), 1)

	assert.Equal(t, 200, answer(w, post("one", "payload")).StatusCode, "a copy")
	a := answer(w, post("one", "payload, another"))
	assert.Equal(t, 503, a.StatusCode)
	assert.NotEmpty(t, a.Header.Get("Retry-After"))
	require.NoError(t, ingest(message.NewMessage("one", []byte("payload"))), "a copy")
	require.ErrorContains(t, ingest(message.NewMessage("one", []byte("payload, another"))), "send it again")
	require.NoError(t, ingest(message.NewMessage("two", []byte("payload"))), "others")

	require.NoError(t, s.MarkProcessed(t.Context(), queue.ID{Source: "shop", MessageID: "one"}))
	assert.Equal(t, 200, answer(w, post("one", "payload, another")).StatusCode, "it was handled")
}
