package integration_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/kafka"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/nats"
	"github.com/millrace-go/watermill-outbox/observe"
)

// inboundWorld is a topic with the numbered messages of some keys, and a table with a row for each handled message.
type inboundWorld struct {
	t       testing.TB
	server  *services.Kafka
	h       handle
	put     func(all []numberedMessage) // writes messages to the topic
	base    inboundConfig
	topic   string
	group   string
	sent    map[string]int // messages, by key
	settled int            // total number of messages
}

const inboundLedger = `
create table ledger (n bigint generated always as identity primary key, key text not null, seq int not null)`

func newInboundWorld(t testing.TB, partitions int32) *inboundWorld {
	t.Helper()
	return newInboundWorldOn(t, kafkaServer(t), partitions)
}

func newInboundWorldOn(t testing.TB, server *services.Kafka, partitions int32) *inboundWorld {
	t.Helper()
	return newInboundWorldIn(t, inboundHandle(t), server, partitions)
}

func newInboundWorldIn(t testing.TB, h handle, server *services.Kafka, partitions int32) *inboundWorld {
	t.Helper()
	w := newWorldOf(t, h, kafkaTopic(t, server, partitions, nil))
	w.server, w.base.Brokers = server, server.Brokers()
	w.put = func(all []numberedMessage) {
		cfg := sarama.NewConfig()
		cfg.Producer.Return.Successes = true
		producer, err := sarama.NewSyncProducer(server.Brokers(), cfg)
		require.NoError(t, err)
		defer producer.Close()
		batch := make([]*sarama.ProducerMessage, len(all))
		for i, n := range all {
			batch[i] = w.record(n)
		}
		require.NoError(t, producer.SendMessages(batch))
	}
	return w
}

// inboundHandle returns a database with the table of handled messages.
func inboundHandle(t testing.TB) handle {
	t.Helper()
	h := pgxHandle(t, "inbound", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.MaxConns = 60 })
	h.exec(t, inboundLedger)
	return h
}

// newWorldOf returns a world that still needs put, and the broker in its configuration.
func newWorldOf(t testing.TB, h handle, topic string) *inboundWorld {
	t.Helper()
	w := &inboundWorld{t: t, h: h, topic: topic, group: "g-" + watermill.NewShortUUID(), sent: map[string]int{}}
	w.base = inboundConfig{URL: h.url, Topic: topic, Group: w.group, CloseTimeout: patience / 2}
	return w
}

// onEachBroker runs a test on a topic of Kafka and on a subject of JetStream.
func onEachBroker(t *testing.T, partitions int32, test func(t *testing.T, w *inboundWorld)) {
	t.Parallel()
	for broker, world := range map[string]func(t *testing.T) *inboundWorld{
		"Kafka":     func(t *testing.T) *inboundWorld { return newInboundWorld(t, partitions) },
		"JetStream": func(t *testing.T) *inboundWorld { return newJetStreamWorld(t, natsServer(t).URL()).inboundWorld },
	} {
		t.Run(broker, func(t *testing.T) {
			if broker != "Kafka" {
				extended(t)
			}
			t.Parallel()
			test(t, world(t))
		})
	}
}

// numberedMessage has its number within its key.
type numberedMessage struct {
	key string
	seq int
}

// send writes messages of random keys to the topic.
func (w *inboundWorld) send(n, keys int) {
	w.t.Helper()
	all := make([]numberedMessage, n)
	for i := range all {
		key := "key-" + itoa(rand.IntN(keys))
		w.sent[key]++
		w.settled++
		all[i] = numberedMessage{key, w.sent[key]}
	}
	w.put(all)
}

func (w *inboundWorld) record(n numberedMessage) *sarama.ProducerMessage {
	return &sarama.ProducerMessage{
		Topic: w.topic, Key: sarama.StringEncoder(n.key), Value: sarama.StringEncoder(n.key + " " + itoa(n.seq)),
		Headers: []sarama.RecordHeader{{Key: []byte(wmkafka.UUIDHeaderKey), Value: []byte(watermill.NewUUID())}},
	}
}

// handled counts the messages in the table.
func (w *inboundWorld) handled() int { return w.h.count(w.t, `select count(*) from ledger`) }

// await waits until n messages are handled.
func (w *inboundWorld) await(n int) {
	w.t.Helper()
	deadline := time.Now().Add(3 * patience)
	for last := -1; ; time.Sleep(20 * time.Millisecond) {
		now := w.handled()
		if now >= n {
			return
		}
		if now > last {
			last, deadline = now, time.Now().Add(3*patience)
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%d of %d messages are handled", now, n)
		}
	}
}

