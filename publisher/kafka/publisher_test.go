package kafka_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/publisher/kafka"
)

// fakeKafka refuses every batch that contains a message of more than 10 bytes. As sarama does, it puts
// messages of concurrent calls into one batch: it waits until size calls have come in, or a call comes alone.
type fakeKafka struct {
	mu       sync.Mutex
	batch    []*message.Message
	size     int
	full     chan struct{}
	refused  bool
	stored   map[string]int
	closed   int
	whenFull func()
}

func newFakeKafka(size int) *fakeKafka {
	return &fakeKafka{size: size, full: make(chan struct{}), stored: map[string]int{}}
}

func (f *fakeKafka) Publish(_ string, messages ...*message.Message) error {
	f.mu.Lock()
	msg := messages[0]
	if len(f.batch) < f.size {
		f.batch = append(f.batch, msg)
		f.refused = f.refused || len(msg.Payload) > 10
		if len(f.batch) == f.size {
			close(f.full)
		}
		f.mu.Unlock()
		<-f.full
		if f.whenFull != nil {
			f.whenFull()
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.refused {
			return sarama.ErrMessageSizeTooLarge
		}
		f.stored[msg.UUID]++
		return nil
	}
	defer f.mu.Unlock()
	if len(msg.Payload) > 10 {
		return sarama.ErrMessageSizeTooLarge
	}
	f.stored[msg.UUID]++
	return nil
}

func (f *fakeKafka) Close() error { f.closed++; return nil }

func TestOneBadMessageDoesNotFailItsBatch(t *testing.T) {
	const calls = 16
	fake := newFakeKafka(calls)
	var log bytes.Buffer
	pub, err := kafka.Isolate(fake, watermill.NewStdLoggerWithOut(&log, false, false))
	if err != nil {
		t.Fatal(err)
	}

	errs := make([]error, calls)
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() {
			size := 1
			if i == 3 {
				size = 11
			}
			errs[i] = pub.Publish("topic", message.NewMessage(watermill.NewUUID(), make([]byte, size)))
		})
	}
	wg.Wait()

	for i, err := range errs {
		switch {
		case i != 3 && err != nil:
			t.Errorf("innocent message %d: %v", i, err)
		case i == 3 && (!errors.Is(err, kafka.ErrRefused) || !errors.Is(err, sarama.ErrMessageSizeTooLarge)):
			t.Errorf("bad message: got %v, want ErrRefused around the broker's error", err)
		case i == 3 && kafka.Classify(err) != permanent:
			t.Errorf("bad message: verdict %v, want permanent", kafka.Classify(err))
		}
	}
	if len(fake.stored) != calls-1 {
		t.Errorf("%d messages stored, want %d", len(fake.stored), calls-1)
	}
	if n := bytes.Count(log.Bytes(), []byte("refused a batch")); n != 1 {
		t.Errorf("logged %d times, want once:\n%s", n, &log)
	}
}

func TestCloseWaitsForPublish(t *testing.T) {
	fake := newFakeKafka(1)
	started, release := make(chan struct{}), make(chan struct{})
	fake.whenFull = func() {
		close(started)
		<-release
		if fake.closed != 0 {
			t.Error("closed while a message was under way: sarama panics")
		}
	}
	pub, err := kafka.Isolate(fake, nil)
	if err != nil {
		t.Fatal(err)
	}

	var wg sync.WaitGroup
	wg.Go(func() {
		if err := pub.Publish("topic", message.NewMessage("1", nil)); err != nil {
			t.Error(err)
		}
	})
	<-started
	wg.Go(func() {
		if err := pub.Close(); err != nil {
			t.Error(err)
		}
	})
	close(release)
	wg.Wait()

	if err := pub.Publish("topic", message.NewMessage("2", nil)); !errors.Is(err, kafka.ErrClosed) {
		t.Errorf("after Close: %v, want ErrClosed", err)
	}
	if err := pub.Close(); err != nil || fake.closed != 1 {
		t.Errorf("second Close: %v, closed %d times", err, fake.closed)
	}
}

func TestIsolateNeedsPublisher(t *testing.T) {
	if _, err := kafka.Isolate(nil, nil); err == nil {
		t.Fatal("nil publisher accepted")
	}
}

// What sarama really returns, through watermill-kafka, from a broker that answers with the given error.
func TestVerdictsOnSaramasErrors(t *testing.T) {
	const topic = "orders"
	publish := func(t *testing.T, code sarama.KError, size int) error {
		t.Helper()
		broker := sarama.NewMockBroker(t, 1)
		t.Cleanup(broker.Close)
		broker.SetHandlerByMap(map[string]sarama.MockResponse{
			"ApiVersionsRequest": sarama.NewMockApiVersionsResponse(t).SetApiKeys([]sarama.ApiVersionsResponseKey{
				{ApiKey: 0, MaxVersion: 8},  // Produce
				{ApiKey: 3, MaxVersion: 8},  // Metadata
				{ApiKey: 22, MaxVersion: 4}, // InitProducerId
			}),
			"MetadataRequest": sarama.NewMockMetadataResponse(t).SetBroker(broker.Addr(), broker.BrokerID()).SetLeader(topic, 0, broker.BrokerID()),
			"ProduceRequest":  sarama.NewMockProduceResponse(t).SetError(topic, 0, code),
		})
		c := kafka.SaramaConfig()
		c.Producer.Retry.Backoff = 0
		pub, err := wmkafka.NewPublisher(wmkafka.PublisherConfig{
			Brokers:               []string{broker.Addr()},
			Marshaler:             wmkafka.DefaultMarshaler{},
			OverwriteSaramaConfig: c,
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = pub.Close() })
		return pub.Publish(topic, message.NewMessage("uuid", make([]byte, size)))
	}

	if err := publish(t, sarama.ErrNoError, 1); err != nil {
		t.Fatalf("the mock broker does not work: %v", err)
	}
	tests := []struct {
		name string
		code sarama.KError
		size int
		want any
	}{
		{"client-side oversize", sarama.ErrNoError, 2 << 20, permanent},
		{"broker-side oversize, not isolated", sarama.ErrMessageSizeTooLarge, 1, rejected},
		{"invalid topic", sarama.ErrInvalidTopic, 1, permanent},
		{"too few replicas", sarama.ErrNotEnoughReplicas, 1, unavailable},
		{"not authorized", sarama.ErrTopicAuthorizationFailed, 1, unavailable},
		{"broker time-out", sarama.ErrRequestTimedOut, 1, unavailable},
		{"server error", sarama.ErrUnknown, 1, rejected},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := publish(t, tt.code, tt.size)
			if got := kafka.Classify(err); err == nil || got != tt.want {
				t.Errorf("%v: got %v, want %v", err, got, tt.want)
			}
		})
	}
}
