package integration_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/rcrowley/go-metrics"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/services"
	"github.com/millrace-go/watermill-outbox/publisher/kafka"
	"github.com/millrace-go/watermill-outbox/publisher/nats"
)

const (
	rejected    = forwarder.Rejected
	unavailable = forwarder.Unavailable
	permanent   = forwarder.Permanent
)

// outagePatience is how long a publisher may take to notice that its broker is gone or back: sarama's
// circuit breaker alone takes ten seconds.
const outagePatience = 2 * time.Minute

// sarama's meters start a goroutine that nothing stops.
func init() { metrics.UseNilMetrics = true }

var startKafka = shared(func(ctx context.Context) (*services.Kafka, error) {
	return services.StartKafka(ctx, services.Options{QuickStart: true})
})

// kafkaServer returns the broker that all tests of the run share. Do not stop it: a test that must starts
// one of its own.
func kafkaServer(t testing.TB) *services.Kafka {
	t.Helper()
	server, err := startKafka()
	require.NoError(t, err)
	return server
}

var startNATS = shared(func(ctx context.Context) (*services.NATS, error) {
	return services.StartNATS(ctx, services.Options{})
})

// natsServer returns the server that all tests of the run share. Do not stop it.
func natsServer(t testing.TB) *services.NATS {
	t.Helper()
	server, err := startNATS()
	require.NoError(t, err)
	return server
}

// kafkaTopic makes a topic of its own for a test.
func kafkaTopic(t testing.TB, server *services.Kafka, partitions int32, settings map[string]*string) string {
	t.Helper()
	admin, err := sarama.NewClusterAdmin(server.Brokers(), sarama.NewConfig())
	require.NoError(t, err)
	defer admin.Close()
	topic := "t-" + watermill.NewShortUUID()
	require.NoError(t, admin.CreateTopic(topic, &sarama.TopicDetail{
		NumPartitions: partitions, ReplicationFactor: 1, ConfigEntries: settings,
	}, false))
	eventually(t, func() bool {
		made, err := admin.DescribeTopics([]string{topic})
		return err == nil && len(made) == 1 && made[0].Err == sarama.ErrNoError && len(made[0].Partitions) == int(partitions)
	}, "the broker knows the topic that it made")
	return topic
}

func kafkaPublisher(t testing.TB, server *services.Kafka) *kafka.Publisher {
	t.Helper()
	pub, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: server.Brokers()}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pub.Close()) })
	return pub
}

// consumeKafka returns the next n messages of a topic from its beginning, as a watermill-kafka subscriber
// gives them.
func consumeKafka(t testing.TB, server *services.Kafka, topic string, n int) []*message.Message {
	t.Helper()
	sc := wmkafka.DefaultSaramaSubscriberConfig()
	sc.Version = sarama.V2_8_0_0
	sc.Consumer.Offsets.Initial = sarama.OffsetOldest
	sub, err := wmkafka.NewSubscriber(wmkafka.SubscriberConfig{
		Brokers: server.Brokers(), Unmarshaler: wmkafka.DefaultMarshaler{}, OverwriteSaramaConfig: sc,
		ConsumerGroup: "g-" + watermill.NewShortUUID(),
	}, nil)
	require.NoError(t, err)
	defer sub.Close()
	in, err := sub.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	return take(t, in, n)
}

func take(t testing.TB, in <-chan *message.Message, n int) []*message.Message {
	t.Helper()
	var all []*message.Message
	timeout := time.After(outagePatience)
	for len(all) < n {
		select {
		case msg := <-in:
			msg.Ack()
			all = append(all, msg)
		case <-timeout:
			t.Fatalf("%d of %d messages arrived", len(all), n)
		}
	}
	return all
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
	require.Len(t, keyed, 1, "a key is one partition")
	require.Len(t, unkeyed, 4, "messages without a key spread over all partitions")
	require.Equal(t, order, gotOrder)
}

