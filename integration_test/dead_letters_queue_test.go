package integration_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/queue"
)

// mourner is an observer that records which messages died.
type mourner struct {
	mu   sync.Mutex
	dead map[string][]observe.HandleEnd // by UUID
}

func (*mourner) HandleStart(ctx context.Context, _ observe.HandleStart) context.Context { return ctx }

func (m *mourner) HandleEnd(_ context.Context, end observe.HandleEnd) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if end.Outcome == observe.Dead {
		m.dead[end.UUID] = append(m.dead[end.UUID], end)
	}
}

// of returns how a message died, one entry for each call of the observer.
func (m *mourner) of(id queue.ID) []observe.HandleEnd {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead[id.MessageID]
}

// watchedStore returns a store whose messages die at their second failure, with its observer.
func watchedStore(t testing.TB, h handle) (*queue.Store, *mourner, *lineLogger) {
	t.Helper()
	log, seen := &lineLogger{}, &mourner{dead: map[string][]observe.HandleEnd{}}
	cfg := quickStore()
	cfg.MaxAttempts = 2
	s, err := queue.NewStore(h.seenBy(t, seen).db, cfg, log)
	require.NoError(t, err)
	return s, seen, log
}

// heard asserts that a message is dead, with exactly one log line and one call of the observer.
func heard(t *testing.T, s *queue.Store, seen *mourner, log *lineLogger, id queue.ID, cause string) {
	t.Helper()
	untilState(t, s, id, queue.Dead)
	assert.True(t, eventuallyTrue(func() bool {
		return len(seen.of(id)) > 0
	}), "observers were not notified of the death of %s", id.MessageID)
	assert.True(t, eventuallyTrue(func() bool {
		return log.has("ERROR", "message died", "message_id:"+id.MessageID, cause)
	}),
		"no log line reports the death of %s", id.MessageID)
	if ends := seen.of(id); assert.Len(t, ends, 1) {
		assert.ErrorContains(t, ends[0].Err, cause)
	}
}

// kill leaves a message as a process does that dies during the last attempt.
func kill(t testing.TB, h handle, id queue.ID) {
	t.Helper()
	h.exec(t, `update inbox_queue set attempts = 1, owner = $1, locked_until = clock_timestamp() - interval '1 minute' `+
		`where message_id = $2`,
		uuid.NewString(), id.MessageID)
}

// TestSubscriberTellsWhatDies: observers are notified of each death of a Subscriber's messages, also without Outcomes
// and whether a handler had the message or not.
func TestSubscriberTellsWhatDies(t *testing.T) {
	h := onPgx(t)
	s, seen, log := watchedStore(t, h)
	late, killed := items("late", 1)[0], itemID("killed", 0)
	late.ExpiresAt = h.now(t).Add(-time.Second)
	storeAll(t, s, items("nacked", 1)...)
	storeAll(t, s, items("hanging", 1)...)
	storeAll(t, s, late)
	storeAll(t, s, items("killed", 1)...)
	kill(t, h, killed)
	subscribe := func(topic string, ackTimeout time.Duration) <-chan *message.Message {
		cfg := quickSubscriber()
		cfg.LeaseTTL, cfg.AckTimeout = time.Second, ackTimeout
		sub, err := queue.NewSubscriber(s, cfg, log)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, sub.Close()) })
		msgs, err := sub.Subscribe(t.Context(), topic)
		require.NoError(t, err)
		return msgs
	}
	nacked := subscribe("nacked", 0)
	for range 2 {
		receive(t, nacked).Nack()
	}
	subscribe("late", 0)
	subscribe("killed", 0)
	hanging := subscribe("hanging", 20*time.Millisecond)
	for range 2 {
		<-receive(t, hanging).Context().Done()
	}
	heard(t, s, seen, log, itemID("nacked", 0), "nacked")
	heard(t, s, seen, log, itemID("hanging", 0), "SubscriberConfig.AckTimeout")
	heard(t, s, seen, log, late.ID, "expired")
	heard(t, s, seen, log, killed, "lease expired")
}