// disorder counts rows that do not follow the previous row of their key.
func (w *inboundWorld) disorder() int {
	return w.h.count(w.t, `select count(*) from (
		select seq, lag(seq) over (partition by key order by n) as before from ledger) r
		where seq <> coalesce(before, 0) + 1`)
}

// verify checks that each message was handled once, in the order of its key.
func (w *inboundWorld) verify() {
	w.t.Helper()
	twice := w.h.count(w.t, `select count(*) - count(distinct (key, seq)) from ledger`)
	assert.Equal(w.t, [3]int{w.settled, 0, 0}, [3]int{w.handled(), twice, w.disorder()}, "handled, repeated, out of order")
}

// inboundConfig is the configuration of one process of a group.
type inboundConfig struct {
	URL, Topic, Group string
	Brokers           []string
	NATS              string        // URL, for a consumer of JetStream instead of a group of Kafka
	AckWait           time.Duration // of that consumer
	MaxBytes          int
	Strategy          string // of rebalances; default range
	Unordered         bool   // the negative control
	Batch             bool   // middleware.Batch instead of Stack
	MaxAhead          int
	Concurrency       int
	ManualCommit      bool
	RevokeTimeout     time.Duration
	CloseTimeout      time.Duration
	FailFor           time.Duration      // time after the start of a process in which keys that end with 07 fail
	FailUntilMended   bool               // the same keys fail until the table of that name has a row
	Service           string             // a service other than "inbound"; also the prefix of the table's keys
	observers         []observe.Observer // not in a child process
	unmarshaler       wmkafka.Unmarshaler
	natsOptions       []natsgo.Option
}

func (w *inboundWorld) config() inboundConfig { return w.base }

func (c inboundConfig) subscriber(logger watermill.LoggerAdapter) (message.Subscriber, error) {
	if c.NATS != "" {
		return c.natsSubscriber(logger)
	}
	settings := kafka.DefaultSaramaSubscriberConfig()
	settings.Version = sarama.V2_8_0_0
	settings.Consumer.Group.Session.Timeout = 6 * time.Second // the minimum that brokers allow
	settings.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	settings.Consumer.Offsets.AutoCommit.Enable = !c.ManualCommit
	strategy, ok := map[string]func() sarama.BalanceStrategy{
		"": sarama.NewBalanceStrategyRange, "range": sarama.NewBalanceStrategyRange,
		"sticky":      sarama.NewBalanceStrategySticky,
		"cooperative": sarama.NewBalanceStrategyCooperativeSticky,
	}[c.Strategy]
	if !ok {
		return nil, fmt.Errorf("no strategy %q", c.Strategy)
	}
	settings.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategy()}
	cfg := kafka.SubscriberConfig{
		SubscriberConfig: wmkafka.SubscriberConfig{
			Brokers: c.Brokers, ConsumerGroup: c.Group, Unmarshaler: wmkafka.DefaultMarshaler{}, OverwriteSaramaConfig: settings,
		},
		MaxAhead: c.MaxAhead, MaxBytes: c.MaxBytes, Concurrency: c.Concurrency,
		RevokeTimeout: c.RevokeTimeout, CloseTimeout: c.CloseTimeout,
		Backoff: outbox.Backoff{Initial: 20 * time.Millisecond, Max: 200 * time.Millisecond},
	}
	if c.unmarshaler != nil {
		cfg.Unmarshaler = c.unmarshaler
	}
	cfg.Observers = c.observers
	if c.Unordered {
		cfg.Key = func(*sarama.ConsumerMessage) []byte { return nil }
	}
	return kafka.NewSubscriber(cfg, logger)
}

// inboundService is a process of the group: a Router with Stack around a handler that writes a row.
type inboundService struct {
	sub    message.Subscriber
	router *message.Router
	ended  chan error
	calls  atomic.Int64
	stop   sync.Once
}

// serve starts a process of the group. The handler first calls before, if not nil, with the key of the message.
func (w *inboundWorld) serve(c inboundConfig, before func(msg *message.Message, key string) error) *inboundService {
	w.t.Helper()
	s, err := startInbound(w.h, c, before, watermill.NopLogger{})
	require.NoError(w.t, err)
	w.t.Cleanup(s.close)
	return s
}

