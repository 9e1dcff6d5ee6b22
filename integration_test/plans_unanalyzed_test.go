package integration_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/queue"
)

// TestClaimsBeforeTheFirstAnalyze: claims and acks of many rows are nearly as fast with the statistics of an empty
// table as with those of the full one.
func TestClaimsBeforeTheFirstAnalyze(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	drains := func(statements ...string) func() time.Duration {
		h := newPgxHandle(t, newMigratedDatabase(t))
		h.exec(t, "alter table inbox_queue set (autovacuum_enabled = off)")
		store, owner := newStore(t, h, queue.StoreConfig{}), queue.NewOwner()
		h.exec(t, "insert into inbox_queue (source, message_id, topic, payload, state) select 'shop', i, 'orders', '', "+
			"'processing' from generate_series(1, 20000) i")
		for _, s := range statements {
			h.exec(t, s)
		}
		return func() time.Duration {
			began := time.Now()
			msgs := claimed(t, store, owner, 500)
			require.Len(t, msgs, 500)
			settles(t, 500)(store.Ack(t.Context(), owner, idsOf(msgs)...))
			return time.Since(began)
		}
	}
	blind, seeing := drains(), drains("analyze inbox_queue")
	var before, after []time.Duration
	for range 11 {
		// alternating, so that the machine's load is the same for both; most runs follow the fifth, when a prepared
		// statement may change its plan
		before, after = append(before, blind()), append(after, seeing())
	}
	slices.Sort(before)
	slices.Sort(after)
	typical, control := before[len(before)/2], after[len(after)/2]
	t.Logf("500 messages in %s before, in %s after", typical, control)
	assert.Less(t, typical, 5*control+100*time.Millisecond)
}
