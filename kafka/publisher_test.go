package kafka_test

import (
	"bytes"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/kafka"
)

// fakeKafka refuses every batch that contains a message of more than 10 bytes. Like sarama, it batches messages of
// concurrent calls: it waits for size calls, or for a single call.
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

func (f *fakeKafka) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed++
	return nil
}

func (f *fakeKafka) closes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

func TestOneBadMessageDoesNotFailItsBatch(t *testing.T) {
	const calls = 16
	fake := newFakeKafka(calls)
	var log bytes.Buffer
	pub := kafka.NewPublisherTo(fake, watermill.NewStdLoggerWithOut(&log, false, false))

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
	}
	pub := kafka.NewPublisherTo(fake, nil)

	published, closed := make(chan error, 1), make(chan error, 1)
	go func() { published <- pub.Publish("topic", message.NewMessage("1", nil)) }()
	<-started
	go func() { closed <- pub.Close() }()
	eventually(t, "Close waits", func() bool {
		return fake.closes() > 0 || goroutineIn("(*Publisher).Close", "RWMutex).Lock")
	})
	if fake.closes() > 0 {
		t.Error("closed while a message was in flight: sarama panics")
	}
	close(release)
	if err := <-published; err != nil {
		t.Error(err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}

	err := pub.Publish("topic", message.NewMessage("2", nil))
	if !errors.Is(err, outbox.ErrClosed) || verdict(err) != unavailable {
		t.Errorf("after Close: %v, %v, want ErrClosed, unavailable", err, verdict(err))
	}
	if err := pub.Close(); err != nil || fake.closes() != 1 {
		t.Errorf("second Close: %v, closed %d times", err, fake.closes())
	}
}

// goroutineIn reports whether a goroutine is in all of these functions.
func goroutineIn(functions ...string) bool {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		found := 0
		for _, f := range functions {
			if strings.Contains(stack, f) {
				found++
			}
		}
		if found == len(functions) {
			return true
		}
	}
	return false
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out: %s", what)
		}
	}
}

// failures is a publisher that returns these errors one after another.
type failures []error

func (a *failures) Publish(string, ...*message.Message) error {
	err := (*a)[0]
	*a = (*a)[1:]
	return err
}

func (a *failures) Close() error { return nil }

// A message that was refused with its batch and then fails alone for another reason was not sent.
func TestLoneResendCanFailInItsOwnWay(t *testing.T) {
	for _, alone := range []error{sarama.ErrNotConnected, sarama.ErrInvalidTopic, errors.New("something else")} {
		pub := kafka.NewPublisherTo(&failures{sarama.ErrMessageSizeTooLarge, alone}, nil)
		err := pub.Publish("topic", message.NewMessage("1", nil))
		if !errors.Is(err, alone) || errors.Is(err, kafka.ErrRefused) || verdict(err) != kafka.Classify(alone) {
			t.Errorf("got %v, %v, want the second error %v", err, verdict(err), alone)
		}
	}
}

func TestNilMessageIsAnError(t *testing.T) {
	sent := &failures{}
	pub := kafka.NewPublisherTo(sent, nil)
	err := pub.Publish("topic", message.NewMessage("1", nil), nil)
	if !errors.Is(err, outbox.ErrInvalidMessage) || !strings.Contains(err.Error(), "2 of 2 is nil") ||
		verdict(err) != permanent {
		t.Errorf("got %v, %v", err, verdict(err))
	}
}

// The errors that sarama really returns, through watermill-kafka, for a broker that responds with this code.
func TestVerdictsOnSaramasErrors(t *testing.T) {
	const topic = "orders"
	publish := func(t *testing.T, code sarama.KError, size int) error {
		t.Helper()
		broker := sarama.NewMockBroker(t, 1)
		t.Cleanup(broker.Close)
		broker.SetHandlerByMap(handlers(t, broker, topic, code))
		pub, err := kafka.NewPublisher(kafka.PublisherConfig{
			Brokers: []string{broker.Addr()}, Configure: func(c *sarama.Config) error {
				c.Producer.Retry.Backoff = 0
				return nil
			},
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
		{"broker-side oversize", sarama.ErrMessageSizeTooLarge, 1, permanent},
		{"invalid topic", sarama.ErrInvalidTopic, 1, permanent},
		{"too few replicas", sarama.ErrNotEnoughReplicas, 1, unavailable},
		{"not authorized", sarama.ErrTopicAuthorizationFailed, 1, unavailable},
		{"broker timeout", sarama.ErrRequestTimedOut, 1, unavailable},
		{"server error", sarama.ErrUnknown, 1, unknown},
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
