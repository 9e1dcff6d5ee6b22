package integration_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/queue"
)

// The tests of this file are about claimed messages: only their owner settles, discards or releases them.

// TestExpiredIsNotClaimedBeforeItIsReaped: a Store reaps once a second, but does not claim messages that have expired
// since.
func TestExpiredIsNotClaimedBeforeItIsReaped(t *testing.T) {
	h := onPgx(t)
	store, owner := storeOn(t, h, queue.StoreConfig{}), queue.NewOwner()
	storeAll(t, store, numberedItems("shop", 3)...)
	settles(t, 3)(store.Release(t.Context(), owner, idsOf(claimed(t, store, owner, 3))...)) // it reaps
	h.exec(t, "update inbox_queue set crashes = 1 where message_id = '000002'")
	storeAll(t, store, item("shop", "ready"))
	h.exec(t, "update inbox_queue set expires_at = clock_timestamp()")
	assert.Empty(t, claimed(t, store, owner, 10))
}

// TestOnDeadIsNotCalledForAMessageThatWasLost: its new owner decides its outcome.
func TestOnDeadIsNotCalledForAMessageThatWasLost(t *testing.T) {
	h := onPgx(t)
	s, other := storeOn(t, h, quickStore()), queue.NewOwner()
	storeAll(t, s, items("orders", 1)...)
	lost := make(chan struct{})
	cfg := quickDispatcher(map[string]queue.Handler{
		"orders": {Detached: true, Handle: func(context.Context, *queue.Message) error {
			defer close(lost)
			h.exec(t, "update inbox_queue set owner = $1", other.String())
			return outbox.Poison(errors.New("not ours any more"))
		}},
	})
	var died atomic.Int64
	cfg.OnDead = func(context.Context, *queue.Message, error) error { died.Add(1); return nil }
	cfg.LeaseTTL = time.Hour
	d := dispatching(t, s, cfg)
	within(t, "the handler", lost)
	require.NoError(t, d.Close()) // by now it has settled the message, if it could
	assert.Zero(t, died.Load(), "calls of OnDead")
	assert.Equal(t, other.String(), value[string](t, h, "select owner::text from inbox_queue where state = 'processing'"))
}

// TestOnDeadKeepsNobodyFromStoring: however long OnDead runs, new messages are stored, and a copy of its message gets
// Busy.
func TestOnDeadKeepsNobodyFromStoring(t *testing.T) {
	parallel(t)
	s := storeOn(t, newPgxHandle(t, newMigratedDatabase(t)), quickStore())
	storeAll(t, s, items("orders", 1)...)
	cfg := quickDispatcher(map[string]queue.Handler{"orders": {Handle: func(context.Context, *queue.Message) error {
		return outbox.Poison(errors.New("no good"))
	}}})
	g := newBarrier(t)
	cfg.OnDead = func(ctx context.Context, msg *queue.Message, _ error) error { return g.handle(ctx, msg) }
	dispatching(t, s, cfg)
	g.await(t)
	ingest, err := queue.Ingest(s, queue.IngestConfig{Item: func(msg *message.Message) (queue.Item, error) {
		return queue.Item{
			ID: queue.ID{Source: itemID("orders", 0).Source, MessageID: msg.UUID}, Topic: "others", Payload: msg.Payload,
		}, nil
	}})
	require.NoError(t, err)
	require.NoError(t, ingest(message.NewMessage("orders-0", []byte("a copy"))))
	require.NoError(t, ingest(message.NewMessage("another", nil)))
	stored, err := s.Enqueue(t.Context(), items("orders", 1)[0])
	require.NoError(t, err)
	assert.Equal(t, queue.Busy, stored[0].Result)
	state, _ := stateOf(t, s, itemID("orders", 0))
	assert.Equal(t, queue.Processing, state)
	g.open()
	untilState(t, s, itemID("orders", 0), queue.Dead)
}

