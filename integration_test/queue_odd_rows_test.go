package integration_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/queue"
)

// TestOddRowsOfQueue inserts rows by SQL that Store.Enqueue would not write: they are handled like all others, and stop
// neither claims nor reaping. Messages claimed by a process that died are reaped when a Dispatcher starts.
func TestOddRowsOfQueue(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	odd := []struct {
		set  string
		want message.Metadata
	}{
		{
			`metadata = '{"tenant": 42, "tags": ["a", "b"], "by": "sql"}'`,
			message.Metadata{"tenant": "42", "tags": `["a", "b"]`, "by": "sql"},
		},
		{`metadata = '[]'`, message.Metadata{"": "[]"}},
		{`metadata = 'null'`, message.Metadata{}},
		{`metadata = '"text"'`, message.Metadata{"": `"text"`}},
		{`first_seen_at = '-infinity'`, message.Metadata{}},
		{`last_seen_at = 'infinity'`, message.Metadata{}},
		{`expires_at = '290000-01-01'`, message.Metadata{}},
	}
	overEach(t, newMigratedDatabase(t), func(t *testing.T, h handle) {
		h.exec(t, `truncate inbox_queue`)
		s := storeOn(t, h, quickStore())
		storeAll(t, s, items("odd", len(odd))...)
		storeAll(t, s, items("died", len(odd))...)
		for i, o := range odd {
			h.exec(t, `update inbox_queue set `+o.set+` where message_id in ($1, $2)`, itemID("odd", i).MessageID,
				itemID("died", i).MessageID)
		}
		_, err := s.Claim(t.Context(), queue.Claim{
			Owner: queue.NewOwner(), LeaseTTL: time.Second, Limit: len(odd), Topics: []string{"died"},
		})
		require.NoError(t, err)
		h.exec(t, `update inbox_queue set locked_until = now() - interval '1 second' where topic = 'died'`)
		var mu sync.Mutex
		got := map[queue.ID][]message.Metadata{}
		handler := queue.Handler{Handle: func(_ context.Context, msg *queue.Message) error {
			mu.Lock()
			defer mu.Unlock()
			got[msg.ID] = append(got[msg.ID], msg.Metadata)
			return nil
		}}
		dispatching(t, s, quickDispatcher(map[string]queue.Handler{"odd": handler, "died": handler}))
		eventually(t, func() bool { return h.count(t, `select count(*)::int from inbox_queue where state <> 'done'`) == 0 },
			"all are handled")
		for i, o := range odd {
			for _, topic := range []string{"odd", "died"} {
				assert.Equal(t, []message.Metadata{o.want}, got[itemID(topic, i)], "%s: %s", topic, o.set)
			}
			_, err := s.Get(t.Context(), itemID("odd", i))
			assert.NoError(t, err, o.set)
		}
	})
}

// TestRowWithTheHighestAttempts: its counter stays at the maximum, and others in the batch do not fail.
func TestRowWithTheHighestAttempts(t *testing.T) {
	h := onPgx(t)
	cfg := quickStore()
	cfg.MaxAttempts = -1
	s := storeOn(t, h, cfg)
	storeAll(t, s, items("orders", 2)...)
	settle := map[string]func(queue.Owner, ...queue.ID) (int, error){
		"abandon": func(owner queue.Owner, ids ...queue.ID) (int, error) {
			return s.Abandon(t.Context(), queue.Abandon{Owner: owner}, ids...)
		},
		"fail": func(owner queue.Owner, ids ...queue.ID) (int, error) {
			return s.Fail(t.Context(), queue.Fail{Owner: owner}, ids...)
		},
		"reap": func(queue.Owner, ...queue.ID) (int, error) {
			h.exec(t, `update inbox_queue set locked_until = now() - interval '1 second'`)
			return s.ReapExpired(t.Context())
		},
	}
	for what, fn := range settle {
		h.exec(t, `update inbox_queue set state = 'processing', due_at = now(), crashes = 0, attempts = case message_id `+
			`when 'orders-0' then 2147483647 else 0 end`)
		owner := queue.NewOwner()
		require.Len(t, claimed(t, s, owner, 2), 2, what)
		h.exec(t, `update inbox_queue set crashes = 2147483647 where message_id = 'orders-0'`)
		n, err := fn(owner, itemID("orders", 0), itemID("orders", 1))
		require.NoError(t, err, what)
		assert.Equal(t, 2, n, what)
		assert.Equal(t, []int{2147483647, 1}, column[int](t, h, `select attempts from inbox_queue order by message_id`), what)
	}
}
