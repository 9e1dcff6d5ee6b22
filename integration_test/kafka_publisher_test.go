package integration_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rcrowley/go-metrics"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/kafka"
)

// sarama's meters start a goroutine that nothing stops.
func init() { metrics.UseNilMetrics = true }

var startKafka = shared(func(ctx context.Context) (*services.Kafka, error) {
	return services.StartKafka(ctx, services.Options{QuickStart: true})
})

// kafkaServer returns the broker that all tests of the run share. Do not stop it; tests that stop a broker start their
// own.
func kafkaServer(t testing.TB) *services.Kafka {
	t.Helper()
	server, err := startKafka()
	needsKafka(t, err)
	return server
}

// needsKafka skips the test if Java or Maven is not installed, except in CI.
func needsKafka(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, services.ErrNotInstalled) && !services.InCI() {
		t.Skip(err)
	}
	require.NoError(t, err)
}

// kafkaBrokers is one broker or a cluster.
type kafkaBrokers interface{ Brokers() []string }

// kafkaTopic creates a topic for one test, with a replica on each broker.
func kafkaTopic(t testing.TB, server kafkaBrokers, partitions int32, settings map[string]*string) string {
	t.Helper()
	client, err := sarama.NewClient(server.Brokers(), sarama.NewConfig())
	require.NoError(t, err)
	admin, err := sarama.NewClusterAdminFromClient(client)
	require.NoError(t, err)
	defer admin.Close() // closes the client too
	topic := "t-" + watermill.NewShortUUID()
	require.NoError(t, admin.CreateTopic(topic, &sarama.TopicDetail{
		NumPartitions: partitions, ReplicationFactor: int16(len(server.Brokers())), ConfigEntries: settings,
	}, false))
	eventually(t, func() bool { // the metadata names a leader before that broker knows it
		made, err := client.Partitions(topic)
		for _, partition := range made {
			if err == nil {
				_, err = client.GetOffset(topic, partition, sarama.OffsetNewest)
			}
		}
		return err == nil && len(made) == int(partitions)
	}, "the broker leads the topic that it created")
	return topic
}

func kafkaPublisher(t testing.TB, server kafkaBrokers) *kafka.Publisher {
	t.Helper()
	pub, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: server.Brokers()}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pub.Close()) })
	return pub
}

// consumeKafka returns the first n messages of a topic, read by watermill-kafka's subscriber.
func consumeKafka(t testing.TB, server *services.Kafka, topic string, n int) []*message.Message {
	t.Helper()
	return consumeKafkaWith(t, server, topic, n, wmkafka.DefaultMarshaler{})
}

func consumeKafkaWith(
	t testing.TB, server *services.Kafka, topic string, n int, unmarshaler wmkafka.Unmarshaler,
) []*message.Message {
	t.Helper()
	sc := wmkafka.DefaultSaramaSubscriberConfig()
	sc.Version = sarama.V2_8_0_0
	sc.Consumer.Offsets.Initial = sarama.OffsetOldest
	sub, err := wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers: server.Brokers(), Unmarshaler: unmarshaler, OverwriteSaramaConfig: sc,
		ConsumerGroup: "g-" + watermill.NewShortUUID(),
	}, nil)
	require.NoError(t, err)
	defer sub.Close()
	in, err := sub.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	return take(t, in, n)
}

