package integration_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/queue"
)

// claimsSeen counts the statements that claim.
func claimsSeen(seen []statementSeen) (n int) {
	for _, s := range seen {
		if strings.Contains(s.SQL, sqltext.Tables{}.Render("UPDATE {queue} q SET owner = $1::uuid, locked_until")) {
			n++
		}
	}
	return n
}

// TestManyLimitsCostOneClaim: handlers with a Concurrency limit share claims, so a message costs as many statements
// with many handlers as with one.
func TestManyLimitsCostOneClaim(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	var seen statementLog
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = &seen })
	s := storeOn(t, h, quickStore())
	const topics, messages = 300, 20
	var handled atomic.Int64
	handlers := map[string]queue.Handler{}
	for i := range topics {
		handlers[fmt.Sprint("topic", i)] = queue.Handler{Concurrency: 1, Handle: func(context.Context, *queue.Message) error {
			handled.Add(1)
			return nil
		}}
	}
	d := dispatching(t, s, queue.DispatcherConfig{Handlers: handlers, PollInterval: time.Hour, CloseTimeout: patience})
	drain(t, d)
	seen.take()
	for i := range messages {
		storeAll(t, s, items(fmt.Sprint("topic", i*10), 1)...)
		eventually(t, func() bool { return handled.Load() == int64(i+1) }, "it is handled")
	}
	drain(t, d)
	n := claimsSeen(seen.take())
	assert.LessOrEqual(t, n, 6*messages, "claims for %d messages", messages)
}

// TestABacklogOfOneTopicStopsNoOther: a backlog of one topic delays no other, and is itself handled as fast as its
// limit allows: each message costs a claim, and none waits for a poll. The limits hold at every moment.
func TestABacklogOfOneTopicStopsNoOther(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	var seen statementLog
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = &seen })
	s := storeOn(t, h, quickStore())
	const backlog, others = 150, 100
	storeAll(t, s, items("backlog", backlog)...)
	var done [2]atomic.Int64
	all := limit{t: t, what: "handlers", most: 8}
	handlers := map[string]queue.Handler{}
	handle := func(topic string, most int) {
		of, i := limit{t: t, what: topic, most: int64(most)}, 1
		if topic == "backlog" {
			i = 0
		}
		handlers[topic] = queue.Handler{
			Concurrency: most, Detached: true, Handle: func(context.Context, *queue.Message) error {
				all.enter()
				defer all.leave()
				of.enter()
				defer of.leave()
				done[i].Add(1)
				return nil
			},
		}
	}
	handle("backlog", 1)
	for i := range others {
		handle(fmt.Sprint("topic", i), 2)
	}
	d := dispatching(t, s, queue.DispatcherConfig{
		Handlers: handlers, Concurrency: 8, PollInterval: time.Hour, CloseTimeout: patience,
	})
	for i := range others {
		storeAll(t, s, items(fmt.Sprint("topic", i), 1)...)
	}
	eventually(t, func() bool { return done[1].Load() == others }, "the others are handled")
	eventually(t, func() bool { return done[0].Load() == backlog }, "the backlog is handled")
	drain(t, d)
	assert.LessOrEqual(t, claimsSeen(seen.take()), 4*(backlog+others), "claims")
	require.Zero(t, h.count(t, "select count(*) from inbox_queue where state <> 'done'"))
}
