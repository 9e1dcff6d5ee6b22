package integration_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// clusterAdmin is an operator of the broker.
func (w *inboundWorld) clusterAdmin() sarama.ClusterAdmin {
	w.t.Helper()
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V2_8_0_0
	asks, err := sarama.NewClusterAdmin(w.server.Brokers(), cfg)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = asks.Close() })
	return asks
}

// TestInboundTopicIsMadeAnew: an operator deletes the topic beneath the subscription, and makes it anew.
func TestInboundTopicIsMadeAnew(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newInboundWorld(t, 2)
	w.send(500, 20)
	w.serve(w.config(), nil)
	w.await(w.settled)
	asks := w.clusterAdmin()
	require.NoError(t, asks.DeleteTopic(w.topic))
	eventually(t, func() bool {
		err := asks.CreateTopic(w.topic, &sarama.TopicDetail{NumPartitions: 2, ReplicationFactor: 1}, false)
		return err == nil || errors.Is(err, sarama.ErrTopicAlreadyExists)
	}, "the topic is made anew")
	eventually(t, func() bool {
		all, err := asks.DescribeTopics([]string{w.topic})
		return err == nil && len(all) == 1 && errors.Is(all[0].Err, sarama.ErrNoError) && len(all[0].Partitions) > 0
	}, "it is there")
	w.send(100, 20)
	w.await(w.settled)
	w.verify()
}

// TestInboundMessagesAreDeleted that a key which fails has kept from being committed, or read.
func TestInboundMessagesAreDeleted(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newInboundWorld(t, 1)
	c := w.config()
	c.MaxAhead = 100
	w.send(20_000, 20)
	var mended atomic.Bool
	w.serve(c, func(_ *message.Message, key string) error {
		if key == "key-3" && !mended.Load() {
			return errors.New("fails")
		}
		return nil
	})
	w.await(50)
	require.NoError(t, w.clusterAdmin().DeleteRecords(w.topic, map[int32]int64{0: 20_000}))
	mended.Store(true)
	w.h.exec(t, `create view fresh as select * from ledger where key = 'fresh'`)
	fresh := make([]numberedMessage, 200)
	for i := range fresh {
		fresh[i] = numberedMessage{"fresh", i + 1}
	}
	w.put(fresh)
	eventually(t, func() bool {
		return w.h.count(t, `select count(distinct (key, seq)) from fresh`) == 200
	}, "what came after is handled")
	assert.Zero(t, w.h.count(t, `select count(*) - count(distinct (key, seq)) from ledger`))
}