func TestKafkaKeyIsPartition(t *testing.T) {
	t.Parallel()
	server := kafkaServer(t)
	topic := kafkaTopic(t, server, 4, nil)
	pub := kafkaPublisher(t, server)

	sent := map[string]*message.Message{}
	var order []string
	for i := range 100 {
		keyed, unkeyed := newMessage(fmt.Sprint("keyed ", i)), newMessage("\x00\xff")
		outbox.SetKey(keyed, "order/1")
		keyed.Metadata.Set("tenant", "größe\nzwei")
		require.NoError(t, pub.Publish(topic, keyed, unkeyed))
		sent[keyed.UUID], sent[unkeyed.UUID] = keyed, unkeyed
		order = append(order, keyed.UUID)
	}

	keyed, unkeyed := map[int32]bool{}, map[int32]bool{}
	var gotOrder []string
	for _, msg := range consumeKafka(t, server, topic, len(sent)) {
		want := sent[msg.UUID]
		require.NotNil(t, want, "unknown UUID %q", msg.UUID)
		require.True(t, msg.Equals(want), "got %v %q, want %v %q", msg.Metadata, msg.Payload, want.Metadata, want.Payload)
		partition, ok := wmkafka.MessagePartitionFromCtx(msg.Context())
		require.True(t, ok)
		key, ok := wmkafka.MessageKeyFromCtx(msg.Context())
		require.True(t, ok)
		if msg.Metadata.Get(outbox.MetadataKey) == "" {
			require.Nil(t, key)
			unkeyed[partition] = true
			continue
		}
		require.Equal(t, "order/1", string(key))
		keyed[partition] = true
		gotOrder = append(gotOrder, msg.UUID)
	}
	require.Len(t, keyed, 1, "a key uses one partition")
	require.Len(t, unkeyed, 4, "messages without a key spread over all partitions")
	require.Equal(t, order, gotOrder)
}

func TestKafkaOversize(t *testing.T) {
	t.Parallel()
	server := kafkaServer(t)
	limit := "20000"
	topic := kafkaTopic(t, server, 1, map[string]*string{"max.message.bytes": &limit})
	pub := kafkaPublisher(t, server)
	own, err := wmkafka.NewPublisher(wmkafka.PublisherConfig{
		Brokers: server.Brokers(), Marshaler: wmkafka.DefaultMarshaler{},
	}, nil)
	require.NoError(t, err)
	defer own.Close()

	for name, p := range map[string]message.Publisher{"ours": pub, "watermill-kafka's default": own} {
		err := p.Publish(topic, newMessage(string(make([]byte, 2<<20))))
		require.Error(t, err)
		require.Equal(t, permanent, kafka.Classify(err), "%s, refused by the client: %v", name, err)
	}

	tooLarge := string(make([]byte, 30_000))
	err = own.Publish(topic, newMessage(tooLarge))
	require.ErrorIs(t, err, sarama.ErrMessageSizeTooLarge)
	require.Equal(t, unknown, kafka.Classify(err), "the error does not show which message of a batch was too large")

	// One oversized message among many in the same batches.
	const writers, each = 32, 20
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for range each {
				payload := "fits"
				if w == 0 {
					payload = tooLarge
				}
				err := pub.Publish(topic, newMessage(payload))
				switch {
				case w != 0 && err != nil:
					t.Errorf("a message that fits failed: %v", err)
				case w == 0 && kafka.Classify(err) != permanent:
					t.Errorf("a message that is too large: %v, %v", kafka.Classify(err), err)
				}
			}
		})
	}
	wg.Wait()
	for _, msg := range consumeKafka(t, server, topic, (writers-1)*each) {
		require.Equal(t, "fits", string(msg.Payload))
	}
}

// TestKafkaKeepsWhatItAcknowledges: every acknowledged message is in the log, although the broker refuses batches all
// the time, is stopped or killed under load and returns. An idempotent producer of sarama before 1.61 loses some.
func TestKafkaKeepsWhatItAcknowledges(t *testing.T) {
	extended(t)
	t.Parallel()
	server, err := services.StartKafka(t.Context(), services.Options{QuickStart: true})
	needsKafka(t, err)
	defer server.Close()
	pub := kafkaPublisher(t, server)
	ends := map[string]func() error{"stopped": server.Stop, "killed": server.Kill}
	each := rounds(1000, 10_000)
	limit := "20000"
	for round := range rounds(1, 10) {
		for _, end := range anyOf(t, "stopped", "killed") {
			t.Run(fmt.Sprintf("%s %d", end, round+1), func(t *testing.T) {
				topic := kafkaTopic(t, server, 4, map[string]*string{"max.message.bytes": &limit})
				tooLarge := startLoad(t, pub, topic, 1, string(make([]byte, 30_000)))
				l := startLoad(t, pub, topic, 64, "x")
				refused := func(n int) {
					t.Helper()
					tooLarge.wait("refused batch", func(l *load) bool { return l.verdicts[permanent] >= n })
				}
				l.wait("a first message", func(l *load) bool { return len(l.acked) > each })
				refused(each / 100)
				require.NoError(t, ends[end]())
				l.wait("unavailable", func(l *load) bool { return l.verdicts[unavailable] > 0 })
				early := kafkaPublisher(t, server)
				err := early.Publish(topic, newMessage(""))
				require.Equal(t, unavailable, verdictOf(err), "before Kafka is there: %v", err)

				require.NoError(t, server.Restart(t.Context()))
				before := l.count()
				l.wait("recovery", func(l *load) bool { return len(l.acked) > before+each })
				eventually(t, func() bool { return early.Publish(topic, newMessage("")) == nil },
					"a publisher started before Kafka connects to it")
				refused(each / 50)
				tooLarge.stop()
				l.stop()

				require.Zero(t, l.verdicts[permanent]+l.verdicts[unknown], "an outage must not blame the message: %v", l.errs)
				require.Zero(t, tooLarge.verdicts[unknown]+tooLarge.count(), "%v", tooLarge.errs)
				stored := map[string]int{}
				for _, uuid := range kafkaUUIDs(t, server, topic) {
					stored[uuid]++
				}
				missing, copies := 0, 0
				for uuid := range l.acked {
					switch n := stored[uuid]; {
					case n == 0:
						missing++
					case n > 1:
						copies++
					}
				}
				t.Logf("%d acknowledged, %d refused, %d stored more than once, %d missing", len(l.acked),
					tooLarge.verdicts[permanent], copies, missing)
				require.Zero(t, missing, "acknowledged and not stored, of %d", len(l.acked))
			})
		}
	}
}