func TestKafkaOversize(t *testing.T) {
	t.Parallel()
	server := kafkaServer(t)
	limit := "20000"
	topic := kafkaTopic(t, server, 1, map[string]*string{"max.message.bytes": &limit})
	pub := kafkaPublisher(t, server)
	own, err := wmkafka.NewPublisher(wmkafka.PublisherConfig{Brokers: server.Brokers(), Marshaler: wmkafka.DefaultMarshaler{}}, nil)
	require.NoError(t, err)
	defer own.Close()

	for name, p := range map[string]message.Publisher{"ours": pub, "watermill-kafka's default": own} {
		err := p.Publish(topic, newMessage(string(make([]byte, 2<<20))))
		require.Error(t, err)
		require.Equal(t, permanent, kafka.Classify(err), "%s, refused by the client: %v", name, err)
	}
	if server.Fake() {
		t.Log("the fake broker has no limit of its own")
		return
	}

	tooLarge := string(make([]byte, 30_000))
	err = own.Publish(topic, newMessage(tooLarge))
	require.ErrorIs(t, err, sarama.ErrMessageSizeTooLarge)
	require.Equal(t, rejected, kafka.Classify(err), "of a batch nobody knows which message was too large")

	// One message that is too large among many in the same batches.
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

// Every message that was acknowledged is in the log, although the broker refuses batches all the time, goes away
// under load and comes back. An idempotent producer of sarama before 1.61 loses some of them.
func TestKafkaKeepsWhatItAcknowledges(t *testing.T) {
	t.Parallel()
	server, err := services.StartKafka(t.Context(), services.Options{QuickStart: true})
	require.NoError(t, err)
	defer server.Close()
	if server.Fake() {
		t.Skip("a fake broker loses its data with its process")
	}
	pub := kafkaPublisher(t, server)
	rounds, each := 1, 1000
	if long {
		rounds, each = 10, 10_000
	}
	limit := "20000"
	for round := range rounds {
		for _, end := range []struct {
			name string
			of   func() error
		}{{"stopped", server.Stop}, {"killed", server.Kill}} {
			t.Run(fmt.Sprintf("%s %d", end.name, round+1), func(t *testing.T) {
				topic := kafkaTopic(t, server, 4, map[string]*string{"max.message.bytes": &limit})
				tooLarge := startLoad(t, pub, topic, 1, string(make([]byte, 30_000)))
				l := startLoad(t, pub, topic, 64, "x")
				refused := func(n int) {
					t.Helper()
					tooLarge.wait("refused batch", func(l *load) bool { return l.verdicts[permanent] >= n })
				}
				l.wait("a first message", func(l *load) bool { return len(l.acked) > each })
				refused(each / 100)
				require.NoError(t, end.of())
				l.wait("unavailable", func(l *load) bool { return l.verdicts[unavailable] > 0 })
				early := kafkaPublisher(t, server)
				err := early.Publish(topic, newMessage(""))
				require.Equal(t, unavailable, early.Classify(err), "before Kafka is there: %v", err)

				require.NoError(t, server.Restart(t.Context()))
				before := l.count()
				l.wait("recovery", func(l *load) bool { return len(l.acked) > before+each })
				eventually(t, func() bool { return early.Publish(topic, newMessage("")) == nil }, "who came before Kafka finds it")
				refused(each / 50)
				tooLarge.stop()
				l.stop()

				require.Zero(t, l.verdicts[permanent]+l.verdicts[rejected], "an outage is nobody's fault: %v", l.errs)
				require.Zero(t, tooLarge.verdicts[rejected]+tooLarge.count(), "%v", tooLarge.errs)
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
				t.Logf("%d acknowledged, %d refused, %d stored more than once, %d missing", len(l.acked), tooLarge.verdicts[permanent], copies, missing)
				require.Zero(t, missing, "acknowledged and not stored, of %d", len(l.acked))
			})
		}
	}
}

// kafkaUUIDs reads all of a topic.
func kafkaUUIDs(t testing.TB, server *services.Kafka, topic string) (uuids []string) {
	t.Helper()
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
		for record := range records.Messages() {
			msg, err := wmkafka.DefaultMarshaler{}.Unmarshal(record)
			require.NoError(t, err)
			uuids = append(uuids, msg.UUID)
			if record.Offset+1 >= end {
				break
			}
		}
		require.NoError(t, records.Close())
	}
	return uuids
}

func TestKafkaUserBuiltPublisher(t *testing.T) {
	t.Parallel()
	server := kafkaServer(t)
	topic := kafkaTopic(t, server, 1, nil)
	own, err := wmkafka.NewPublisher(wmkafka.PublisherConfig{
		Brokers: server.Brokers(), Marshaler: kafka.Marshaler{}, OverwriteSaramaConfig: kafka.SaramaConfig(),
	}, nil)
	require.NoError(t, err)
	pub, err := kafka.Isolate(own, nil)
	require.NoError(t, err)

	msg := newMessage("hello")
	require.NoError(t, pub.Publish(topic, msg))
	require.Equal(t, msg.UUID, consumeKafka(t, server, topic, 1)[0].UUID)

	if !server.Fake() { // which takes any name
		err = pub.Publish("not a topic name", newMessage(""))
		require.Equal(t, permanent, kafka.Classify(err), "%v", err)
	}

	require.NoError(t, pub.Close())
	err = pub.Publish(topic, newMessage(""))
	require.ErrorIs(t, err, outbox.ErrClosed)
	require.Equal(t, unavailable, kafka.Classify(err))
}

