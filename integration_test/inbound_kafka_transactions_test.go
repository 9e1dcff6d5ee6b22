package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/observe"
)

// lagSeen has the lag of the last report.
type lagSeen struct {
	observe.Observer
	lags chan int64
}

func (l *lagSeen) PartitionState(_ context.Context, state observe.PartitionState) {
	select {
	case <-l.lags:
	default:
	}
	l.lags <- state.Lag
}

// TestTransactionMarkersAreNoLag: the markers of transactions, and what was aborted, take offsets that no message has. The
// group passes them: its lag reaches zero, and its committed offset the end.
func TestTransactionMarkersAreNoLag(t *testing.T) {
	t.Parallel()
	w := newInboundWorld(t, 1)
	if w.server.Fake() {
		t.Skip("the fake has no transactions")
	}
	settings := sarama.NewConfig()
	settings.Version = sarama.V2_8_0_0
	settings.Producer.Return.Successes, settings.Producer.Idempotent, settings.Net.MaxOpenRequests = true, true, 1
	settings.Producer.RequiredAcks, settings.Producer.Transaction.ID = sarama.WaitForAll, "t-"+w.topic
	producer, err := sarama.NewSyncProducer(w.server.Brokers(), settings)
	require.NoError(t, err)
	defer producer.Close()
	for i := range 12 {
		require.NoError(t, producer.BeginTxn())
		_, _, err := producer.SendMessage(w.record(numberedMessage{"key", max(1, w.sent["key"]+1)}))
		require.NoError(t, err)
		if i%4 == 3 || i >= 10 { // the partition ends with aborted ones
			require.NoError(t, producer.AbortTxn())
			continue
		}
		w.sent["key"]++
		w.settled++
		require.NoError(t, producer.CommitTxn())
	}
	seen := &lagSeen{lags: make(chan int64, 1)}
	c := w.config()
	c.observer = seen
	service := w.serve(c, nil)
	w.await(w.settled)
	require.Eventually(t, func() bool { return <-seen.lags == 0 }, 3*patience, 20*time.Millisecond)
	service.close()
	client, err := sarama.NewClient(w.server.Brokers(), settings)
	require.NoError(t, err)
	defer client.Close()
	end, err := client.GetOffset(w.topic, 0, sarama.OffsetNewest)
	require.NoError(t, err)
	admin, err := sarama.NewClusterAdminFromClient(client)
	require.NoError(t, err)
	offsets, err := admin.ListConsumerGroupOffsets(w.group, map[string][]int32{w.topic: {0}})
	require.NoError(t, err)
	require.Equal(t, end, offsets.GetBlock(w.topic, 0).Offset)
}