// TestExpiredMessageOfAnotherIsNotMarkedDead: a message that has an owner may still be handled.
func TestExpiredMessageOfAnotherIsNotMarkedDead(t *testing.T) {
	h := onPgx(t)
	s, other := storeOn(t, h, quickStore()), queue.NewOwner()
	storeAll(t, s, items("orders", 2)...)
	require.Len(t, claimed(t, s, other, 1), 1)
	// expires before the other
	h.exec(t, "update inbox_queue set expires_at = clock_timestamp() - interval '1 hour' * (1 + (owner is not null)::int)")
	died := make(chan string, 10)
	cfg := quickDispatcher(map[string]queue.Handler{"orders": {Handle: func(context.Context, *queue.Message) error {
		return nil
	}}})
	cfg.OnDead = func(_ context.Context, msg *queue.Message, _ error) error { died <- msg.MessageID; return nil }
	dispatching(t, s, cfg)
	assert.Equal(t, "orders-1", within(t, "the call of OnDead", died))
	untilState(t, s, itemID("orders", 1), queue.Dead)
	assert.Empty(t, died)
	settles(t, 1)(s.Ack(t.Context(), other, itemID("orders", 0)))
}

// TestLostClaimsAreOnlyUnknownOnes: releasing the claims of an owner whose reply was lost releases neither messages
// that it knows of nor those of others.
func TestLostClaimsAreOnlyUnknownOnes(t *testing.T) {
	h := onPgx(t)
	store, mine, other := storeOn(t, h, queue.StoreConfig{}), queue.NewOwner(), queue.NewOwner()
	for _, due := range []bool{false, true} {
		storeAll(t, store, numberedItems("shop", 6)...)
		if due {
			settles(t, 6)(store.Release(t.Context(), mine, idsOf(claimed(t, store, mine, 6))...))
		}
		known, unknown, others := claimed(t, store, mine, 2), claimed(t, store, mine, 2), claimed(t, store, other, 2)
		ids := []string{known[0].MessageID, known[1].MessageID}
		n := h.exec(t, sqltext.Tables{}.Render(sqltext.ReleaseLostClaims), mine.String(), []string{"shop", "shop"}, ids, 1000)
		assert.EqualValues(t, 2, n)
		settles(t, 0)(store.Ack(t.Context(), mine, idsOf(unknown)...))
		settles(t, 2)(store.Ack(t.Context(), mine, idsOf(known)...))
		settles(t, 2)(store.Ack(t.Context(), other, idsOf(others)...))
		h.exec(t, "delete from inbox_queue")
	}
}

// TestActsLeaveWhatIsWorkedOn: an operator's act changes no claimed message.
func TestActsLeaveWhatIsWorkedOn(t *testing.T) {
	h := onPgx(t)
	store, owner := storeOn(t, h, queue.StoreConfig{}), queue.NewOwner()
	all := admin.Filter{In: admin.Queue, All: true}
	for name, act := range map[string]struct {
		do    func(context.Context, admin.Action) (admin.Result, error)
		state admin.State
		make  string
	}{
		"discard": {newAdmin(t, h).Discard, admin.Ready, ""},
		"discard failing": {
			newAdmin(t, h).Discard, admin.Failing, "update inbox_queue set attempts = 1, due_at = clock_timestamp()",
		},
		"retry now": {
			newAdmin(t, h).RetryNow, admin.Failing,
			"update inbox_queue set attempts = 1, due_at = clock_timestamp() + interval '1 hour'",
		},
		"retry now delayed": {
			newAdmin(t, h).RetryNow, admin.Delayed, "update inbox_queue set due_at = clock_timestamp() + interval '1 hour'",
		},
	} {
		storeAll(t, store, numberedItems("shop", 2)...)
		msgs := claimed(t, store, owner, 1)
		require.Len(t, msgs, 1)
		if act.make != "" {
			h.exec(t, act.make)
		}
		before := value[string](t, h, "select q::text from inbox_queue q where owner is not null")
		filter := all
		filter.States = []admin.State{act.state}
		r, err := act.do(t.Context(), admin.Action{Filter: filter, Reason: "why"})
		require.NoError(t, err, name)
		assert.EqualValues(t, 1, r.Touched, name)
		assert.EqualValues(t, 1, r.Skipped, name)
		assert.Equal(t, before, value[string](t, h, "select q::text from inbox_queue q where owner is not null"), name)
		settles(t, 1)(store.Ack(t.Context(), owner, msgs[0].ID))
		h.exec(t, "delete from inbox_queue")
	}
}

