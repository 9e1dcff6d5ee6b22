package kafka_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/kafka"
)

// batching is a Kafka broker that collects messages for a while into one batch, including repeated ones, and refuses a
// batch because of one oversized message.
type batching struct {
	mu      sync.Mutex
	current *batch
	refused int
}

type batch struct {
	msgs []*message.Message
	done chan struct{}
	err  error
}

func (b *batching) Publish(_ string, msgs ...*message.Message) error {
	b.mu.Lock()
	if b.current == nil {
		b.current = &batch{done: make(chan struct{})}
		time.AfterFunc(2*time.Millisecond, b.flush)
	}
	in := b.current
	in.msgs = append(in.msgs, msgs...)
	b.mu.Unlock()
	<-in.done
	return in.err
}

func (b *batching) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, msg := range b.current.msgs {
		if len(msg.Payload) > 10 {
			b.current.err = sarama.ErrMessageSizeTooLarge
			b.refused++
			break
		}
	}
	close(b.current.done)
	b.current = nil
}

func (b *batching) Close() error { return nil }

// TestARefusedMessageIsSentAlone: a message that was refused in a batch is retried without other messages, refused or
// new.
func TestARefusedMessageIsSentAlone(t *testing.T) {
	t.Parallel()
	fake := &batching{}
	pub := kafka.NewPublisherTo(fake, nil)
	const calls, bad = 16, 3
	errs := make([]error, calls)
	var first, fresh sync.WaitGroup
	over := make(chan struct{})
	for range 4 {
		fresh.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				if err := pub.Publish("topic", message.NewMessage(watermill.NewUUID(), nil)); err != nil {
					t.Errorf("a new message: %v", err)
				}
			}
		})
	}
	for i := range calls {
		first.Go(func() {
			size := 1
			if i == bad {
				size = 11
			}
			errs[i] = pub.Publish("topic", message.NewMessage(watermill.NewUUID(), make([]byte, size)))
		})
	}
	first.Wait()
	close(over)
	fresh.Wait()
	for i, err := range errs {
		if i != bad && err != nil || i == bad && !errors.Is(err, kafka.ErrRefused) {
			t.Errorf("message %d: %v", i, err)
		}
	}
	if fake.refused != 2 {
		t.Errorf("%d batches were refused, want 2: the first batch and the message alone", fake.refused)
	}
}
