package integration_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	wsql3 "github.com/ThreeDotsLabs/watermill-sql/v3/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	wforwarder "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/move"
)

// publishIn publishes to a log of watermill-sql in a transaction.
func (f *oldForwarder) publishIn(t testing.TB, tx *sql.Tx, payload string) {
	t.Helper()
	pub, err := wsql3.NewPublisher(tx, wsql3.PublisherConfig{SchemaAdapter: wsql3.DefaultPostgreSQLSchema{}}, nil)
	require.NoError(t, err)
	envelopes := wforwarder.NewPublisher(pub, wforwarder.PublisherConfig{ForwarderTopic: f.topic})
	require.NoError(t, envelopes.Publish("orders", newMessage(payload)))
}

// TestMoveOfInterleavedTransactions: a log's position is a transaction and an offset, so its rows are read in the order
// of both. Here older transactions write the higher offsets, and each batch is one row: if read by offset alone, the
// position would pass the rows of the older ones, and they would never be moved.
func TestMoveOfInterleavedTransactions(t *testing.T) {
	h := onPgx(t)
	old := newOldForwarder(t, moveTables[0], h.url)
	var txs []*sql.Tx
	for range 4 {
		tx, err := old.db.Begin()
		require.NoError(t, err)
		var xid string
		// transactions in this order, offsets in the opposite one
		require.NoError(t, tx.QueryRow("select pg_current_xact_id()::text").Scan(&xid))
		txs = append(txs, tx)
	}
	var want []string
	for i := range txs {
		last := len(txs) - 1 - i
		old.publishIn(t, txs[last], "of "+itoa(last))
		old.publishIn(t, txs[last], "more of "+itoa(last))
		want = append(want, "of "+itoa(i), "more of "+itoa(i))
	}
	for _, tx := range txs {
		require.NoError(t, tx.Commit())
	}
	old.visible(t, h)
	cfg := old.config()
	cfg.BatchSize = 1
	r, err := move.FromWatermill(t.Context(), newOutboxPublisher(t, h), cfg)
	require.NoError(t, err)
	assert.EqualValues(t, 8, r.Moved)
	assert.Zero(t, r.Left)
	assert.Equal(t, want, waitingPayloads(waiting(t, h)))
}

// TestMoveBackInTheOrderOfIDs: a key with two topics is moved back in order, in three batches, although the table, and
// the lane index that the planner may choose, have the rows in another order.
func TestMoveBackInTheOrderOfIDs(t *testing.T) {
	h := onPgx(t)
	old := newOldForwarder(t, moveTables[0], h.url)
	var want []string
	for i := range 12 {
		h.publish(t, []string{"orders", "invoices"}[i%2], "K"+itoa(i%3), itoa(i))
		want = append(want, itoa(i))
	}
	h.exec(t, "update outbox set attempts = attempts where id <= 6") // to the end of the table
	cfg := old.config()
	cfg.BatchSize = 5
	batches := 0
	cfg.Progress = func(context.Context, move.Result) { batches++ }
	r, err := move.ToWatermill(t.Context(), h.db, cfg)
	require.NoError(t, err)
	assert.EqualValues(t, 12, r.Moved)
	assert.Zero(t, r.Left)
	assert.Equal(t, 3, batches)

	old.visible(t, h)
	_, err = move.FromWatermill(t.Context(), newOutboxPublisher(t, h), old.config())
	require.NoError(t, err)
	assert.Equal(t, want, waitingPayloads(waiting(t, h)))
}

// TestMoveKeepsAMessagesOwnDelay: if a row of a delayed queue and the message in its envelope have different times, the
// message's counts, as it does when Watermill's forwarder publishes it.
func TestMoveKeepsAMessagesOwnDelay(t *testing.T) {
	h := onPgx(t)
	old := newOldForwarder(t, moveTables[3], h.url)
	msg := newMessage("later")
	delay.Message(msg, delay.For(time.Hour))
	own := msg.Metadata[delay.DelayedUntilKey]
	msg.SetContext(delay.WithContext(t.Context(), delay.For(2*time.Hour)))
	require.NoError(t, old.pub.Publish("orders", msg))
	require.Equal(t, 1, h.count(t, `select count(*) from watermill_forwarder_topic
		where (metadata->>'`+delay.DelayedUntilKey+`')::timestamptz > now() + interval '110 minutes'`),
		"the row has its own time")
	_, err := move.FromWatermill(t.Context(), newOutboxPublisher(t, h), old.config())
	require.NoError(t, err)
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox where due_at between now() + interval '50 minutes' "+
		"and now() + interval '70 minutes'"))
	assert.Equal(t, own, waiting(t, h)[0].metadata[delay.DelayedUntilKey])
}
