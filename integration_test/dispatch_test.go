package integration_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestDispatcherCommitsWithItsHandlers: a handler's writes, its messages and its ack commit together.
func TestDispatcherCommitsWithItsHandlers(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		seen := &seen{}
		h = h.seenBy(t, seen)
		s := storeOn(t, h, quickStore())
		pub := newOutboxPublisher(t, h)
		book := func(ctx context.Context, msg *queue.Message) error {
			if err := applying(h)(ctx, msg); err != nil {
				return err
			}
			if err := pub.PublishContext(ctx, "booked", message.NewMessage(msg.MessageID, msg.Payload)); err != nil {
				return err
			}
			if msg.Attempts == 0 && msg.Payload[len(msg.Payload)-1]%2 == 0 {
				return errHandler
			}
			return nil
		}
		detached := atomic.Int64{}
		storeAll(t, s, append(items("orders", 20), items("calls", 20)...)...)
		d := dispatching(t, s, quickDispatcher(map[string]queue.Handler{
			"orders": {Handle: book},
			"calls": {Detached: true, Handle: func(ctx context.Context, msg *queue.Message) error {
				if _, err := outbox.PgxTx(ctx); !errors.Is(err, outbox.ErrNoTx) {
					return fmt.Errorf("a transaction: %w", err)
				}
				detached.Add(1)
				return nil
			}},
		}))
		h.reaches(t, 40, "all are done", "select count(*) from inbox_queue where state = 'done'")
		drain(t, d)
		assert.Equal(t, 20, h.count(t, "select count(*) from effects"))
		assert.Equal(t, 20, h.count(t, "select count(distinct message_id) from effects"))
		assert.Equal(t, 20, outboxed(t, h))
		assert.EqualValues(t, 20, detached.Load())
		assert.Equal(t, 20, h.count(t, "select count(*) from inbox_queue where topic = 'orders' and attempts = (payload = "+
			"'' and message_id ~ '[02468]$')::int"),
			"only failures are charged, each once")
		count := map[observe.Outcome]int{}
		for _, o := range seen.outcomes() {
			count[o]++
		}
		assert.Equal(t, 40, count[observe.Processed])
		assert.Equal(t, h.count(t, "select sum(attempts) from inbox_queue"), count[observe.Failed])
	})
}

// TestDispatcherDecides the outcome of a message whose handler fails.
func TestDispatcherDecides(t *testing.T) {
	h := onPgx(t)
	h.exec(t, "create table graves (message_id text, cause text)")
	cfg := quickStore()
	cfg.MaxAttempts = 3
	s := storeOn(t, h, cfg)
	errGone := errors.New("gone")
	handlers := map[string]queue.Handler{}
	for topic, handle := range map[string]func(ctx context.Context, msg *queue.Message) error{
		"failing":  func(context.Context, *queue.Message) error { return errHandler },
		"panicky":  func(context.Context, *queue.Message) error { panic(errHandler) },
		"goexit":   func(context.Context, *queue.Message) error { runtime.Goexit(); return nil },
		"poison":   func(context.Context, *queue.Message) error { return outbox.Poison(errHandler) },
		"known":    func(context.Context, *queue.Message) error { return outbox.ErrAlreadyProcessed },
		"gone":     func(context.Context, *queue.Message) error { return errGone },
		"undone":   func(ctx context.Context, _ *queue.Message) error { return outbox.SetRollbackOnly(ctx) },
		"slow":     func(ctx context.Context, _ *queue.Message) error { <-ctx.Done(); return nil },
		"ending":   func(ctx context.Context, _ *queue.Message) error { return h.execFirst(ctx, "commit") },
		"not dead": func(context.Context, *queue.Message) error { return outbox.Poison(errHandler) },
	} {
		timeout := patience
		if topic == "slow" {
			timeout = 200 * time.Millisecond
		}
		handlers[topic] = queue.Handler{Timeout: timeout, Handle: func(ctx context.Context, msg *queue.Message) error {
			if err := applying(h)(ctx, msg); err != nil {
				return err
			}
			return handle(ctx, msg)
		}}
		storeAll(t, s, items(topic, 1)...)
	}
	dispatcher := quickDispatcher(handlers)
	dispatcher.Classify = func(err error) outbox.Decision {
		if errors.Is(err, errGone) {
			return outbox.DeadLetter
		}
		return outbox.Nack
	}
	dispatcher.OnDead = func(ctx context.Context, msg *queue.Message, err error) error {
		if msg.Topic == "not dead" {
			return errHandler
		}
		return h.execTx(ctx, "insert into graves (message_id, cause) values ($1, $2)", msg.MessageID, err.Error())
	}
	dispatching(t, s, dispatcher)
	for topic, want := range map[string]struct {
		state    queue.State
		attempts int
		applied  int
	}{
		"failing": {queue.Dead, 3, 0}, "panicky": {queue.Dead, 3, 0}, "goexit": {queue.Dead, 3, 0},
		"slow":   {queue.Dead, 3, 0},
		"poison": {queue.Dead, 1, 0}, "gone": {queue.Dead, 1, 0}, "known": {queue.Done, 0, 0}, "undone": {queue.Done, 0, 0},
		"ending": {queue.Dead, 3, 3}, // it has committed its writes, so the failure cannot undo them
	} {
		untilState(t, s, itemID(topic, 0), want.state)
		_, attempts := stateOf(t, s, itemID(topic, 0))
		assert.Equal(t, want.attempts, attempts, topic)
		assert.Equal(t, want.applied, h.count(t, "select count(*) from effects where message_id = $1", topic+"-0"), topic)
		if want.state == queue.Dead {
			assert.Equal(t, 1, h.count(t, "select count(*) from graves where message_id = $1", topic+"-0"), topic)
		}
	}
	assert.Equal(t, "panic: the handler failed",
		value[string](t, h, "select cause from graves where message_id = 'panicky-0'"))
	eventually(t, func() bool {
		msg, err := s.Get(t.Context(), itemID("not dead", 0))
		return err == nil && msg.State == queue.Processing && msg.LastError == "OnDead: the handler failed" &&
			time.Until(msg.DueAt) > 30*time.Second
	}, "a message is not dead until OnDead succeeds")
}

