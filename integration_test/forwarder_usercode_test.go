package integration_test

import (
	"context"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/observe"
)

// rudeObserver implements all observer interfaces and misbehaves in each method.
type rudeObserver struct{ behave func() }

func (o rudeObserver) PublishStart(context.Context, observe.PublishStart) context.Context {
	o.behave()
	return nil
}
func (o rudeObserver) PublishEnd(context.Context, observe.PublishEnd)     { o.behave() }
func (o rudeObserver) MessageDead(context.Context, observe.MessageDead)   { o.behave() }
func (o rudeObserver) TopicPaused(context.Context, observe.TopicPaused)   { o.behave() }
func (o rudeObserver) TopicResumed(context.Context, observe.TopicResumed) { o.behave() }
func (o rudeObserver) ReadEnd(context.Context, meter.ReadEnd)             { o.behave() }
func (o rudeObserver) SettleEnd(context.Context, meter.SettleEnd)         { o.behave() }
func (o rudeObserver) CleanEnd(context.Context, meter.CleanEnd)           { o.behave() }
func (o rudeObserver) LanesOwned(context.Context, meter.LanesOwned)       { o.behave() }

// rudeLogger is a logger that misbehaves in each method.
type rudeLogger struct{ behave func() }

func (l rudeLogger) Error(string, error, watermill.LogFields)         { l.behave() }
func (l rudeLogger) Info(string, watermill.LogFields)                 { l.behave() }
func (l rudeLogger) Debug(string, watermill.LogFields)                { l.behave() }
func (l rudeLogger) Trace(string, watermill.LogFields)                { l.behave() }
func (l rudeLogger) With(watermill.LogFields) watermill.LoggerAdapter { return l }

// rudeError is an error whose text panics.
type rudeError struct{}

func (rudeError) Error() string { panic("no text") }

// TestUserCodeThatMisbehaves: misbehaving publishers, Classify functions, observers and loggers end only their own
// call.
func TestUserCodeThatMisbehaves(t *testing.T) {
	parallel(t)
	panics, exits := func() { panic("user code") }, func() { runtime.Goexit() }
	var hangs chan struct{}
	type scene struct {
		forwarder.Config
		log      rudeLogger
		publish  func() error
		observer rudeObserver
	}
	for name, set := range map[string]func(s *scene){
		"a publisher ends its goroutine": func(s *scene) {
			s.publish = func() error { runtime.Goexit(); return nil }
		},
		"an error has no text": func(s *scene) {
			s.publish = func() error { return rudeError{} }
		},
		"Classify panics": func(s *scene) {
			s.Classify = func(error) forwarder.Verdict { panic("user code") }
		},
		"Classify ends its goroutine": func(s *scene) {
			s.Classify = func(error) forwarder.Verdict { runtime.Goexit(); return 0 }
		},
		"Classify panics about a time-out": func(s *scene) {
			s.PublishTimeout = 20 * time.Millisecond
			s.Classify = func(error) forwarder.Verdict { panic("user code") }
			s.publish = func() error { time.Sleep(200 * time.Millisecond); return errRefused } // too long
		},
		"an observer panics": func(s *scene) { s.observer.behave = panics },
		"an observer ends its goroutine": func(s *scene) {
			var n atomic.Int64
			s.observer.behave = func() {
				if n.Add(1)%3 == 0 { // otherwise nothing would ever be published
					exits()
				}
			}
		},
		"a logger panics":             func(s *scene) { s.log.behave = panics },
		"a logger ends its goroutine": func(s *scene) { s.log.behave = exits },
		"a logger hangs":              func(s *scene) { s.log.behave = func() { <-hangs } },
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasSuffix(name, "ends its goroutine") && !strings.HasPrefix(name, "a publisher") {
				extended(t)
			}
			hangs = make(chan struct{})
			s := scene{classifyingConfig(), rudeLogger{func() {}}, func() error { return errRefused }, rudeObserver{func() {}}}
			set(&s)
			h := newPgxHandle(t, newMigratedDatabase(t)).seenBy(t, s.observer)
			broker := newFakeBroker()
			var down atomic.Bool
			broker.answers(func(topic string, msg *message.Message) error {
				switch {
				case string(msg.Payload) == "rude" && broker.triedTimes("rude") == 1:
					return s.publish()
				case topic == "down" && !down.Load():
					down.Store(true)
					return errDown
				case string(msg.Payload) == "dead":
					return errMalformed
				}
				return nil
			})
			f, err := forwarder.New(h.db, broker, s.Config, s.log)
			require.NoError(t, err)
			ended := make(chan error, 1)
			go func() { ended <- f.Run(context.Background()) }()
			<-f.Running()
			h.publish(t, "orders", "K", "rude", "after")
			h.publish(t, "down", "L", "paused")
			h.publish(t, "orders", "M", "dead")
			h.publish(t, "orders", "", numbered("u", 1, 20)...)
			broker.arrives(t, append(numbered("u", 1, 20), "rude", "after", "paused")...)
			assert.Equal(t, []string{"rude", "after"}, broker.payloads("K"))
			eventually(t, func() bool {
				return h.count(t, "select count(*) from outbox where published_at is not null") >= 23
			}, "all are settled")
			close(hangs)
			require.NoError(t, f.Close())
			require.NoError(t, <-ended)
		})
	}
}