// TestActLeavesWhatHasChangedSinceItWasFound: a dead message was handled after all, between the scan that found it and
// the statement that changes it.
func TestActLeavesWhatHasChangedSinceItWasFound(t *testing.T) {
	parallel(t)
	url := newMigratedDatabase(t)
	h, gate := newStatementGate(t, url)
	defer gate.releaseAll()
	far := newPgxHandle(t, url)
	store := storeOn(t, far, queue.StoreConfig{})
	x := ibx{handle: far, store: store, name: "shop", owner: queue.NewOwner()}
	isDead(t, x, "a")
	change := gate.hold(sqltext.Queue.Act["requeue"], 0)
	type answer struct {
		r   admin.Result
		err error
	}
	done := make(chan answer, 1)
	go func() {
		r, err := newAdmin(t, h).Requeue(t.Context(), admin.Action{Filter: admin.Filter{In: admin.Queue, All: true}})
		done <- answer{r, err}
	}()
	within(t, "the act", change.arrived)
	require.NoError(t, store.MarkProcessed(t.Context(), x.id("a")))
	gate.releaseAll()
	a := within(t, "the act's answer", done)
	require.NoError(t, a.err)
	assert.Zero(t, a.r.Touched)
	assert.EqualValues(t, 1, a.r.Skipped)
	assert.Equal(t, queue.Done, x.get(t, "a").State)
}

// TestTwoClaimsBringOneSuspectIntoAProcess: two claims in flight each bring a message that may have killed a process,
// but a process handles only one of these. The other is released and claimed again when the slot is free. The slot is
// shared by the whole process, so no other test may run next to this one.
func TestTwoClaimsBringOneSuspectIntoAProcess(t *testing.T) {
	noLeaks(t)
	suspects := newBarrier(t)
	var handles []handle
	var gates []*statementGate
	var answers []*heldStatement
	for range 2 {
		h, gate := newStatementGate(t, newMigratedDatabase(t))
		defer gate.releaseAll()
		s := storeOn(t, h, quickStore())
		storeAll(t, s, items("orders", 1)...)
		h.exec(t, "update inbox_queue set crashes = 1, attempts = 1, due_at = clock_timestamp()")
		answers = append(answers, gate.holdResult(sqltext.ClaimPages))
		handles, gates = append(handles, h), append(gates, gate)
		cfg := quickDispatcher(map[string]queue.Handler{"orders": {Detached: true, Handle: suspects.handle}})
		cfg.LeaseTTL = time.Hour
		dispatching(t, s, cfg)
	}
	for i, a := range answers {
		within(t, fmt.Sprint("the claim of ", i), a.arrived)
	}
	for _, g := range gates {
		g.releaseAll()
	}
	suspects.await(t)
	owned := func() (n int) {
		for _, h := range handles {
			n += h.count(t, "select count(*) from inbox_queue where owner is not null")
		}
		return n
	}
	eventually(t, func() bool { return owned() == 1 }, "one of them is released")
	assert.Empty(t, suspects.came, "the other suspect")
	suspects.open()
	suspects.await(t)
}

// TestASuspectOfABusyTopicHoldsUpNoOther: a process handles one message at a time that may have killed a process. One
// that waits for a slot of its topic must not take that place from the others. The place is shared by the whole
// process, so no other test may run next to this one.
func TestASuspectOfABusyTopicHoldsUpNoOther(t *testing.T) {
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	s := storeOn(t, h, quickStore())
	busy, quiet, plain := newBarrier(t), newBarrier(t), newBarrier(t)
	plain.open()
	storeAll(t, s, items("busy", 1)...)
	dispatching(t, s, quickDispatcher(map[string]queue.Handler{
		"busy":  {Detached: true, Timeout: -1, Concurrency: 1, Handle: busy.handle},
		"quiet": {Detached: true, Timeout: -1, Handle: quiet.handle},
		"plain": {Detached: true, Handle: plain.handle},
	}))
	busy.await(t)
	storeAll(t, s, items("later", 3)...) // no handler for these
	h.exec(t, `update inbox_queue set crashes = 1, attempts = 1, due_at = clock_timestamp() - (4 - id) * interval '1 minute',
		topic = case id when 2 then 'busy' else 'quiet' end where topic = 'later'`)
	quiet.await(t)
	storeAll(t, s, items("plain", 1)...)
	plain.await(t)
	assert.Empty(t, quiet.came, "another suspect at the same time")
	quiet.open()
	quiet.await(t)
	assert.Empty(t, busy.came)
	busy.open()
	busy.await(t)
}