// TestDispatcherLogs each call of a handler with all stored metadata, each error and each death, but no payload.
func TestDispatcherLogs(t *testing.T) {
	h := onPgx(t)
	cfg := quickStore()
	cfg.MaxAttempts = 2
	s := storeOn(t, h, cfg)
	log := &lineLogger{}
	it := items("orders", 1)[0]
	it.Key, it.Hash, it.Payload, it.Metadata = "K", []byte("hash"), []byte("canary"), message.Metadata{"kind": "canary"}
	it.ExpiresAt = time.Now().Add(time.Hour).Truncate(time.Microsecond)
	storeAll(t, s, it)
	d, err := queue.NewDispatcher(s,
		quickDispatcher(map[string]queue.Handler{"orders": {Handle: func(_ context.Context, msg *queue.Message) error {
			it.DueAt = msg.DueAt
			msg.ExpiresAt = msg.ExpiresAt.In(it.ExpiresAt.Location())
			assert.Equal(t, it, msg.Item)
			if msg.Attempts == 0 {
				return errHandler
			}
			panic("again")
		}}}), log)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- d.Run(t.Context()) }()
	untilState(t, s, it.ID, queue.Dead)
	require.NoError(t, errors.Join(d.Close(), <-ended))
	for attempt, why := range []string{errHandler.Error(), "panic: again"} {
		of := []string{
			"topic:orders", "source:test", "message_id:orders-0", fmt.Sprint("attempt:", attempt+1), "db:" + h.db.Name(),
		}
		assert.True(t, log.has("DEBUG handling message", of...), log.lines)
		assert.True(t, log.has("ERROR handler failed "+why, of...), log.lines)
	}
	assert.True(t, log.has("ERROR message died", "message_id:orders-0"), log.lines)
	assert.False(t, log.has("", "canary"), log.lines)
}

// TestDispatcherLogsErrorsWithoutConsequence: a handler's error is logged, even if it no longer decides the outcome.
func TestDispatcherLogsErrorsWithoutConsequence(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("stolen", 1)...)
	storeAll(t, s, items("slow", 1)...)
	log := &lineLogger{}
	came := make(chan bool, 2)
	until := queue.Handler{Detached: true, Handle: func(ctx context.Context, msg *queue.Message) error {
		came <- true
		<-ctx.Done()
		return errors.New("half done: " + msg.MessageID)
	}}
	cfg := quickDispatcher(map[string]queue.Handler{"stolen": until, "slow": until})
	cfg.LeaseTTL, cfg.CloseTimeout = time.Second, time.Millisecond
	d, err := queue.NewDispatcher(s, cfg, log)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- d.Run(t.Context()) }()
	<-came
	<-came
	h.exec(t, "update inbox_queue set owner = gen_random_uuid(), locked_until = now() + interval '1 hour' "+
		"where topic = 'stolen'")
	eventually(t, func() bool { return log.has("ERROR", "lease was lost", "half done: stolen-0", "message_id:stolen-0") },
		"its error is logged")
	require.NoError(t, errors.Join(d.Close(), <-ended))
	assert.True(t, log.has("ERROR", "CloseTimeout", "half done: slow-0", "message_id:slow-0"), log.lines)
}

