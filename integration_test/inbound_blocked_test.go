package integration_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/kafka"
	"github.com/millrace-go/watermill-outbox/nats"
	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/observe/prom"
)

// TestInboundFailingKeyBlocksNothingElse: more keys fail than there are slots, and all others are handled in the
// meantime, also when JetStream's consumer reaches its limit of unfinished messages.
func TestInboundFailingKeyBlocksNothingElse(t *testing.T) {
	onEachBroker(t, 1, func(t *testing.T, w *inboundWorld) {
		w.send(1000, 100)
		var mended atomic.Bool
		failing := map[string]bool{}
		bad := 0
		for i := range 20 {
			failing["key-"+itoa(i)] = true
			bad += w.sent["key-"+itoa(i)]
		}
		c := w.config()
		if c.NATS != "" { // Kafka's limit counts from the oldest failing message on
			c.MaxAhead = 500
		}
		var failed atomic.Int64
		w.serve(c, func(_ *message.Message, key string) error {
			if failing[key] && !mended.Load() {
				failed.Add(1)
				return errors.New("fails")
			}
			return nil
		})
		w.await(w.settled - bad)
		assert.NotZero(t, failed.Load())
		assert.Equal(t, w.settled-bad, w.handled(), "a failing key was handled")
		mended.Store(true)
		w.await(w.settled)
		w.verify()
	})
}

// seenPartitions remembers the partition states that an observer received.
type seenPartitions struct {
	mu  sync.Mutex
	all []meter.PartitionState
}

func (s *seenPartitions) PartitionState(_ context.Context, state meter.PartitionState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, state)
}

// last returns the latest state.
func (s *seenPartitions) last() (state meter.PartitionState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) > 0 {
		state = s.all[len(s.all)-1]
	}
	return state
}

// any reports whether one of the states satisfies is.
func (s *seenPartitions) any(is func(meter.PartitionState) bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, state := range s.all {
		if is(state) {
			return true
		}
	}
	return false
}

// TestBlockedPartitionIsFound: when MaxAhead messages have been read beyond one that keeps failing, its partition
// pauses. Until that one is handled, observers, an error line, Doctor, outboxctl and the page show which partition is
// paused, for how long, and how many messages wait behind it.
func TestBlockedPartitionIsFound(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newInboundWorld(t, 1)
	startForwarder(t, w.h, quickConfig())
	startForwarder(t, w.h, quickConfig()) // both report it
	w.send(1, 1)                          // the blocking message
	w.send(600, 300)
	var mended atomic.Bool
	observer, err := prom.NewObserver(prom.ObserverConfig{})
	require.NoError(t, err)
	seen, log := &seenPartitions{}, watermill.NewCaptureLogger()
	c := w.config()
	c.MaxAhead, c.observers = 200, []observe.Observer{observer, seen}
	s, err := startInbound(w.h, c, func(_ *message.Message, key string) error {
		if key == "key-0" && !mended.Load() {
			return errors.New("fails")
		}
		return nil
	}, log)
	require.NoError(t, err)
	t.Cleanup(s.close)
	eventually(t, func() bool {
		return seen.any(func(p meter.PartitionState) bool {
			return p.Owned && p.Paused == meter.PausedByBlockedKey && p.BlockedKeys == 1 && p.OldestBlocked > 0 && p.Lag > 0
		})
	}, "observers are notified of the pause")
	eventually(t, func() bool {
		return slices.ContainsFunc(log.Captured()[watermill.ErrorLogLevel], func(line watermill.CapturedMessage) bool {
			return strings.HasPrefix(line.Msg, "reading is paused") && strings.Contains(line.Err.Error(), "fails")
		})
	}, "an error line reports it")
	ad := newAdmin(t, w.h)
	found := func() []admin.Finding {
		all, err := ad.Doctor(t.Context())
		require.NoError(t, err)
		return slices.DeleteFunc(all, func(f admin.Finding) bool { return f.Check != "partition_blocked" })
	}
	ails(t, w.h, "partition_blocked")
	f := found()[0]
	assert.Len(t, found(), 1, "reported by two forwarders")
	assert.Equal(t, admin.Warning, f.Severity, "the pause has just begun")
	assert.Contains(t, f.Evidence, `partition 0 of topic "`+w.topic+`", read by consumer group "`+w.group+`"`)
	assert.Regexp(t, `paused for .* blocked keys: 1, the oldest for .*; lag \d+ messages`, f.Evidence)
	assert.Equal(t, []string{"PartitionBlocked"}, f.Alerts)
	assert.Equal(t, w.topic, f.Subject)
	alert := func() bool {
		alerts, known := firing(t, false, observer)
		return !known || slices.ContainsFunc(alerts, func(a map[string]string) bool {
			return a["alertname"] == "PartitionBlocked" && a["finding"] == f.Check && a["topic"] == w.topic
		})
	}
	assert.True(t, alert(), "the alert of its name fires on the metrics of the same partition")
	operator := ctl{t: t, url: w.h.url}
	assert.Contains(t, operator.run("doctor").out, "partition_blocked")
	assert.Contains(t, operator.run("errors", "--in", "inbox").out, "fails", "the page that the cure refers to")
	assert.Contains(t, newSite(t, w.h, ui.Access{}).get("/").body, "artition is blocked by a message", "its title")

	eventually(t, func() bool {
		w.h.exec(t, `update outbox_forwarders set facts = jsonb_set(facts, '{blocked,0,since}',
			to_jsonb(now() - interval '1 hour')) where jsonb_typeof(facts->'blocked') = 'array'`)
		f := found()
		return len(f) == 1 && f[0].Severity == admin.Critical
	}, "it is critical after a while")

	mended.Store(true)
	w.await(w.settled)
	eventually(t, func() bool { return len(found()) == 0 }, "it is no longer found")
	_, known := firing(t, false, observer)
	assert.True(t, !known || !alert(), "and the alert is over")
	eventually(t, func() bool {
		p := seen.last()
		return p.Owned && p.Paused == "" && p.Lag == 0 && p.Pending == 0
	}, "observers are notified that it is read again")
	s.close()
	assert.False(t, seen.last().Owned, "observers are notified of its end")
	w.verify()
}