// TestAckTimeoutEndsTheContext of a message, so that its receiver stops waiting and others are delivered.
func TestAckTimeoutEndsTheContext(t *testing.T) {
	h := onPgx(t)
	cfg := quickConfig()
	cfg.PublishTimeout, cfg.Concurrency = 50*time.Millisecond, 2
	messages, err := newSubscriber(t, h, cfg).Subscribe(t.Context(), "delivered")
	require.NoError(t, err)
	h.publish(t, "delivered", "", numbered("d", 1, 4)...)
	for range 4 { // twice Concurrency: none is acked
		within(t, "the context ends", receive(t, messages).Context().Done())
	}
}

// TestSubscriberThatNeverReads releases half of its lanes, with the messages in them.
func TestSubscriberThatNeverReads(t *testing.T) {
	h := onPgx(t)
	s := newSubscriber(t, h, sharing(quickConfig()))
	_, err := s.Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	all := numbered("m", 1, 500)
	h.publish(t, "orders", "", all...)
	h.reaches(t, 64, "it has the lanes", "select count(*) from outbox_lanes where owner is not null")
	messages, err := s.Subscribe(t.Context(), "orders")
	require.NoError(t, err)
	eventually(t, func() bool {
		return assert.ObjectsAreEqual([]int{32, 32}, column[int](t, h,
			"select count(*)::int from outbox_lanes where owner is not null group by owner"))
	}, "each has half of the lanes")
	for range 100 {
		receive(t, messages).Ack()
	}
	h.reaches(t, 100, "they are settled", "select count(*) from outbox where published_at is not null")
	assert.Zero(t, h.count(t, "select count(*) from outbox where attempts > 0"))
}

// TestOwnPublisher: a forwarder that published to its own outbox would never end.
func TestOwnPublisher(t *testing.T) {
	h := onPgx(t)
	own, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	broker := newFakeBroker()
	decorate := message.MessageTransformPublisherDecorator(func(*message.Message) {})
	decorated, err := decorate(own)
	require.NoError(t, err)
	twice, err := decorate(decorated)
	require.NoError(t, err)
	for name, pub := range map[string]message.Publisher{"plain": own, "decorated": decorated, "twice": twice} {
		_, err = forwarder.New(h.db, pub, forwarder.Config{}, nil)
		require.ErrorContains(t, err, "messages would loop forever", name)
		_, err = forwarder.New(h.db, broker, forwarder.Config{Routes: map[string]message.Publisher{"a": pub}}, nil)
		require.ErrorContains(t, err, "messages would loop forever", name)
	}
	ok, err := decorate(broker)
	require.NoError(t, err)
	_, err = forwarder.New(h.db, ok, forwarder.Config{}, nil)
	require.NoError(t, err)
	_, err = forwarder.New(newPgxHandle(t, newMigratedDatabase(t)).db, own, forwarder.Config{}, nil)
	require.NoError(t, err, "from one database to another")
}
