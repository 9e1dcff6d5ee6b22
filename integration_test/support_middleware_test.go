package integration_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
)

var errHandler = errors.New("the handler failed")

// createEffects creates the table that handlers write to, which newMigratedDatabase has.
const createEffects = `create table if not exists effects (message_id text not null, note text not null default '')`

// effects counts the rows that committed handlers wrote for a message.
func effects(t testing.TB, h handle, msg *message.Message) int {
	t.Helper()
	return h.count(t, `select count(*) from effects where message_id = $1`, msg.UUID)
}

func write(h handle, msg *message.Message) error {
	return h.execTx(msg.Context(), `insert into effects (message_id) values ($1)`, msg.UUID)
}

// book is a handler that writes one row and returns one message.
func book(h handle) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if err := write(h, msg); err != nil {
			return nil, err
		}
		return message.Messages{newMessage("booked " + msg.UUID)}, nil
	}
}

// bookSilently is book without the message.
func bookSilently(h handle) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) { return nil, write(h, msg) }
}

// failing is a handler that runs another one and then fails.
func failing(handler message.HandlerFunc, err error) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if _, handlerErr := handler(msg); handlerErr != nil {
			return nil, handlerErr
		}
		return nil, err
	}
}

// chain puts middlewares around a handler, the first outermost.
func chain(handler message.HandlerFunc, mws ...message.HandlerMiddleware) message.HandlerFunc {
	for i := len(mws) - 1; i >= 0; i-- {
		handler = mws[i](handler)
	}
	return handler
}

func newOutboxPublisher(t testing.TB, h handle) *outbox.Publisher {
	t.Helper()
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{}, nil)
	require.NoError(t, err)
	return pub
}

// stack is middleware.Stack for handlers that are called without a Router.
func stack(t testing.TB, h handle, cfg middleware.StackConfig) []message.HandlerMiddleware {
	t.Helper()
	if cfg.Inbox.Consumer == "" {
		cfg.Inbox.Consumer = "test"
	}
	if cfg.Outbox.Topic == "" {
		cfg.Outbox.Topic = "events"
	}
	return stackFor(t, newOutboxPublisher(t, h), cfg, nil)
}

// stackFor is middleware.Stack for a Router. Unless cfg sets a backoff, it does not wait before a nack.
func stackFor(
	t testing.TB, pub *outbox.Publisher, cfg middleware.StackConfig, logger watermill.LoggerAdapter,
) []message.HandlerMiddleware {
	t.Helper()
	if cfg.Service == "" {
		cfg.Service = "shop"
	}
	if cfg.ErrorHandler.Backoff.Initial == 0 {
		cfg.ErrorHandler.Backoff.Initial = -1
	}
	mws, err := middleware.Stack(pub, cfg, logger)
	require.NoError(t, err)
	return mws
}

// newInbox is middleware.Inbox of the consumer shop/test, unless cfg has another consumer.
func newInbox(t testing.TB, h handle, cfg middleware.InboxConfig) message.HandlerMiddleware {
	t.Helper()
	if cfg.Service == "" {
		cfg.Service = "shop"
	}
	if cfg.Consumer == "" {
		cfg.Consumer = "test"
	}
	mw, err := middleware.Inbox(h.db, cfg, nil)
	require.NoError(t, err)
	return mw
}

func capturing(t testing.TB, pub *outbox.Publisher, cfg middleware.OutboxConfig) message.HandlerMiddleware {
	t.Helper()
	mw, err := middleware.Outbox(pub, cfg, nil)
	require.NoError(t, err)
	return mw
}

// outboxed counts the rows of the outbox.
func outboxed(t testing.TB, h handle) int {
	t.Helper()
	return h.count(t, `select count(*) from outbox`)
}

// seen is an observer that records how messages were handled.
type seen struct {
	mu  sync.Mutex
	all []observe.HandleEnd
}

func (s *seen) HandleStart(ctx context.Context, _ observe.HandleStart) context.Context { return ctx }

func (s *seen) HandleEnd(_ context.Context, end observe.HandleEnd) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = append(s.all, end)
}

func (s *seen) ends() []observe.HandleEnd {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

func (s *seen) outcomes() (all []observe.Outcome) {
	for _, end := range s.ends() {
		all = append(all, end.Outcome)
	}
	return all
}

func (s *seen) last() observe.HandleEnd {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[len(s.all)-1]
}

// attempts returns the largest number of attempts within one delivery.
func (s *seen) attempts() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, end := range s.all {
		n = max(n, end.Attempts)
	}
	return n
}

// newTx is middleware.Tx.
func newTx(t testing.TB, h handle, cfg middleware.TxConfig) message.HandlerMiddleware {
	t.Helper()
	mw, err := middleware.Tx(h.db, cfg, nil)
	require.NoError(t, err)
	return mw
}

// feed is a Subscriber whose messages come from the test. Like a broker's, they live as long as the subscription.
type feed struct {
	messages chan *message.Message
	closed   sync.Once
	closing  chan struct{}
	wg       sync.WaitGroup
}

func newFeed() *feed {
	return &feed{messages: make(chan *message.Message), closing: make(chan struct{})}
}

func (f *feed) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	out := make(chan *message.Message)
	f.wg.Go(func() {
		defer close(out)
		for {
			select {
			case msg := <-f.messages:
				msg.SetContext(ctx)
				select {
				case out <- msg:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			case <-f.closing:
				return
			}
		}
	})
	return out, nil
}

func (f *feed) Close() error {
	f.closed.Do(func() { close(f.closing) })
	f.wg.Wait()
	return nil
}

// deliver sends a message and reports whether it was acked.
func (f *feed) deliver(t testing.TB, msg *message.Message) (acked bool) {
	t.Helper()
	select {
	case f.messages <- msg:
	case <-time.After(patience):
		t.Fatal("the message was not received")
	}
	return settled(t, msg)
}

// settled waits for the ack or nack of a message and reports whether it is an ack.
func settled(t testing.TB, msg *message.Message) (acked bool) {
	t.Helper()
	select {
	case <-msg.Acked():
		return true
	case <-msg.Nacked():
		return false
	case <-time.After(patience):
		t.Fatal("the message was neither acked nor nacked")
		return false
	}
}

// startRouter runs a Router until the test ends.
func startRouter(t testing.TB, configure func(r *message.Router)) *message.Router {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: patience}, watermill.NopLogger{})
	require.NoError(t, err)
	configure(router)
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	<-router.Running()
	t.Cleanup(func() {
		if err := router.Close(); err != nil {
			t.Errorf("close router: %v", err)
		}
		<-ended
	})
	return router
}

// published is a Publisher that records messages.
type published struct {
	mu   sync.Mutex
	all  []*message.Message
	fail error
}

func (p *published) Publish(_ string, msgs ...*message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail != nil {
		return p.fail
	}
	p.all = append(p.all, msgs...)
	return nil
}

func (p *published) Close() error { return nil }

func (p *published) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.all)
}
