package integration_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/queue"
)

// quickStore retries after a few milliseconds.
func quickStore() queue.StoreConfig {
	return queue.StoreConfig{Backoff: outbox.Backoff{Initial: 20 * time.Millisecond, Max: 100 * time.Millisecond}}
}

// storeOn returns a Store on the tables of a handle.
func storeOn(t testing.TB, h handle, cfg queue.StoreConfig) *queue.Store {
	t.Helper()
	s, err := queue.NewStore(h.db, cfg, nil)
	require.NoError(t, err)
	return s
}

// items returns n items of a topic, whose IDs are the topic and a number.
func items(topic string, n int) []queue.Item {
	all := make([]queue.Item, n)
	for i := range all {
		all[i] = queue.Item{ID: itemID(topic, i), Topic: topic, Payload: []byte(fmt.Sprint(i))}
	}
	return all
}

func itemID(topic string, i int) queue.ID {
	return queue.ID{Source: "test", MessageID: fmt.Sprintf("%s-%d", topic, i)}
}

func storeAll(t testing.TB, s *queue.Store, items ...queue.Item) {
	t.Helper()
	_, err := s.Enqueue(t.Context(), items...)
	require.NoError(t, err)
}

// quickDispatcher polls often.
func quickDispatcher(handlers map[string]queue.Handler) queue.DispatcherConfig {
	return queue.DispatcherConfig{Handlers: handlers, PollInterval: 20 * time.Millisecond, CloseTimeout: patience}
}

func newDispatcher(t testing.TB, s *queue.Store, cfg queue.DispatcherConfig) *queue.Dispatcher {
	t.Helper()
	d, err := queue.NewDispatcher(s, cfg, newLogCapture(t))
	require.NoError(t, err)
	return d
}

// dispatching runs a Dispatcher until the test ends.
func dispatching(t testing.TB, s *queue.Store, cfg queue.DispatcherConfig) *queue.Dispatcher {
	t.Helper()
	d := newDispatcher(t, s, cfg)
	runUntilTheEnd(t, d, d.Running(), d.Close)
	return d
}

func drain(t testing.TB, d *queue.Dispatcher) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, d.Drain(ctx))
}

// applying is a handler that records the message in its transaction.
func applying(h handle) func(context.Context, *queue.Message) error {
	return func(ctx context.Context, msg *queue.Message) error {
		return h.execTx(ctx, `insert into effects (message_id) values ($1)`, msg.MessageID)
	}
}

// stateOf returns the state of a message and its failed attempts.
func stateOf(t testing.TB, s *queue.Store, id queue.ID) (queue.State, int) {
	t.Helper()
	msg, err := s.Get(t.Context(), id)
	require.NoError(t, err)
	return msg.State, msg.Attempts
}

// untilState waits until a message has the state.
func untilState(t testing.TB, s *queue.Store, id queue.ID, want queue.State) {
	t.Helper()
	untilMessage(t, s, id, "is "+string(want), func(msg queue.Message) bool { return msg.State == want })
}

// untilMessage waits until a message satisfies a condition, and returns it. If it never does, the failure shows the
// message.
func untilMessage(
	t testing.TB, s *queue.Store, id queue.ID, what string, is func(msg queue.Message) bool,
) (msg queue.Message) {
	t.Helper()
	var err error
	if !eventuallyTrue(func() bool {
		msg, err = s.Get(t.Context(), id)
		return err == nil && is(msg)
	}) {
		if err != nil {
			t.Fatalf("%s %s: not within %s: %v", id.MessageID, what, patience, err)
		}
		t.Fatalf("%s %s: not within %s: state %s, first seen %s ago, due in %s, after %d attempts, with the last error %q",
			id.MessageID, what, patience, msg.State, time.Since(msg.FirstSeenAt), time.Until(msg.DueAt), msg.Attempts,
			msg.LastError)
	}
	return msg
}

// barrier is a handler that waits until the test lets it go.
type barrier struct {
	came chan *queue.Message
	goOn chan struct{}
	once sync.Once
}

func newBarrier(t testing.TB) *barrier {
	g := &barrier{came: make(chan *queue.Message, 1000), goOn: make(chan struct{})}
	t.Cleanup(g.open)
	return g
}

func (g *barrier) open() { g.once.Do(func() { close(g.goOn) }) }

func (g *barrier) handle(ctx context.Context, msg *queue.Message) error {
	g.came <- msg
	select {
	case <-g.goOn:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// await returns the next message that reached the handler.
func (g *barrier) await(t testing.TB) *queue.Message {
	t.Helper()
	select {
	case msg := <-g.came:
		return msg
	case <-time.After(patience):
		t.Fatal("no message reached the handler")
		return nil
	}
}

// item returns an item with a topic and a payload.
func item(source, id string) queue.Item {
	return queue.Item{ID: queue.ID{Source: source, MessageID: id}, Topic: "orders", Payload: []byte("payload of " + id)}
}

// claimed claims up to n messages for an owner.
func claimed(t testing.TB, store *queue.Store, owner queue.Owner, n int) []queue.Message {
	t.Helper()
	msgs, err := store.Claim(t.Context(), queue.Claim{Owner: owner, LeaseTTL: time.Minute, Limit: n})
	require.NoError(t, err)
	return msgs
}

// got reads a message.
func got(t testing.TB, store *queue.Store, id queue.ID) queue.Message {
	t.Helper()
	msg, err := store.Get(t.Context(), id)
	require.NoError(t, err)
	return msg
}