// TestDispatcherLogsClaimsOfExpiredMessages, which OnDead gets, like claims for handlers.
func TestDispatcherLogsClaimsOfExpiredMessages(t *testing.T) {
	h := onPgx(t)
	log := &lineLogger{}
	s, err := queue.NewStore(h.db, quickStore(), log)
	require.NoError(t, err)
	late := items("orders", 1)[0]
	late.ExpiresAt = time.Now().Add(-time.Second)
	storeAll(t, s, late)
	cfg := quickDispatcher(map[string]queue.Handler{"orders": {Handle: func(context.Context, *queue.Message) error {
		return nil
	}}})
	cfg.OnDead = func(context.Context, *queue.Message, error) error { return nil }
	drain(t, newDispatcher(t, s, cfg))
	untilState(t, s, late.ID, queue.Dead)
	assert.True(t, log.has("DEBUG claimed expired messages", "messages:1"), log.lines)
}

// TestDispatcherMarksUnhandledMessagesDead: messages that expire, and messages that killed processes, also die in the
// transaction of OnDead, and observers are notified with or without OnDead.
func TestDispatcherMarksUnhandledMessagesDead(t *testing.T) {
	parallel(t)
	for _, onDead := range []bool{true, false} {
		told := &seen{}
		h := newPgxHandle(t, newMigratedDatabase(t)).seenBy(t, told)
		h.exec(t, "create table graves (message_id text, cause text)")
		cfg := quickStore()
		cfg.MaxAttempts = 2
		s := storeOn(t, h, cfg)
		expired, killer := items("orders", 6), items("killers", 1)[0] // more than there are slots
		for i := range expired {
			expired[i].ExpiresAt = time.Now().Add(-time.Hour)
		}
		storeAll(t, s, append(expired, killer)...)
		h.exec(t, "update inbox_queue set attempts = 1, crashes = 1, owner = gen_random_uuid(), locked_until = now() - "+
			"interval '1 s' where topic = 'killers'")
		dispatcher := quickDispatcher(map[string]queue.Handler{
			"orders": {Handle: func(context.Context, *queue.Message) error {
				t.Error("an expired message was handled")
				return nil
			}},
			"killers": {Handle: func(context.Context, *queue.Message) error {
				t.Error("a message without attempts was handled")
				return nil
			}},
		})
		dispatcher.Concurrency, dispatcher.LeaseTTL = 4, time.Hour
		if onDead {
			dispatcher.OnDead = func(ctx context.Context, msg *queue.Message, err error) error {
				return h.execTx(ctx, "insert into graves (message_id, cause) values ($1, $2)", msg.MessageID, err.Error())
			}
		}
		d := dispatching(t, s, dispatcher)
		h.reaches(t, 7, "all are dead", "select count(*) from inbox_queue where state = 'dead'")
		require.NoError(t, d.Close())
		_, attempts := stateOf(t, s, killer.ID)
		assert.Equal(t, 2, attempts)
		told.mu.Lock()
		ends := map[string]int{}
		for _, end := range told.all {
			ends[fmt.Sprintf("%s %s after %d calls: %v", end.Topic, end.Outcome, end.Attempts, end.Err)]++
		}
		told.mu.Unlock()
		const killed = "no attempt is left: lease expired"
		assert.Equal(t, map[string]int{"orders dead after 0 calls: expired": 6, "killers dead after 0 calls: " + killed: 1},
			ends)
		if onDead {
			assert.Equal(t, 6, h.count(t, "select count(*) from graves where cause = 'expired'"))
			assert.Equal(t, 1, h.count(t, "select count(*) from graves where cause = $1", killed))
		}
	}
}