// TestStoreTellsWhatDies: observers are notified of deaths when only callers of Claim and ReapExpired use the store.
func TestStoreTellsWhatDies(t *testing.T) {
	h := onPgx(t)
	s, seen, log := watchedStore(t, h)
	late := items("late", 1)[0]
	late.ExpiresAt = h.now(t).Add(-time.Second)
	storeAll(t, s, late)
	claimed(t, s, queue.NewOwner(), 1)
	heard(t, s, seen, log, late.ID, "expired")
	storeAll(t, s, items("killed", 1)...)
	kill(t, h, itemID("killed", 0))
	_, err := s.ReapExpired(t.Context())
	require.NoError(t, err)
	heard(t, s, seen, log, itemID("killed", 0), "lease expired")
}

// TestDispatcherTellsWhatDies: without OnDead, observers are notified of deaths by reaping and by failing handlers.
func TestDispatcherTellsWhatDies(t *testing.T) {
	h := onPgx(t)
	s, seen, log := watchedStore(t, h)
	late := items("late", 1)[0]
	late.ExpiresAt = h.now(t).Add(-time.Second)
	storeAll(t, s, late)
	storeAll(t, s, items("killed", 1)...)
	kill(t, h, itemID("killed", 0))
	fails := queue.Handler{Handle: func(context.Context, *queue.Message) error { return errHandler }}
	cfg := quickDispatcher(map[string]queue.Handler{"late": fails, "killed": fails})
	cfg.Service = "shop"
	d, err := queue.NewDispatcher(s, cfg, log)
	require.NoError(t, err)
	drain(t, d)
	heard(t, s, seen, log, late.ID, "expired")
	heard(t, s, seen, log, itemID("killed", 0), "lease expired")
	assert.Equal(t, "shop", seen.of(late.ID)[0].Service)
}

// TestStoredMessageOutlivesItsLetter: a message whose dead letter cannot be written does not die.
func TestStoredMessageOutlivesItsLetter(t *testing.T) {
	h := onPgx(t)
	s, seen, _ := watchedStore(t, h)
	h.exec(t, `alter table outbox add constraint no_letters check (topic <> 'dead_letters') not valid`)
	storeAll(t, s, items("orders", 1)...)
	one := itemID("orders", 0)
	startRouter(t, func(r *message.Router) {
		pub := newOutboxPublisher(t, h)
		r.AddMiddleware(stackFor(t, pub, middleware.StackConfig{}, nil)...)
		r.AddHandler("orders", "orders", subscriberOn(t, s, quickSubscriber()), "booked", pub,
			func(*message.Message) ([]*message.Message, error) {
				return nil, errors.New("it never works")
			})
	})
	eventually(t, func() bool {
		return h.count(t, "select count(*) from inbox_queue where owner is null and last_error like '%no_letters%'") == 1
	}, "its letter is refused")
	state, attempts := stateOf(t, s, one)
	assert.Equal(t, queue.Processing, state, "it died without a dead letter")
	assert.Equal(t, 1, attempts)
	assert.Empty(t, seen.of(one))
	h.exec(t, "alter table outbox drop constraint no_letters")
	h.exec(t, "update inbox_queue set due_at = clock_timestamp()")
	untilState(t, s, one, queue.Dead)
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox where topic = 'dead_letters'"))
}

