package integration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/inbox"
)

// TestClaimsBeforeTheFirstAnalyze: with the statistics of an empty table claims and acks of many rows are as quick as with
// those of the full one, or nearly.
func TestClaimsBeforeTheFirstAnalyze(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	h.exec(t, "alter table inbox_queue set (autovacuum_enabled = off)")
	store, owner := newStore(t, h, inbox.StoreConfig{}), inbox.NewOwner()
	enqueued(t, store, numberedItems("shop", 20_000)...)
	drain := func() time.Duration {
		began := time.Now()
		for range 10 {
			msgs := claimed(t, store, owner, 500)
			require.Len(t, msgs, 500)
			settles(t, 500)(store.Ack(t.Context(), owner, idsOf(msgs)...))
		}
		return time.Since(began)
	}
	blind := drain()
	h.exec(t, "analyze inbox_queue")
	seeing := drain()
	t.Logf("5,000 messages in %s before, in %s after", blind, seeing)
	assert.Less(t, blind, 5*seeing+time.Second)
}