// TestFailedOnDeadLetsOthersPass: a message whose OnDead fails waits, although it expired first and no other slot is
// free.
func TestFailedOnDeadLetsOthersPass(t *testing.T) {
	extended(t)
	parallel(t)
	s := storeOn(t, newPgxHandle(t, newMigratedDatabase(t)), quickStore())
	expired := items("orders", 3)
	for i := range expired {
		expired[i].ExpiresAt = time.Now().Add(-time.Hour + time.Duration(i)*time.Minute)
	}
	storeAll(t, s, expired...)
	cfg := quickDispatcher(map[string]queue.Handler{"orders": {Handle: func(context.Context, *queue.Message) error {
		return nil
	}}})
	cfg.Concurrency, cfg.LeaseTTL = 2, time.Hour
	died := make(chan struct{})
	cfg.OnDead = func(_ context.Context, msg *queue.Message, _ error) error {
		if msg.ID != expired[2].ID {
			return errHandler
		}
		close(died)
		return nil
	}
	dispatching(t, s, cfg)
	within(t, "OnDead returns", died)
}

// TestDispatcherTakesNoMoreThanItHandles: a dispatcher leaves the rest to others.
func TestDispatcherTakesNoMoreThanItHandles(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	storeAll(t, s, append(items("slow", 10), items("quick", 10)...)...)
	slow, quick := newBarrier(t), newBarrier(t)
	cfg := quickDispatcher(map[string]queue.Handler{
		"slow":  {Handle: slow.handle, Concurrency: 2},
		"quick": {Handle: quick.handle},
	})
	cfg.Concurrency = 5
	dispatching(t, s, cfg)
	for range 2 {
		slow.await(t)
	}
	for range 3 {
		quick.await(t)
	}
	claimed := "select count(*) from inbox_queue where owner is not null"
	assert.Equal(t, 5, h.count(t, claimed))
	others, err := s.Claim(t.Context(), queue.Claim{Owner: queue.NewOwner(), LeaseTTL: time.Minute, Limit: 100})
	require.NoError(t, err)
	assert.Len(t, others, 15)
	quick.open()
	eventually(t, func() bool { return h.count(t, claimed) == 17 }, "the quick ones are done, and the slow ones are not")
	slow.open()
}

// TestCloseGivesBack: claimed messages whose handlers have not begun are released without a charge, and Close waits for
// running handlers.
func TestCloseGivesBack(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("orders", 3)...)
	g := newBarrier(t)
	cfg := quickDispatcher(map[string]queue.Handler{"orders": {Handle: g.handle, Timeout: -1}})
	cfg.Concurrency = 2
	d := newDispatcher(t, s, cfg)
	ended := make(chan error, 1)
	go func() { ended <- d.Run(t.Context()) }()
	g.await(t)
	g.await(t)
	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	h.reaches(t, 1, "it releases messages whose handlers have not begun",
		"select count(*) from inbox_queue where state = 'processing' and owner is null")
	select {
	case <-closed:
		t.Fatal("Close did not wait for its handlers")
	case <-time.After(50 * time.Millisecond):
	}
	g.open()
	require.NoError(t, <-closed)
	require.NoError(t, <-ended)
	assert.Equal(t, 2, h.count(t, "select count(*) from inbox_queue where state = 'done'"))
	assert.Equal(t, 1, h.count(t, "select count(*) from inbox_queue where state = 'processing' and owner is null "+
		"and attempts = 0"))

	// A handler that heeds only its context: its message is released without a charge.
	stuck := newBarrier(t)
	cfg.Handlers = map[string]queue.Handler{"orders": {Handle: stuck.handle, Detached: true}}
	cfg.CloseTimeout = 50 * time.Millisecond
	d = newDispatcher(t, s, cfg)
	go func() { ended <- d.Run(t.Context()) }()
	stuck.await(t)
	require.NoError(t, d.Close())
	require.NoError(t, <-ended)
	assert.Equal(t, 1, h.count(t, "select count(*) from inbox_queue where state = 'processing' and owner is null "+
		"and attempts = 0"))
}

// TestCloseReleasesAClaim that is in flight when the dispatcher is closed.
func TestCloseReleasesAClaim(t *testing.T) {
	parallel(t)
	h, gate := newStatementGate(t, newMigratedDatabase(t))
	defer gate.releaseAll()
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("orders", 3)...)
	claim := gate.holdResult(sqltext.ClaimPages) // the first one
	d := newDispatcher(t, s, quickDispatcher(map[string]queue.Handler{"orders": {
		Handle: func(context.Context, *queue.Message) error { t.Error("a handler was started after Close"); return nil },
	}}))
	ctx, end := context.WithCancel(t.Context())
	defer end()
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	gate.arrives(t, "they are claimed", claim)
	require.Equal(t, 3, h.count(t, "select count(*) from inbox_queue where owner is not null"))
	end()
	gate.release(claim)
	require.NoError(t, <-ended)
	assert.Equal(t, 3, h.count(t, "select count(*) from inbox_queue where owner is null and attempts = 0"))
}

