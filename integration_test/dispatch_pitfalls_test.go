package integration_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestRenewalPassesHandlersInTransactions: a handler that outlives its lease keeps its message by the lock of its
// transaction; neither renewals nor searches for expired leases wait for that lock. A handler outside a transaction
// keeps it by renewals.
func TestRenewalPassesHandlersInTransactions(t *testing.T) {
	parallel(t)
	h := newPgxHandle(t, newOrderDatabase(t))
	h.exec(t, createEffects)
	s := storeOn(t, h, quickStore())
	storeAll(t, s, append(items("inside", 1), items("outside", 1)...)...)
	inside, outside := newBarrier(t), newBarrier(t)
	handlers := map[string]queue.Handler{
		"inside": {Timeout: -1, Handle: func(ctx context.Context, msg *queue.Message) error {
			if err := inside.handle(ctx, msg); err != nil {
				return err
			}
			return applying(h)(ctx, msg)
		}},
		"outside": {Timeout: -1, Handle: outside.handle, Detached: true},
	}
	cfg := quickDispatcher(handlers)
	cfg.LeaseTTL = 4 * time.Second // renewed in time even on a busy machine
	dispatching(t, s, cfg)
	inside.await(t)
	outside.await(t)
	begun := time.Now()
	leaseOf := "select extract(epoch from locked_until - now())::float8 from inbox_queue where topic = $1"
	eventually(t, func() bool { return value[float64](t, h, leaseOf, "inside") < 0 }, "the lease is over")
	for range 3 {
		other := newDispatcher(t, s, cfg)
		drain(t, other) // it searches for expired leases and for work
	}
	assert.Less(t, time.Since(begun), patience)
	assert.Positive(t, value[float64](t, h, leaseOf, "outside"), "it is renewed")
	inside.open()
	outside.open()
	for _, topic := range []string{"inside", "outside"} {
		untilState(t, s, itemID(topic, 0), queue.Done)
		_, attempts := stateOf(t, s, itemID(topic, 0))
		assert.Zero(t, attempts, topic)
	}
	assert.Equal(t, 1, h.count(t, "select count(*) from effects"))
	assert.Empty(t, inside.came)
	assert.Empty(t, outside.came)
}

// stopped is an observer that stops a process before BEGIN until the test resumes it.
type stopped struct {
	came, goOn chan struct{}
	once       sync.Once
}

func (s *stopped) TxStart(ctx context.Context, _ meter.TxStart) context.Context {
	s.once.Do(func() {
		close(s.came)
		<-s.goOn
	})
	return ctx
}

func (s *stopped) TxEnd(context.Context, meter.TxEnd) {}

// TestPausedHandlerAppliesNothing: a process that stood still between its claim and its transaction detects, before its
// handler begins, that the message has another owner.
func TestPausedHandlerAppliesNothing(t *testing.T) {
	h := onPgx(t)
	pause := &stopped{came: make(chan struct{}), goOn: make(chan struct{})}
	paused, other := storeOn(t, h.seenBy(t, pause), quickStore()), storeOn(t, h, quickStore())
	storeAll(t, other, items("orders", 1)...)
	late := newBarrier(t)
	cfg := quickDispatcher(map[string]queue.Handler{"orders": {Handle: late.handle}})
	cfg.Concurrency = 1      // the process stands still and claims nothing else
	cfg.LeaseTTL = time.Hour // and renews nothing
	goOn := sync.OnceFunc(func() { close(pause.goOn) })
	defer goOn()
	d := dispatching(t, paused, cfg)
	<-pause.came
	h.exec(t, "update inbox_queue set locked_until = now() - interval '1 s'")
	dispatching(t, other, quickDispatcher(map[string]queue.Handler{"orders": {Handle: applying(h)}}))
	untilState(t, other, itemID("orders", 0), queue.Done)
	goOn()
	drain(t, d)
	assert.Empty(t, late.came, "the handler was called")
	state, attempts := stateOf(t, other, itemID("orders", 0))
	assert.Equal(t, queue.Done, state)
	assert.Equal(t, 1, attempts, "only the expired lease is charged")
	assert.Equal(t, 1, h.count(t, "select count(*) from effects"))
}