// TestASuspectHasItsSlotUntilItIsAcked: a suspect that kills its process must not begin while the ack of another is
// not written, or that one counts an attempt. The slot is shared by the whole process, so no other test may run next to
// this one.
func TestASuspectHasItsSlotUntilItIsAcked(t *testing.T) {
	noLeaks(t)
	h, gate := newStatementGate(t, newMigratedDatabase(t))
	defer gate.releaseAll()
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("orders", 2)...)
	h.exec(t, "update inbox_queue set crashes = 1, attempts = 1, due_at = clock_timestamp()")
	ack := gate.hold(sqltext.AckMessages, 0)
	suspects, plain := newBarrier(t), newBarrier(t)
	suspects.open()
	plain.open()
	cfg := quickDispatcher(map[string]queue.Handler{
		"orders": {Detached: true, Handle: suspects.handle},
		"plain":  {Handle: plain.handle},
	})
	cfg.LeaseTTL = time.Hour
	dispatching(t, s, cfg)
	suspects.await(t)
	gate.arrives(t, "the ack", ack)
	storeAll(t, s, items("plain", 1)...)
	plain.await(t)
	assert.Equal(t, 1, h.count(t, "select count(*) from inbox_queue where topic = 'orders' and owner is not null"),
		"the other suspect was claimed before the ack")
	gate.releaseAll()
	suspects.await(t)
}

// TestAHangingSuspectHoldsUpNoOther: a message that was going to kill its process would have done so within LeaseTTL.
// Then the next one begins. The place is shared by the whole process, so no other test may run next to this one.
func TestAHangingSuspectHoldsUpNoOther(t *testing.T) {
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("orders", 2)...)
	h.exec(t, "update inbox_queue set crashes = 1, attempts = 1, due_at = clock_timestamp()")
	hanging := newBarrier(t)
	cfg := quickDispatcher(map[string]queue.Handler{"orders": {Detached: true, Timeout: -1, Handle: hanging.handle}})
	cfg.LeaseTTL = time.Second
	dispatching(t, s, cfg)
	for range 2 {
		hanging.await(t)
	}
	hanging.open()
}

// TestLostMessageEndsItsHandlersContextSoon: the next renewal detects that the message has another owner, long before
// the lease would expire.
func TestLostMessageEndsItsHandlersContextSoon(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("orders", 1)...)
	const lease = 15 * time.Second // renewed after a third of it
	ended := make(chan error, 1)
	var took time.Duration
	cfg := quickDispatcher(map[string]queue.Handler{
		"orders": {Detached: true, Timeout: -1, Handle: func(ctx context.Context, _ *queue.Message) error {
			begun := time.Now()
			h.exec(t, "update inbox_queue set owner = gen_random_uuid()")
			<-ctx.Done()
			took = time.Since(begun)
			ended <- context.Cause(ctx)
			return ctx.Err()
		}},
	})
	cfg.LeaseTTL = lease
	dispatching(t, s, cfg)
	require.ErrorIs(t, within(t, "the context's end", ended), queue.ErrLeaseLost)
	assert.Less(t, took, lease*9/10, "without that renewal it would end with the lease")
}

// TestLockOfAnotherTransactionEndsNoLease: a renewal skips a row that another transaction has locked. The message keeps
// its lease, and the next renewal renews it.
func TestLockOfAnotherTransactionEndsNoLease(t *testing.T) {
	parallel(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("orders", 2)...)
	g := newBarrier(t)
	cfg := quickDispatcher(map[string]queue.Handler{"orders": {Detached: true, Timeout: -1, Handle: g.handle}})
	cfg.LeaseTTL = 9 * time.Second
	dispatching(t, s, cfg)
	for range 2 {
		g.await(t)
	}
	h.exec(t, "create table leases as select message_id, locked_until from inbox_queue")
	renewed := "select count(*) from inbox_queue q join leases l using (message_id) where q.locked_until > l.locked_until"
	unlock := openTx(t, h, func(ctx context.Context) error {
		return h.execTx(ctx, "select from inbox_queue where message_id = $1 for key share", itemID("orders", 0).MessageID)
	})
	h.reaches(t, 1, "the other lease is renewed", renewed)
	unlock(true)
	h.reaches(t, 2, "both are renewed", renewed)
	g.open()
	for i := range 2 {
		untilState(t, s, itemID("orders", i), queue.Done)
		_, attempts := stateOf(t, s, itemID("orders", i))
		assert.Zero(t, attempts, "attempts of message %d", i)
	}
	assert.Empty(t, g.came, "messages that were handled again")
}