// TestPubSubOfKafkaSubscriber runs Watermill's suite on watermill-kafka's publisher and our subscriber, with one key. A
// group resumes where it stopped, and TestInboundBrokerRestart restarts the broker.
func TestPubSubOfKafkaSubscriber(t *testing.T) {
	extended(t)
	broker := os.Getenv(suiteChild)
	if broker == "" {
		broker = kafkaServer(t).Brokers()[0]
	}
	if !runSuiteOn(t, broker, "TestNewSubscriberReceivesOldMessages", "TestReconnect") {
		return
	}
	brokerSuiteLeaks(t)
	pubSubInOrder(t, func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		logger := watermill.NewStdLogger(false, false)
		pub, err := wmkafka.NewPublisher(wmkafka.PublisherConfig{
			Brokers: []string{broker},
			Marshaler: wmkafka.NewWithPartitioningMarshaler(func(string, *message.Message) (string, error) {
				return "one", nil
			}),
		}, logger)
		require.NoError(t, err)
		settings := kafka.DefaultSaramaSubscriberConfig()
		settings.Version = sarama.V2_8_0_0
		settings.Consumer.Offsets.AutoCommit.Interval = 100 * time.Millisecond
		sub, err := kafka.NewSubscriber(kafka.SubscriberConfig{
			SubscriberConfig: wmkafka.SubscriberConfig{
				Brokers: []string{broker}, Unmarshaler: wmkafka.DefaultMarshaler{}, ConsumerGroup: group,
				OverwriteSaramaConfig:  settings,
				InitializeTopicDetails: &sarama.TopicDetail{NumPartitions: 4, ReplicationFactor: 1},
			},
			Backoff: outbox.Backoff{Initial: 10 * time.Millisecond, Max: 100 * time.Millisecond},
		}, logger)
		require.NoError(t, err)
		return pub, sub
	}, nil)
}

// TestPubSubOfJetStreamSubscriber runs Watermill's suite on our publisher and subscriber, with one key. A new
// subscription resumes where the consumer stopped, and TestInboundBrokerRestart stops the server.
func TestPubSubOfJetStreamSubscriber(t *testing.T) {
	extended(t)
	url := os.Getenv(suiteChild)
	if url == "" {
		url = natsServer(t).URL()
	}
	if !runSuiteOn(t, url, "TestNewSubscriberReceivesOldMessages", "TestReconnect") {
		return
	}
	_, _, prefix := natsStream(t, url, nil)
	brokerSuiteLeaks(t)
	pubSubInOrder(t, func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		logger := watermill.NewStdLogger(false, false)
		pub, err := nats.NewPublisher(nats.PublisherConfig{URL: url}, logger)
		require.NoError(t, err)
		sub, err := nats.NewSubscriber(nats.SubscriberConfig{
			URL: url, Consumer: group, AckWait: 3 * time.Second,
			Key:     func(*natsgo.Msg) []byte { return []byte("one") },
			Backoff: outbox.Backoff{Initial: 10 * time.Millisecond, Max: 100 * time.Millisecond},
		}, logger)
		require.NoError(t, err)
		return pub, sub
	}, func(c tests.TestContext) string { return prefix + string(c.TestID) })
}

// pubSubInOrder runs Watermill's suite for consumer groups that keep the order. topic names a test's topic; nil = the
// suite does.
func pubSubInOrder(
	t *testing.T, construct tests.ConsumerGroupPubSubConstructor, topic func(tests.TestContext) string,
) {
	of := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		pub, sub := construct(t, group)
		t.Cleanup(func() { // the suite does not close all of them
			require.NoError(t, sub.Close())
			_ = pub.Close()
		})
		return pub, sub
	}
	tests.TestPubSub(t, tests.Features{
		Persistent: true, GuaranteedOrder: true, GuaranteedOrderWithSingleSubscriber: true,
		ConsumerGroups: true, GenerateTopicFunc: topic,
	}, func(t *testing.T) (message.Publisher, message.Subscriber) { return of(t, "test") }, of)
}