// publisher is one that knows its errors.
type publisher interface {
	message.Publisher
	forwarder.Classifier
}

// load publishes from many goroutines, each message until it is acknowledged.
type load struct {
	t    testing.TB
	done chan struct{}
	wg   sync.WaitGroup

	mu       sync.Mutex
	acked    map[string]bool
	verdicts map[forwarder.Verdict]int
	errs     map[string]int
}

func startLoad(t testing.TB, pub publisher, topic string, writers int, payload string) *load {
	l := &load{t: t, done: make(chan struct{}), acked: map[string]bool{}, verdicts: map[forwarder.Verdict]int{}, errs: map[string]int{}}
	for range writers {
		l.wg.Go(func() {
			msg := newMessage(payload)
			for {
				err := pub.Publish(topic, msg)
				l.mu.Lock()
				if err != nil {
					verdict := pub.Classify(err)
					l.verdicts[verdict]++
					if verdict != unavailable {
						l.errs[err.Error()]++
					}
				} else {
					l.acked[msg.UUID] = true
					msg = newMessage(payload)
				}
				l.mu.Unlock()

				pause := 5 * time.Millisecond
				if err != nil {
					pause = 100 * time.Millisecond // else most of the time goes into refusals
				}
				select {
				case <-l.done:
					return
				case <-time.After(pause):
				}
			}
		})
	}
	t.Cleanup(l.stop)
	return l
}

func (l *load) wait(what string, reached func(*load) bool) {
	l.t.Helper()
	for deadline := time.Now().Add(outagePatience); ; time.Sleep(10 * time.Millisecond) {
		l.mu.Lock()
		ok := reached(l)
		l.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("no %s within %s", what, outagePatience)
		}
	}
}

func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

func (l *load) stop() {
	select {
	case <-l.done:
	default:
		close(l.done)
	}
	l.wg.Wait()
}

// natsStream makes a stream of its own for a test, on all subjects that begin with the returned prefix.
func natsStream(t testing.TB, url string, configure func(*natsgo.StreamConfig)) (js natsgo.JetStreamContext, stream, prefix string) {
	t.Helper()
	conn, err := natsgo.Connect(url, natsgo.MaxReconnects(-1), natsgo.ReconnectWait(50*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	js, err = conn.JetStream()
	require.NoError(t, err)
	stream = "s-" + watermill.NewShortUUID()
	cfg := &natsgo.StreamConfig{Name: stream, Subjects: []string{stream + ".>"}, Storage: natsgo.FileStorage, Duplicates: 10 * time.Minute}
	if configure != nil {
		configure(cfg)
	}
	_, err = js.AddStream(cfg)
	require.NoError(t, err)
	return js, stream, stream + "."
}

const natsAckTimeout = 5 * time.Second

func natsPublisher(t testing.TB, url string) *nats.Publisher {
	t.Helper()
	pub, err := nats.NewPublisher(nats.PublisherConfig{URL: url, AckTimeout: natsAckTimeout}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pub.Close()) })
	return pub
}

func natsStored(t testing.TB, js natsgo.JetStreamContext, stream string) int {
	t.Helper()
	info, err := js.StreamInfo(stream)
	require.NoError(t, err)
	return int(info.State.Msgs)
}

func TestNATSDeduplication(t *testing.T) {
	t.Parallel()
	url := natsServer(t).URL()
	js, stream, prefix := natsStream(t, url, nil)
	pub := natsPublisher(t, url)
	a, b := prefix+"a", prefix+"b"
	publish := func(what, topic string, msg *message.Message, wantStored int) {
		t.Helper()
		require.NoError(t, pub.Publish(topic, msg))
		require.Equal(t, wantStored, natsStored(t, js, stream), what)
	}

	msg := newMessage("hello")
	publish("first", a, msg, 1)
	publish("the same again", a, msg, 1)
	publish("the same UUID on another subject of the stream", b, msg, 2)
	msg.Metadata.Set(outbox.MetadataGeneration, "1")
	publish("requeued", a, msg, 3)
	publish("requeued, the same again", a, msg, 3)
	msg.Metadata.Set(outbox.MetadataGeneration, "2")
	publish("requeued once more", a, msg, 4)

	own, other := newMessage("own"), newMessage("own")
	own.Metadata.Set(natsgo.MsgIdHdr, "mine")
	other.Metadata.Set(natsgo.MsgIdHdr, "mine")
	publish("with the user's id", a, own, 5)
	publish("another UUID under the user's id", b, other, 5)
}