// TestOnDeadThatKillsProcessesIsGivenUp: otherwise a message without attempts left would end one process after another,
// each time its lease expires.
func TestOnDeadThatKillsProcessesIsGivenUp(t *testing.T) {
	h := onPgx(t)
	s, seen, log := watchedStore(t, h) // two attempts
	called := make(chan string, 10)
	storeAll(t, s, items("orders", 2)...)
	h.exec(t, `update inbox_queue set attempts = 4, crashes = 4 where message_id = 'orders-0'`)
	h.exec(t, `update inbox_queue set attempts = 5, crashes = 5 where message_id = 'orders-1'`)
	cfg := quickDispatcher(map[string]queue.Handler{"orders": {Handle: func(context.Context, *queue.Message) error {
		return errHandler
	}}})
	cfg.OnDead = func(_ context.Context, msg *queue.Message, _ error) error { called <- msg.MessageID; return nil }
	d, err := queue.NewDispatcher(s, cfg, log)
	require.NoError(t, err)
	drain(t, d)
	heard(t, s, seen, log, itemID("orders", 0), "no attempt is left")
	heard(t, s, seen, log, itemID("orders", 1), "no attempt is left")
	close(called)
	var all []string
	for id := range called {
		all = append(all, id)
	}
	assert.Equal(t, []string{"orders-0"}, all)
	assert.True(t, log.has("ERROR", "gave up on OnDead", "message_id:orders-1"))
}

// TestOnDeadThatKillsProcessesIsGivenUpWithoutALimit of attempts: otherwise a message that its handler calls poison
// would end a process each time.
func TestOnDeadThatKillsProcessesIsGivenUpWithoutALimit(t *testing.T) {
	h := onPgx(t)
	log := &lineLogger{}
	cfg := quickStore()
	cfg.MaxAttempts = -1
	s := storeOn(t, h, cfg)
	called := make(chan string, 10)
	storeAll(t, s, items("orders", 2)...)
	h.exec(t, `update inbox_queue set attempts = 12, crashes = 12 where message_id = 'orders-0'`)
	h.exec(t, `update inbox_queue set attempts = 13, crashes = 13 where message_id = 'orders-1'`)
	quick := quickDispatcher(map[string]queue.Handler{"orders": {Handle: func(context.Context, *queue.Message) error {
		return outbox.Poison(errHandler)
	}}})
	quick.OnDead = func(_ context.Context, msg *queue.Message, _ error) error { called <- msg.MessageID; return nil }
	d, err := queue.NewDispatcher(s, quick, log)
	require.NoError(t, err)
	drain(t, d)
	close(called)
	var all []string
	for id := range called {
		all = append(all, id)
	}
	assert.Equal(t, []string{"orders-0"}, all)
	assert.True(t, log.has("ERROR", "gave up on OnDead", "message_id:orders-1"))
	assert.Equal(t, 2, h.count(t, "select count(*) from inbox_queue where state = 'dead'"))
}

// TestOnDeadEndsWithTheHandlers: OnDead is stopped after CloseTimeout, and its message is released.
func TestOnDeadEndsWithTheHandlers(t *testing.T) {
	h := onPgx(t)
	s, _, log := watchedStore(t, h)
	called, ended := make(chan bool, 1), make(chan error, 1)
	storeAll(t, s, items("orders", 1)...)
	h.exec(t, `update inbox_queue set attempts = 2`)
	cfg := quickDispatcher(map[string]queue.Handler{"orders": {Handle: func(context.Context, *queue.Message) error {
		return errHandler
	}}})
	cfg.CloseTimeout = time.Millisecond
	cfg.OnDead = func(ctx context.Context, _ *queue.Message, _ error) error {
		called <- true
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}
	d, err := queue.NewDispatcher(s, cfg, log)
	require.NoError(t, err)
	run := make(chan error, 1)
	go func() { run <- d.Run(context.Background()) }()
	within(t, "OnDead is called", called)
	require.NoError(t, d.Close())
	require.NoError(t, within(t, "the dispatcher ends", run))
	require.ErrorIs(t, within(t, "OnDead ends", ended), context.Canceled, "and not through its own deadline")
	eventually(t, func() bool {
		return h.count(t, "select count(*) from inbox_queue where owner is null and state = 'processing' "+
			"and due_at <= clock_timestamp()") == 1
	}, "its message is released")
}
