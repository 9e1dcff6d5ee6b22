package kafka

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
)

// fakeSession records its calls, in order.
type fakeSession struct {
	sarama.ConsumerGroupSession
	ctx context.Context

	mu    sync.Mutex
	calls []string
}

func (s *fakeSession) add(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, fmt.Sprintf(format, args...))
}

// take returns the calls since the last take.
func (s *fakeSession) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

func (s *fakeSession) Context() context.Context { return s.ctx }
func (s *fakeSession) Commit()                  { s.add("commit") }
func (s *fakeSession) MarkOffset(_ string, partition int32, offset int64, _ string) {
	s.add("mark %d/%d", partition, offset)
}
func (s *fakeSession) ResetOffset(_ string, partition int32, offset int64, _ string) {
	s.add("reset %d/%d", partition, offset)
}
func (s *fakeSession) Pause(of map[string][]int32)  { s.add("pause %d", of["topic"][0]) }
func (s *fakeSession) Resume(of map[string][]int32) { s.add("resume %d", of["topic"][0]) }

// fakeClaim is a partition whose messages the test sends.
type fakeClaim struct {
	partition int32
	initial   int64
	messages  chan *sarama.ConsumerMessage
	end       func() // revokes the partition
}

func newClaim(partition int32, initial int64) *fakeClaim {
	c := &fakeClaim{partition: partition, initial: initial, messages: make(chan *sarama.ConsumerMessage, 256)}
	c.end = sync.OnceFunc(func() { close(c.messages) })
	return c
}

func (c *fakeClaim) Topic() string                            { return "topic" }
func (c *fakeClaim) Partition() int32                         { return c.partition }
func (c *fakeClaim) InitialOffset() int64                     { return c.initial }
func (c *fakeClaim) HighWaterMarkOffset() int64               { return 1000 }
func (c *fakeClaim) Messages() <-chan *sarama.ConsumerMessage { return c.messages }

func (c *fakeClaim) send(offset int64, key, value string) {
	msg := &sarama.ConsumerMessage{Topic: "topic", Partition: c.partition, Offset: offset, Value: []byte(value)}
	if key != "" {
		msg.Key = []byte(key)
	}
	c.messages <- msg
}

// world is a subscription without Kafka.
type world struct {
	t      *testing.T
	sub    *subscription
	m      *member
	sess   *fakeSession
	logger *watermill.CaptureLoggerAdapter
	close  context.CancelFunc // of the subscription
	lose   context.CancelFunc // of the session
	end    func()             // closes the channel
	claims sync.WaitGroup
}

// bubble runs a test with its own clock.
func bubble(t *testing.T, change func(*SubscriberConfig), test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cfg := validConfig()
		cfg.Key = nil
		if change != nil {
			change(&cfg)
		}
		logger := watermill.NewCaptureLogger()
		s, err := NewSubscriber(cfg, logger)
		if err != nil {
			t.Fatal(err)
		}
		w := &world{t: t, sess: &fakeSession{}, logger: logger}
		ctx, cancel := context.WithCancel(t.Context())
		w.close = cancel
		w.sub = newSubscription(ctx, &s.cfg, s.cfg.OverwriteSaramaConfig, "topic", logger)
		w.end = sync.OnceFunc(w.sub.deliverer.Close)
		w.m = &member{subscription: w.sub, group: w.sess, joined: func() {}}
		w.sess.ctx, w.lose = context.WithCancel(ctx)
		if err := w.m.Setup(w.sess); err != nil {
			t.Fatal(err)
		}
		test(w)
		cancel()
		w.lose()
		w.claims.Wait()
		if err := w.m.Cleanup(w.sess); err != nil {
			t.Fatal(err)
		}
		w.end()
		w.sub.reports.Stop()
	})
}

// claim starts reading a partition. The returned channel is closed when the partition is released.
func (w *world) claim(c *fakeClaim) (ended chan struct{}) {
	ended = make(chan struct{})
	stop := context.AfterFunc(w.sess.ctx, c.end)
	w.claims.Go(func() {
		defer close(ended)
		defer c.end()
		defer stop()
		if err := w.m.ConsumeClaim(w.sess, c); err != nil {
			w.t.Error(err)
		}
	})
	synctest.Wait()
	return ended
}

// next returns the messages delivered now, at most n.
func (w *world) next(n int) (msgs []*message.Message) {
	for range n {
		synctest.Wait()
		select {
		case msg := <-w.sub.deliverer.Messages():
			msgs = append(msgs, msg)
		default:
			return msgs
		}
	}
	synctest.Wait()
	return msgs
}

// one returns the only message delivered now.
func (w *world) one() *message.Message {
	w.t.Helper()
	msgs := w.next(100)
	if len(msgs) != 1 {
		w.t.Fatalf("%d messages are delivered, want 1: %v", len(msgs), payloads(msgs))
	}
	return msgs[0]
}

// called checks the session's calls since the last check.
func (w *world) called(want ...string) {
	w.t.Helper()
	synctest.Wait()
	if got := w.sess.take(); !slices.Equal(got, want) {
		w.t.Fatalf("the session got %q, want %q", got, want)
	}
}

func (w *world) errors() (lines []string) {
	for _, line := range w.logger.Captured()[watermill.ErrorLogLevel] {
		lines = append(lines, line.Msg)
	}
	return lines
}

func payloads(msgs []*message.Message) (of []string) {
	for _, msg := range msgs {
		of = append(of, string(msg.Payload))
	}
	slices.Sort(of)
	return of
}

func validConfig() SubscriberConfig {
	return SubscriberConfig{SubscriberConfig: wmkafka.SubscriberConfig{
		Brokers: []string{"127.0.0.1:1"}, Unmarshaler: wmkafka.DefaultMarshaler{}, ConsumerGroup: "group",
	}}
}

func isClosed(c <-chan struct{}) bool {
	synctest.Wait()
	select {
	case <-c:
		return true
	default:
		return false
	}
}
