package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/queue"
)

// TestOnDeadThatKillsProcessesIsGivenUp: a message that has used up its attempts would end one process after the other
// else, as often as its lease runs out.
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
	heard(t, s, seen, log, itemID("orders", 0), "process died")
	heard(t, s, seen, log, itemID("orders", 1), "process died")
	close(called)
	var all []string
	for id := range called {
		all = append(all, id)
	}
	assert.Equal(t, []string{"orders-0"}, all)
	assert.True(t, log.has("ERROR", "gave up OnDead", "message_id:orders-1"))
}

// TestOnDeadThatKillsProcessesIsGivenUpWithoutALimit of attempts: a handler that calls its message poison would end a
// process each time.
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
	assert.True(t, log.has("ERROR", "gave up OnDead", "message_id:orders-1"))
	assert.Equal(t, 2, h.count(t, "select count(*) from inbox_queue where state = 'dead'"))
}

// TestOnDeadEndsWithTheHandlers when CloseTimeout is over, and its message is given back.
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
	require.ErrorIs(t, within(t, "OnDead ends", ended), context.Canceled, "and not by its own time")
	eventually(t, func() bool {
		return h.count(t, "select count(*) from inbox_queue where owner is null and state = 'processing' "+
			"and due_at <= clock_timestamp()") == 1
	}, "its message is given back")
}