// TestCutConnectionFreesItsMessage: behind a half-open connection the row stays locked until the server's
// idle_in_transaction_session_timeout ends the session.
func TestCutConnectionFreesItsMessage(t *testing.T) {
	extended(t)
	h := onPgx(t)
	proxy := newProxy(t, h.url)
	far := newPgxHandle(t, proxy.url)
	s := storeOn(t, h, quickStore())
	storeAll(t, s, items("orders", 1)...)
	stuck := newBarrier(t)
	cfg := quickDispatcher(map[string]queue.Handler{
		"orders": {Handle: func(ctx context.Context, msg *queue.Message) error {
			err := applying(far)(ctx, msg)
			if err == nil { // the last statement, so that the server waits only for this transaction
				err = far.execTx(ctx, "set local idle_in_transaction_session_timeout = 300")
			}
			return errors.Join(err, stuck.handle(ctx, msg))
		}},
	})
	cfg.LeaseTTL = time.Second
	cfg.DisableListen = true
	gone := dispatching(t, storeOn(t, far, quickStore()), cfg)
	stuck.await(t)
	proxy.freeze()
	thaw := sync.OnceFunc(proxy.thaw)
	defer thaw()
	cfg.Handlers = map[string]queue.Handler{"orders": {Handle: applying(h)}}
	cfg.LeaseTTL = patience
	dispatching(t, s, cfg)
	untilState(t, s, itemID("orders", 0), queue.Done)
	thaw()
	stuck.open()
	require.NoError(t, gone.Close())
	state, attempts := stateOf(t, s, itemID("orders", 0))
	assert.Equal(t, queue.Done, state)
	assert.Equal(t, 1, attempts)
	assert.Equal(t, 1, h.count(t, "select count(*) from effects"), "applied once")
}

// TestDispatcherUnknownCommits: the outcome of a handler's COMMIT is unknown, and the message is neither lost nor
// handled twice.
func TestDispatcherUnknownCommits(t *testing.T) {
	extended(t)
	h := onPgx(t)
	proxy := newProxy(t, h.url)
	far := newPgxHandle(t, proxy.url)
	s := storeOn(t, far, quickStore())
	for i, cut := range []func(){func() { proxy.cutAtCommitted.Store(true) }, proxy.cutAtCommit} {
		d := newDispatcher(t, s,
			quickDispatcher(map[string]queue.Handler{"orders": {Handle: func(ctx context.Context, msg *queue.Message) error {
				if msg.Attempts == 0 {
					cut()
				}
				return applying(far)(ctx, msg)
			}}}))
		id := queue.ID{Source: "test", MessageID: "orders-" + itoa(i)}
		storeAll(t, s, queue.Item{ID: id, Topic: "orders"})
		drain(t, d)
		near := storeOn(t, h, quickStore())
		eventually(t, func() bool {
			drain(t, newDispatcher(t, near, quickDispatcher(map[string]queue.Handler{"orders": {Handle: applying(h)}})))
			state, _ := stateOf(t, near, id)
			return state == queue.Done
		}, "it is done")
		_, attempts := stateOf(t, near, id)
		assert.Equal(t, i, attempts, "only the attempt that did not commit is charged")
		assert.Equal(t, 1, h.count(t, "select count(*) from effects where message_id = $1", id.MessageID))
		assert.EqualValues(t, i+1, proxy.cuts.Load())
	}
}

// TestHotKeyStarvesNobody: ordered messages go through the outbox tables and forwarder.Subscriber, where a key with
// thousands of messages and a slow handler does not delay other keys.
func TestHotKeyStarvesNobody(t *testing.T) {
	extended(t)
	h := onPgx(t)
	h.exec(t, `insert into outbox (uuid, topic, key, payload) select 'hot-' || i, 'orders', 'hot', '' `+
		`from generate_series(1, 5000) i`)
	h.exec(t, `insert into outbox (uuid, topic, key, payload) select 'cold-' || i, 'orders', 'cold-' || i, '' `+
		`from generate_series(1, 100) i`)
	messages, err := newSubscriber(t, h, quickConfig()).Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	for cold, hot := 0, 0; cold < 100; {
		msg := receive(t, messages)
		if strings.HasPrefix(msg.UUID, "cold") {
			cold++
			msg.Ack()
			continue
		}
		hot++ // it is never acked
		require.Equal(t, 1, hot, "in order per key")
	}
}