// TestUnknownTopicIsKept: messages of an unknown topic are kept, because another release may have a handler.
func TestUnknownTopicIsKept(t *testing.T) {
	h := onPgx(t)
	cfg := quickStore()
	cfg.MaxAttempts = 1
	s := storeOn(t, h, cfg)
	storeAll(t, s, items("new", 5)...)
	g := newBarrier(t)
	g.open()
	log := &lineLogger{}
	old, err := queue.NewDispatcher(s, quickDispatcher(map[string]queue.Handler{"old": {Handle: g.handle}}), log)
	require.NoError(t, err)
	drain(t, old)
	assert.True(t, log.has("INFO warning", "no handler", "DefaultHandler", "topic:new"))
	assert.Equal(t, 5, h.count(t, `select count(*) from inbox_queue where state = 'processing' and attempts = 0 and owner is null
		and last_error = 'no handler for the topic' and due_at > first_seen_at`))
	dispatching(t, s, quickDispatcher(map[string]queue.Handler{"new": {Handle: g.handle}}))
	for range 5 {
		g.await(t)
	}
}

// TestDispatcherLife: a dispatcher runs once.
func TestDispatcherLife(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	cfg := quickDispatcher(map[string]queue.Handler{"orders": {Handle: func(context.Context, *queue.Message) error {
		return nil
	}}})
	d := dispatching(t, s, cfg)
	require.ErrorIs(t, d.Run(t.Context()), outbox.ErrRunning)
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
	require.ErrorIs(t, d.Drain(t.Context()), outbox.ErrClosed)
	drained := newDispatcher(t, s, cfg)
	storeAll(t, s, items("orders", 100)...)
	drain(t, drained)
	assert.Equal(t, 100, h.count(t, "select count(*) from inbox_queue where state = 'done'"))
	require.ErrorIs(t, drained.Run(t.Context()), outbox.ErrRunning)

	bare := newPgxHandle(t, newDatabase(t))
	none := newDispatcher(t, storeOn(t, bare, quickStore()), cfg)
	require.ErrorContains(t, none.Run(t.Context()), "run schema.Migrate")
	require.ErrorContains(t, newDispatcher(t, storeOn(t, bare, quickStore()), cfg).Drain(t.Context()),
		"run schema.Migrate")
}

// TestEndedTransactionOfAHandlerThatIsStopped: writes of the handler after it ended its transaction are lost, so the
// message is delivered again.
func TestEndedTransactionOfAHandlerThatIsStopped(t *testing.T) {
	h := onPgx(t)
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("orders", 1)...)
	committed := make(chan error, 1)
	cfg := quickDispatcher(map[string]queue.Handler{"orders": {Handle: func(ctx context.Context, _ *queue.Message) error {
		committed <- h.execTx(ctx, "commit")
		<-ctx.Done()
		return nil
	}}})
	cfg.CloseTimeout = time.Millisecond
	d := newDispatcher(t, s, cfg)
	ended := make(chan error, 1)
	go func() { ended <- d.Run(context.Background()) }()
	require.NoError(t, <-committed)
	require.NoError(t, d.Close())
	require.NoError(t, <-ended)
	state, _ := stateOf(t, s, itemID("orders", 0))
	assert.Equal(t, queue.Processing, state)
}

// TestEndedTransactionOfAHandlerThatFails, or that ends its goroutine: the message is delivered again although the
// handler has committed the ack.
func TestEndedTransactionOfAHandlerThatFails(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		s := storeOn(t, h, quickStore())
		storeAll(t, s, items("fails", 1)...)
		storeAll(t, s, items("exits", 1)...)
		of := func(ending func()) queue.Handler {
			return queue.Handler{Handle: func(ctx context.Context, msg *queue.Message) error {
				if msg.Attempts > 0 {
					return nil
				}
				if err := h.execTx(ctx, "commit"); err != nil {
					return nil
				}
				ending()
				return errHandler
			}}
		}
		dispatching(t, s, quickDispatcher(map[string]queue.Handler{"fails": of(func() {}), "exits": of(runtime.Goexit)}))
		for _, topic := range []string{"fails", "exits"} {
			eventually(t, func() bool { _, attempts := stateOf(t, s, itemID(topic, 0)); return attempts == 1 },
				"the failed attempt is charged: %s", topic)
			untilState(t, s, itemID(topic, 0), queue.Done)
		}
	})
}
