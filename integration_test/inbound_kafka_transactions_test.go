package integration_test

import (
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/observe"
)

// TestTransactionMarkersAreNoLag: the markers of transactions, and what was aborted, take offsets that no message has.
// What was aborted is not handled, and the group passes both: its lag reaches zero, and its committed offset the end.
func TestTransactionMarkersAreNoLag(t *testing.T) {
	t.Parallel()
	w := newInboundWorld(t, 1)
	settings := sarama.NewConfig()
	settings.Version = sarama.V2_8_0_0
	settings.Producer.Return.Successes, settings.Producer.Idempotent, settings.Net.MaxOpenRequests = true, true, 1
	settings.Producer.RequiredAcks, settings.Producer.Transaction.ID = sarama.WaitForAll, "t-"+w.topic
	producer, err := sarama.NewSyncProducer(w.server.Brokers(), settings)
	require.NoError(t, err)
	defer producer.Close()
	for i := range 12 {
		require.NoError(t, producer.BeginTxn())
		abort := i%4 == 3 || i >= 10 // the partition ends with aborted ones
		for k := range 3 {
			key := "key-" + itoa(k)
			_, _, err := producer.SendMessage(w.record(numberedMessage{key, w.sent[key] + 1}))
			require.NoError(t, err)
			if !abort {
				w.sent[key]++
				w.settled++
			}
		}
		if abort {
			require.NoError(t, producer.AbortTxn())
		} else {
			require.NoError(t, producer.CommitTxn())
		}
	}
	seen := &seenPartitions{}
	c := w.config()
	c.observers, c.MaxAhead = []observe.Observer{seen}, 10
	service := w.serve(c, nil)
	w.await(w.settled)
	eventually(t, func() bool { return seen.last().Owned && seen.last().Lag == 0 }, "the lag is gone")
	service.close()
	w.verify()
	client, err := sarama.NewClient(w.server.Brokers(), settings)
	require.NoError(t, err)
	defer client.Close()
	end, err := client.GetOffset(w.topic, 0, sarama.OffsetNewest)
	require.NoError(t, err)
	require.Equal(t, end, w.committed())
}
