package integration_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/watermill-outbox/queue"
)

// TestABacklogStarvesNoTopic: a topic without a backlog is handled soon, whatever precedes it in the table: other
// topics with 30,000 messages that keep handlers busy, new or due again, of few topics or many, with limits or without.
func TestABacklogStarvesNoTopic(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	const backlog, quiet, most = 30_000, 10, 1_000
	for name, tc := range map[string]struct {
		topics, limit, quietLimit int // limit 0 = none
		due                       bool
	}{
		"two topics with limits":           {topics: 2, limit: 6},
		"two topics with limits, due":      {topics: 2, limit: 6, due: true},
		"20 topics of one at a time":       {topics: 20, limit: 1},
		"20 topics of one at a time, due":  {topics: 20, limit: 1, due: true},
		"500 topics of one at a time":      {topics: 500, limit: 1},
		"500 topics of one at a time, due": {topics: 500, limit: 1, due: true},
		"only the quiet one limited":       {topics: 2, quietLimit: 2},
		"only the quiet one limited, due":  {topics: 2, quietLimit: 2, due: true},
		"all limited":                      {topics: 2, limit: 6, quietLimit: 2},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.due != (tc.topics == 20) || tc.topics == 500 || name == "all limited" {
				extended(t)
			}
			h := newPgxHandle(t, newMigratedDatabase(t))
			due := "clock_timestamp()"
			if tc.due {
				due = "clock_timestamp() - interval '1 hour'"
			}
			insert := `INSERT INTO inbox_queue (source, message_id, topic, state, due_at, attempts)
				SELECT $1::text, i::text, $1 || i % $2::int, 'processing', ` + due + `, 1 FROM generate_series(1, $3::int) i`
			if !tc.due {
				insert = `INSERT INTO inbox_queue (source, message_id, topic, state)
					SELECT $1::text, i::text, $1 || i % $2::int, 'processing' FROM generate_series(1, $3::int) i`
			}
			h.exec(t, insert, "busy", tc.topics, backlog)
			h.exec(t, insert, "quiet", 1, quiet)
			h.exec(t, "ANALYZE inbox_queue")
			var busyHandled, quietHandled atomic.Int64
			over := make(chan struct{}, 2)
			handler := func(n *atomic.Int64, limit int, last int64) queue.Handler {
				return queue.Handler{Detached: true, Concurrency: limit, Handle: func(context.Context, *queue.Message) error {
					if n.Add(1) == last {
						over <- struct{}{}
					}
					return nil
				}}
			}
			handlers := map[string]queue.Handler{"quiet0": handler(&quietHandled, tc.quietLimit, quiet)}
			for i := range tc.topics {
				handlers[fmt.Sprint("busy", i)] = handler(&busyHandled, tc.limit, most)
			}
			cfg := quickDispatcher(handlers)
			cfg.Concurrency = 12
			dispatching(t, storeOn(t, h, quickStore()), cfg)
			select {
			case <-over:
			case <-time.After(patience):
				t.Fatal("the handlers were not called")
			}
			assert.EqualValues(t, quiet, quietHandled.Load(), "messages of the quiet topic, next to %d of the others",
				busyHandled.Load())
			t.Logf("%d of the quiet topic and %d of the others were handled", quietHandled.Load(), busyHandled.Load())
		})
	}
}