// kafkaRecords reads all of a topic.
func kafkaRecords(t testing.TB, server kafkaBrokers, topic string) iter.Seq[*sarama.ConsumerMessage] {
	t.Helper()
	return func(yield func(*sarama.ConsumerMessage) bool) {
		client, err := sarama.NewClient(server.Brokers(), sarama.NewConfig())
		require.NoError(t, err)
		defer client.Close()
		consumer, err := sarama.NewConsumerFromClient(client)
		require.NoError(t, err)
		defer consumer.Close()
		partitions, err := client.Partitions(topic)
		require.NoError(t, err)
		for _, partition := range partitions {
			end, err := client.GetOffset(topic, partition, sarama.OffsetNewest)
			require.NoError(t, err)
			if end == 0 {
				continue
			}
			records, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
			require.NoError(t, err)
			more := true
			for record := range records.Messages() {
				if more = yield(record); !more || record.Offset+1 >= end {
					break
				}
			}
			require.NoError(t, records.Close())
			if !more {
				return
			}
		}
	}
}

func kafkaUUIDs(t testing.TB, server kafkaBrokers, topic string) (uuids []string) {
	t.Helper()
	for record := range kafkaRecords(t, server, topic) {
		msg, err := wmkafka.DefaultMarshaler{}.Unmarshal(record)
		require.NoError(t, err)
		uuids = append(uuids, msg.UUID)
	}
	return uuids
}

// TestKafkaFreezesUnderManyCalls: the broker accepts connections and never responds. All calls that wait for it fail
// soon, not one after another.
func TestKafkaFreezesUnderManyCalls(t *testing.T) {
	extended(t)
	if !long {
		t.Skip("takes a minute: set OUTBOX_LONG=1")
	}
	t.Parallel()
	server, err := services.StartKafka(t.Context(), services.Options{QuickStart: true})
	needsKafka(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	topic := kafkaTopic(t, server, 1, nil)
	pub, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: server.Brokers()}, nil)
	require.NoError(t, err)
	require.NoError(t, pub.Publish(topic, newMessage("before")))
	require.NoError(t, server.Freeze())
	begun := time.Now()
	calls := make(chan error, 64)
	for range cap(calls) {
		go func() { calls <- pub.Publish(topic, newMessage("")) }()
	}
	for over, n := time.After(2*patience), 0; n < cap(calls); n++ {
		select {
		case err := <-calls:
			assert.Equal(t, forwarder.Unavailable, kafka.Classify(err), err)
		case <-over:
			t.Fatalf("%d of %d calls failed within %s", n, cap(calls), 2*patience)
		}
	}
	t.Logf("%d calls failed within %s", cap(calls), time.Since(begun).Round(time.Second))
	require.NoError(t, server.Thaw())
	require.NoError(t, pub.Close())
}