// TestClaimRolledBackIsFoundAtOnce: a claim in a transaction moves no cursor, because the commit is uncertain.
func TestClaimRolledBackIsFoundAtOnce(t *testing.T) {
	h := onPgx(t)
	for range 3 {
		store, owner := storeOn(t, h, queue.StoreConfig{}), queue.NewOwner()
		for i := range 3 { // the cursor advances, and the next full read is far off
			storeAll(t, store, item("before", fmt.Sprint(i)))
			require.Len(t, claimed(t, store, owner, 10), 1)
		}
		storeAll(t, store, numberedItems("shop", 3)...)
		end := openTx(t, h, func(ctx context.Context) error {
			for range 2 {
				msgs, err := store.Claim(ctx, queue.Claim{Owner: queue.NewOwner(), LeaseTTL: time.Minute, Limit: 10})
				if err != nil {
					return err
				}
				assert.True(t, len(msgs) == 3 || len(msgs) == 0, "%d", len(msgs))
			}
			return nil
		})
		end(false)
		assert.Len(t, claimed(t, store, owner, 10), 3)
		h.exec(t, "delete from inbox_queue")
	}
}

// TestCopyOfADoneMessageStoresNothing: neither its content nor its due time changes, nor its place in the order. None
// of it can be claimed.
func TestCopyOfADoneMessageStoresNothing(t *testing.T) {
	h := onPgx(t)
	store, owner := storeOn(t, h, queue.StoreConfig{}), queue.NewOwner()
	storeAll(t, store, item("shop", "a"))
	settles(t, 1)(store.Ack(t.Context(), owner, idsOf(claimed(t, store, owner, 1))...))
	row := "select (to_jsonb(q) - 'last_seen_at')::text from inbox_queue q where message_id = 'a'"
	before, seen := value[string](t, h, row), got(t, store, item("shop", "a").ID).LastSeenAt
	it := item("shop", "a")
	it.Topic, it.Key, it.Payload, it.Metadata, it.Hash = "other", "key", []byte("new"), map[string]string{"k": "v"},
		[]byte("hash")
	it.DueAt, it.ExpiresAt = time.Now().Add(time.Hour), time.Now().Add(time.Hour)
	storeAll(t, store, item("shop", "b"), it)
	assert.Equal(t, before, value[string](t, h, row))
	assert.True(t, got(t, store, it.ID).LastSeenAt.After(seen))
}

// TestIDsRiseInTheOrderOfTheCall: messages that are stored together are claimed in the order in which they were passed,
// whatever their IDs are and however many statements it takes.
func TestIDsRiseInTheOrderOfTheCall(t *testing.T) {
	h := onPgx(t)
	store := storeOn(t, h, queue.StoreConfig{})
	all := numberedItems("shop", 300)
	for i := range all { // not in the order of their IDs, and some of them known already
		j := (i * 7) % len(all)
		all[i], all[j] = all[j], all[i]
	}
	_, err := store.AlreadyProcessed(t.Context(), all[17].ID, nil)
	require.NoError(t, err)
	storeAll(t, store, append(slices.Clone(all), all[5])...) // and one of them twice
	want := make([]string, 0, len(all))
	for i, it := range all {
		if i != 17 {
			want = append(want, it.MessageID)
		}
	}
	assert.Equal(t, want, column[string](t, h, "select message_id from inbox_queue where due_at is null order by id"))
	var ids []string
	for _, msg := range claimed(t, store, queue.NewOwner(), 299) {
		if msg.MessageID != all[17].MessageID {
			ids = append(ids, msg.MessageID)
		}
	}
	assert.Equal(t, want[:len(ids)], ids)
}

// TestWebhookBoundsABodyBeforeItIsVerified: a sender without a signature cannot fill the memory, even if the store
// accepts any payload.
func TestWebhookBoundsABodyBeforeItIsVerified(t *testing.T) {
	h := onPgx(t)
	longest := 0
	w := webhookOn(t, storeOn(t, h, queue.StoreConfig{}), func(cfg *queue.WebhookConfig) {
		verify := cfg.Verify
		cfg.Verify = func(r *http.Request, body []byte) error {
			longest = max(longest, len(body))
			return verify(r, body)
		}
	})
	assert.Equal(t, 200, answer(w, post("fits", "payload"+strings.Repeat("x", 993))).StatusCode)
	assert.Equal(t, 413, answer(w, post("long", "payload"+strings.Repeat("x", 994))).StatusCode)
	assert.Equal(t, 1000, longest)
	assert.Equal(t, 1, h.count(t, "select count(*) from inbox_queue"))
}
