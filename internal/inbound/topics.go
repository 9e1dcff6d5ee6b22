package inbound

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	outbox "github.com/millrace-go/watermill-outbox"
)

// Topics are the subscriptions of a Subscriber, at most one per topic. It is safe for concurrent use. Create it with
// NewTopics.
type Topics struct {
	broker, identity string

	ctx     context.Context // ends with Close
	close   context.CancelFunc
	running sync.WaitGroup

	mu     sync.Mutex // also makes Start and Close exclude each other
	topics map[string]context.Context
}

// NewTopics returns the topics of a broker, whose name is the prefix of errors. identity names the config field that
// distinguishes handlers.
func NewTopics(broker, identity string) *Topics {
	t := &Topics{broker: broker, identity: identity, topics: map[string]context.Context{}}
	t.ctx, t.close = context.WithCancel(context.Background())
	return t
}

// Start calls begin to create a subscription, whose context ends with ctx or Close, and runs the returned function. It
// returns outbox.ErrClosed after Close, and an error while the topic has another subscription.
func (t *Topics) Start(ctx context.Context, topic string, begin func(context.Context) (run func(), err error)) error {
	if topic == "" {
		return errors.New(t.broker + ": the topic is empty")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil {
		return outbox.ErrClosed
	}
	if other := t.topics[topic]; other != nil && other.Err() == nil {
		return fmt.Errorf("%s: topic %q already has a subscription: for more concurrency raise "+
			"SubscriberConfig.Concurrency; for another handler make another Subscriber with its own "+
			"%s", t.broker, topic, t.identity)
	}
	ctx, cancel := context.WithCancel(ctx)
	run, err := begin(ctx)
	if err != nil {
		cancel()
		return err
	}
	stop := context.AfterFunc(t.ctx, cancel)
	t.topics[topic] = ctx
	t.running.Go(func() {
		defer cancel()
		defer stop()
		run()
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.topics[topic] == ctx {
			delete(t.topics, topic)
		}
	})
	return nil
}

// Close ends all subscriptions and waits for them. It may be called several times.
func (t *Topics) Close() {
	t.mu.Lock()
	t.close()
	t.mu.Unlock()
	t.running.Wait()
}

// RunWithGrace runs fn, which should return soon after ctx has ended, and reports whether it returned within that time.
func RunWithGrace(ctx context.Context, within time.Duration, fn func()) bool {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		fn()
	}()
	select {
	case <-ended:
		return true
	case <-ctx.Done():
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-ended:
		return true
	case <-timer.C:
		return false
	}
}
