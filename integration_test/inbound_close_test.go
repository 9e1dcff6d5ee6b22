package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/observe"
)

// committed returns the group's offset of partition 0; -1 = none.
func (w *inboundWorld) committed() int64 {
	offsets, err := w.clusterAdmin().ListConsumerGroupOffsets(w.group, map[string][]int32{w.topic: {0}})
	require.NoError(w.t, err)
	return offsets.GetBlock(w.topic, 0).Offset
}

// TestInboundCloseCommitsEveryAck: messages acked before the end of Close are not delivered again, whichever process
// commits them.
func TestInboundCloseCommitsEveryAck(t *testing.T) {
	t.Parallel()
	for name, manual := range map[string]bool{"sarama commits": false, "we commit": true} {
		t.Run(name, func(t *testing.T) {
			if manual {
				extended(t)
			}
			t.Parallel()
			w := newInboundWorld(t, 1)
			w.send(1500, 1000)
			c := w.config()
			c.ManualCommit = manual
			s := w.serve(c, work)
			w.await(500)
			s.close()
			done := w.handled()
			require.Less(t, done, w.settled, "all was handled before Close")
			again := w.serve(c, work)
			w.await(w.settled)
			again.close()
			w.verify()
			// A message behind another of its key may be committed late; those above the watermark are delivered again
			// and skipped.
			assert.EqualValues(t, w.settled-done, again.calls.Load(), "handlers called twice for a message")
			assert.EqualValues(t, w.settled, w.committed())
		})
	}
}

// TestInboundBrokerRestart: the broker goes down and returns.
func TestInboundBrokerRestart(t *testing.T) {
	extended(t)
	t.Parallel()
	restarted := func(t *testing.T, w *inboundWorld, leave func() error, restart func(context.Context) error) {
		w.send(1000, 100)
		w.serve(w.config(), work)
		w.await(w.settled / 4)
		require.NoError(t, leave())
		time.Sleep(time.Second) // time of its absence
		require.NoError(t, restart(t.Context()))
		w.await(w.settled)
		w.verify()
	}
	t.Run("Kafka", func(t *testing.T) {
		server, err := services.StartKafka(t.Context(), services.Options{QuickStart: true})
		needsKafka(t, err)
		t.Cleanup(func() { require.NoError(t, server.Close()) })
		restarted(t, newInboundWorldOn(t, server, 2), server.Kill, server.Restart)
	})
	t.Run("JetStream", func(t *testing.T) {
		server, err := services.StartNATS(t.Context(), services.Options{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, server.Close()) })
		restarted(t, newJetStreamWorld(t, server.URL()).inboundWorld, server.Stop, server.Restart)
	})
}

// TestInboundSlowHandlersAtRevoke: handlers that do not end within RevokeTimeout are abandoned; their messages are
// delivered to the new owner, and still applied once.
func TestInboundSlowHandlersAtRevoke(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newInboundWorld(t, 2)
	w.send(400, 50)
	c := w.config()
	c.RevokeTimeout = 200 * time.Millisecond
	stuck := make(chan struct{})
	entered := make(chan struct{}, 16)
	w.serve(c, func(*message.Message, string) error {
		select {
		case entered <- struct{}{}:
		default:
		}
		<-stuck
		return nil
	})
	within(t, "a handler is at work", entered)
	second := w.serve(c, work)
	eventually(t, func() bool { return second.calls.Load() > 0 }, "the group does not wait for handlers forever")
	close(stuck)
	w.await(w.settled)
	w.verify()
}

// TestTransactionMarkersAreNoLag: transaction markers and aborted records occupy offsets without messages. Aborted
// records are not handled, and the group passes both: its lag reaches zero, and its committed offset the end.
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
		abort := i%4 == 3 || i >= 10 // aborted transactions end the partition
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

// clusterAdmin returns an operator's client of the broker.
func (w *inboundWorld) clusterAdmin() sarama.ClusterAdmin {
	w.t.Helper()
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V2_8_0_0
	asks, err := sarama.NewClusterAdmin(w.server.Brokers(), cfg)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = asks.Close() })
	return asks
}

// TestInboundTopicIsMadeAnew: an operator deletes the topic of a subscription and recreates it.
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
	}, "the topic is recreated")
	eventually(t, func() bool {
		all, err := asks.DescribeTopics([]string{w.topic})
		return err == nil && len(all) == 1 && errors.Is(all[0].Err, sarama.ErrNoError) && len(all[0].Partitions) > 0
	}, "the topic exists")
	w.send(100, 20)
	w.await(w.settled)
	w.verify()
}

// TestInboundMessagesAreDeleted: the broker deletes messages that were not committed or read because a key is failing.
func TestInboundMessagesAreDeleted(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newInboundWorld(t, 1)
	c := w.config()
	c.MaxAhead = 100
	const n = 2000
	large := make([]numberedMessage, n) // 4 MiB: a fetch has a part of them
	for i := range large {
		large[i] = numberedMessage{fmt.Sprintf("key-%02d-%01000d", i%20, 0), i/20 + 1}
	}
	w.put(large)
	var mended atomic.Bool
	w.serve(c, func(_ *message.Message, key string) error {
		if strings.HasPrefix(key, "key-03") && !mended.Load() {
			return errors.New("fails")
		}
		return nil
	})
	w.await(50)
	require.NoError(t, w.clusterAdmin().DeleteRecords(w.topic, map[int32]int64{0: n}))
	mended.Store(true)
	w.h.exec(t, `create view fresh as select * from ledger where key = 'fresh'`)
	fresh := make([]numberedMessage, 200)
	for i := range fresh {
		fresh[i] = numberedMessage{"fresh", i + 1}
	}
	w.put(fresh)
	w.h.reaches(t, 200, "later messages are handled", `select count(distinct (key, seq)) from fresh`)
	assert.Zero(t, w.h.count(t, `select count(*) - count(distinct (key, seq)) from ledger`))
	assert.Less(t, w.handled(), n+200, "all were read before the broker deleted them: the test has shown nothing")
}

// work takes some time, and now and then much longer.
func work(*message.Message, string) error {
	time.Sleep(rand.N(3 * time.Millisecond))
	return nil
}

// TestInboundOrderUnderRebalance: one member after another joins the group and leaves it as soon as some messages are
// handled. Members that come and go faster than the group rebalances would starve a partition that is being assigned.
func TestInboundOrderUnderRebalance(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"range", "sticky", "cooperative"} {
		t.Run(strategy, func(t *testing.T) {
			if strategy != "range" {
				extended(t)
			}
			t.Parallel()
			w := newInboundWorld(t, 4)
			w.send(rounds(1200, 60_000), 200)
			c := w.config()
			c.Strategy = strategy
			c.ManualCommit = strategy == "sticky"
			slow := func(*message.Message, string) error {
				time.Sleep(rand.N(30 * time.Millisecond))
				return nil
			}
			w.serve(c, slow)
			joined := 0
			for ; w.handled() < w.settled; joined++ {
				s := w.serve(c, slow)
				w.await(min(w.handled()+100, w.settled))
				s.close()
			}
			w.verify()
			t.Logf("%d members came and went", joined)
		})
	}
}

// TestInboundControlWithoutKeys is the negative control: without keys the same handlers see messages out of order.
func TestInboundControlWithoutKeys(t *testing.T) {
	extended(t)
	onEachBroker(t, 1, func(t *testing.T, w *inboundWorld) {
		w.send(300, 20)
		c := w.config()
		c.Unordered = true
		w.serve(c, work)
		w.await(w.settled)
		assert.NotZero(t, w.disorder(), "without keys the order was kept: the tests of the order prove nothing")
	})
}