func TestNATSIsReadByWatermillNATS(t *testing.T) {
	t.Parallel()
	url := natsServer(t).URL()
	_, _, prefix := natsStream(t, url, nil)
	pub := natsPublisher(t, url)
	sub, err := wmnats.NewSubscriber(wmnats.SubscriberConfig{URL: url, Unmarshaler: &wmnats.NATSMarshaler{}}, nil)
	require.NoError(t, err)
	defer sub.Close()
	in, err := sub.Subscribe(t.Context(), prefix+"a")
	require.NoError(t, err)

	msg := newMessage("\x00\xff")
	msg.Metadata.Set("tenant", "größe")
	outbox.SetKey(msg, "order/1")
	require.NoError(t, pub.Publish(prefix+"a", msg))
	got := take(t, in, 1)[0]
	require.True(t, got.Equals(msg), "got %s %v %q, want %s %v %q", got.UUID, got.Metadata, got.Payload, msg.UUID, msg.Metadata, msg.Payload)
}

func TestNATSVerdicts(t *testing.T) {
	t.Parallel()
	url := natsServer(t).URL()
	_, _, small := natsStream(t, url, func(c *natsgo.StreamConfig) { c.MaxMsgSize = 1000 })
	_, _, full := natsStream(t, url, func(c *natsgo.StreamConfig) { c.MaxMsgs, c.Discard = 1, natsgo.DiscardNew })
	own, err := wmnats.NewPublisher(wmnats.PublisherConfig{URL: url}, nil)
	require.NoError(t, err)
	defer own.Close()

	publishers := map[string]message.Publisher{"ours": natsPublisher(t, url), "watermill-nats's default": own}
	require.NoError(t, own.Publish(full+"a", newMessage("fills the stream")))
	for name, pub := range publishers {
		for _, tt := range []struct {
			what  string
			topic string
			msg   *message.Message
			want  forwarder.Verdict
		}{
			{"over the server's limit", small + "a", newMessage(string(make([]byte, 2<<20))), permanent},
			{"over the stream's limit", small + "a", newMessage(string(make([]byte, 2000))), permanent},
			{"a bad subject", small + "a b", newMessage(""), permanent},
			{"a metadata key that no header can have", small + "a", withMetadata(newMessage(""), "a key", "x"), permanent},
			{"a full stream", full + "a", newMessage(""), unavailable},
			{"no stream", "nobody." + watermill.NewShortUUID(), newMessage(""), unavailable},
			{"a failed expectation", small + "a", withMetadata(newMessage(""), natsgo.ExpectedLastSeqHdr, "99"), rejected},
		} {
			err := pub.Publish(tt.topic, tt.msg)
			require.Error(t, err, "%s: %s", name, tt.what)
			require.Equal(t, tt.want, nats.Classify(err), "%s: %s: %v", name, tt.what, err)
		}
	}
}

func withMetadata(msg *message.Message, key, value string) *message.Message {
	msg.Metadata.Set(key, value)
	return msg
}

func TestNATSOutage(t *testing.T) {
	t.Parallel()
	server, err := services.StartNATS(t.Context(), services.Options{})
	require.NoError(t, err)
	defer server.Close()
	js, stream, prefix := natsStream(t, server.URL(), nil)
	pub := natsPublisher(t, server.URL())

	l := startLoad(t, pub, prefix+"a", 64, "x")
	l.wait("a first message", func(l *load) bool { return len(l.acked) > 100 })
	require.NoError(t, server.Stop())
	l.wait("unavailable", func(l *load) bool { return l.verdicts[unavailable] > 0 })

	// The first calls wait for acknowledgements that never come; those after them need not wait.
	eventually(t, func() bool {
		start := time.Now()
		err := pub.Publish(prefix+"b", newMessage(""))
		return nats.Classify(err) == unavailable && time.Since(start) < natsAckTimeout/2
	}, "a call fails at once while disconnected")

	require.NoError(t, server.Restart(t.Context()))
	before := l.count()
	l.wait("recovery", func(l *load) bool { return len(l.acked) > before+100 })
	l.stop()

	require.Zero(t, l.verdicts[permanent]+l.verdicts[rejected], "an outage is nobody's fault: %v", l.errs)
	// Those that were sent again although they were stored the first time count once. At most one message
	// of each goroutine is stored without having been acknowledged.
	stored := natsStored(t, js, stream)
	require.GreaterOrEqual(t, stored, len(l.acked))
	require.LessOrEqual(t, stored, len(l.acked)+64)
}