func startInbound(
	h handle, c inboundConfig, before func(*message.Message, string) error, logger watermill.LoggerAdapter,
) (*inboundService, error) {
	s := &inboundService{ended: make(chan error, 1)}
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{}, logger)
	if err != nil {
		return nil, err
	}
	service, prefix := cmp.Or(c.Service, "inbound"), ""
	if c.Service != "" {
		prefix = c.Service + "/"
	}
	if c.Batch {
		return s, s.startBatches(h, c, pub, logger)
	}
	mws, err := middleware.Stack(pub, middleware.StackConfig{Service: service}, logger)
	if err != nil {
		return nil, err
	}
	if s.sub, err = c.subscriber(logger); err != nil {
		return nil, err
	}
	if s.router, err = message.NewRouter(message.RouterConfig{CloseTimeout: patience}, logger); err != nil {
		return nil, err
	}
	s.router.AddMiddleware(mws...)
	s.router.AddConsumerHandler("ledger", c.Topic, s.sub, func(msg *message.Message) error {
		s.calls.Add(1)
		key, number, _ := strings.Cut(string(msg.Payload), " ")
		seq, err := strconv.Atoi(number)
		if err != nil {
			return err
		}
		if before != nil {
			if err := before(msg, key); err != nil {
				return err
			}
		}
		return h.execTx(msg.Context(), `insert into ledger (key, seq) values ($1, $2)`, prefix+key, seq)
	})
	go func() { s.ended <- s.router.Run(context.Background()) }()
	<-s.router.Running()
	return s, nil
}

func (s *inboundService) close() {
	s.stop.Do(func() {
		_ = s.router.Close()
		<-s.ended
	})
}

// jetStreamWorld is an inboundWorld whose topic is a subject of a stream.
type jetStreamWorld struct {
	*inboundWorld
	url    string
	js     natsgo.JetStreamContext
	stream string
}

func newJetStreamWorld(t testing.TB, url string) *jetStreamWorld {
	t.Helper()
	return newJetStreamWorldIn(t, inboundHandle(t), url, nil)
}

// newJetStreamWorldIn has a short AckWait, because messages of a killed process are redelivered after it.
func newJetStreamWorldIn(t testing.TB, h handle, url string, configure func(*natsgo.StreamConfig)) *jetStreamWorld {
	t.Helper()
	js, stream, prefix := natsStream(t, url, configure)
	w := newWorldOf(t, h, prefix+"orders")
	w.base.NATS, w.base.AckWait = url, 3*time.Second
	w.put = func(all []numberedMessage) {
		for _, n := range all {
			msg := natsgo.NewMsg(w.topic)
			msg.Header.Set(wmnats.WatermillUUIDHdr, watermill.NewUUID())
			msg.Header.Set(outbox.MetadataKey, n.key)
			msg.Data = []byte(n.key + " " + itoa(n.seq))
			_, err := js.PublishMsgAsync(msg, natsgo.StallWait(patience))
			require.NoError(t, err)
		}
		select {
		case <-js.PublishAsyncComplete():
		case <-time.After(patience):
			t.Fatal("JetStream does not store the messages")
		}
	}
	return &jetStreamWorld{inboundWorld: w, url: url, js: js, stream: stream}
}

// consumer returns the state of the stream's only consumer, or nil if the stream has none.
func (w *jetStreamWorld) consumer() *natsgo.ConsumerInfo {
	for info := range w.js.Consumers(w.stream) {
		return info
	}
	return nil
}

// allAcked waits until the consumer has no unacked messages. It may have been deleted and not be back yet.
func (w *jetStreamWorld) allAcked() {
	w.t.Helper()
	eventually(w.t, func() bool {
		info := w.consumer()
		return info != nil && info.NumAckPending == 0
	}, "all messages are acked")
}

func (c inboundConfig) natsSubscriber(logger watermill.LoggerAdapter) (message.Subscriber, error) {
	cfg := nats.SubscriberConfig{
		URL: c.NATS, Options: c.natsOptions, Consumer: c.Group, AckWait: c.AckWait, MaxAhead: c.MaxAhead,
		MaxBytes: c.MaxBytes, Concurrency: c.Concurrency, CloseTimeout: c.CloseTimeout,
		Backoff: outbox.Backoff{Initial: 20 * time.Millisecond, Max: 200 * time.Millisecond},
	}
	cfg.Observers = c.observers
	if c.Unordered {
		cfg.Key = func(*natsgo.Msg) []byte { return nil }
	}
	return nats.NewSubscriber(cfg, logger)
}
