package integration_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/components/requestreply"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/middleware"
)

// PlaceOrder is a command with a reply.
type PlaceOrder struct{ ID string }

// replying is Watermill's request-reply through the outbox: commands and replies are outbox messages, and the broker is
// in the same process.
type replying struct {
	h       handle
	bus     *cqrs.CommandBus
	backend *requestreply.PubSubBackend[string]
	calls   atomic.Int64
	command chan *message.Message // commands received
}

func newReplying(
	t *testing.T, h handle, ackErrors bool, place func(ctx context.Context, call int64, cmd *PlaceOrder) (string, error),
) *replying {
	t.Helper()
	r := &replying{h: h, command: make(chan *message.Message, 100)}
	broker := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	t.Cleanup(func() { assert.NoError(t, broker.Close()) })
	events, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	r.bus, err = cqrs.NewCommandBusWithConfig(events, cqrs.CommandBusConfig{
		GeneratePublishTopic: func(cqrs.CommandBusGeneratePublishTopicParams) (string, error) { return "commands", nil },
		Marshaler:            cqrs.JSONMarshaler{},
	})
	require.NoError(t, err)
	r.backend, err = requestreply.NewPubSubBackend[string](requestreply.PubSubBackendConfig{
		Publisher: events,
		SubscriberConstructor: func(requestreply.PubSubBackendSubscribeParams) (message.Subscriber, error) {
			return broker, nil
		},
		GeneratePublishTopic:   func(requestreply.PubSubBackendPublishParams) (string, error) { return "replies", nil },
		GenerateSubscribeTopic: func(requestreply.PubSubBackendSubscribeParams) (string, error) { return "replies", nil },
		AckCommandErrors:       ackErrors,
		// As in docs/guides/patterns.md: the reply of a failure is published although the transaction is rolled back.
		ModifyNotificationMessage: func(msg *message.Message, p requestreply.PubSubBackendOnCommandProcessedParams) error {
			if p.HandleErr == nil {
				return nil
			}
			if ackErrors {
				if err := outbox.SetRollbackOnly(msg.Context()); err != nil {
					return err
				}
			}
			msg.SetContext(outbox.OutsideTx(msg.Context()))
			return nil
		},
	}, requestreply.BackendPubsubJSONMarshaler[string]{})
	require.NoError(t, err)

	mws := stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{
		ErrorHandler: middleware.ErrorHandlerConfig{
			Backoff: outbox.Backoff{Initial: time.Millisecond, Max: time.Millisecond},
		},
	}, nil)
	startRouter(t, func(router *message.Router) {
		router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) {
				r.command <- msg
				return next(msg)
			}
		})
		router.AddMiddleware(mws...)
		processor, err := cqrs.NewCommandProcessorWithConfig(router, cqrs.CommandProcessorConfig{
			GenerateSubscribeTopic: func(cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
				return "commands", nil
			},
			SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
				return broker, nil
			},
			Marshaler: cqrs.JSONMarshaler{},
		})
		require.NoError(t, err)
		require.NoError(t, processor.AddHandlers(requestreply.NewCommandHandlerWithResult("place", r.backend,
			func(ctx context.Context, cmd *PlaceOrder) (string, error) {
				n := r.calls.Add(1)
				if err := h.execTx(ctx, "insert into effects (message_id) values ($1)", cmd.ID); err != nil {
					return "", err
				}
				return place(ctx, n, cmd)
			})))
	})
	runForwarder(t, h, broker, quickConfig(), nil)
	return r
}

func (r *replying) send(t *testing.T, id string) requestreply.Reply[string] {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	reply, err := requestreply.SendWithReply[string](ctx, r.bus, r.backend, &PlaceOrder{ID: id})
	require.NoError(t, err)
	return reply
}

// replies counts the replies written.
func (r *replying) replies(t *testing.T) int {
	t.Helper()
	return r.h.count(t, "select count(*) from outbox where topic = 'replies'")
}

// TestRequestReply: the reply of a success is written in the handler's transaction, once, even if the command is
// delivered twice. The reply of a failure is published, but nothing else is.
func TestRequestReply(t *testing.T) {
	h := onPgx(t)
	r := newReplying(t, h, false, func(ctx context.Context, call int64, cmd *PlaceOrder) (string, error) {
		return "placed " + cmd.ID, nil
	})
	assert.Equal(t, "placed 1", r.send(t, "1").HandlerResult)
	assert.Equal(t, 1, r.replies(t))
	first := within(t, "the command", r.command)
	pub := newOutboxPublisher(t, h)
	require.NoError(t, outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
		return pub.PublishContext(ctx, "commands", first.Copy())
	}))
	within(t, "the copy", r.command)
	assert.Equal(t, "placed 2", r.send(t, "2").HandlerResult)
	assert.EqualValues(t, 2, r.calls.Load(), "a copy of the command calls no handler")
	assert.Equal(t, 2, r.replies(t), "and causes no second reply")
	assert.Equal(t, 2, h.count(t, "select count(*) from effects"))
}

func TestRequestReplyOfAFailure(t *testing.T) {
	t.Parallel()
	for name, acks := range map[string]bool{"nacked": false, "AckCommandErrors": true} {
		t.Run(name, func(t *testing.T) {
			h := newPgxHandle(t, newMigratedDatabase(t))
			replied := make(chan struct{})
			r := newReplying(t, h, acks, func(ctx context.Context, call int64, cmd *PlaceOrder) (string, error) {
				if call == 1 {
					return "", errors.New("sold out")
				}
				<-replied // replies have no key, so the second might otherwise arrive first
				return "placed " + cmd.ID, nil
			})
			assert.ErrorContains(t, r.send(t, "1").Error, "sold out")
			close(replied)
			if acks {
				assert.Equal(t, "placed 2", r.send(t, "2").HandlerResult)
				assert.EqualValues(t, 2, r.calls.Load(), "acked: it is not delivered again")
			} else {
				eventually(t, func() bool { return r.calls.Load() == 2 }, "it is delivered again, after its reply")
			}
			eventually(t, func() bool { return r.replies(t) == 2 }, "a reply to each call")
			assert.Equal(t, 1, h.count(t, "select count(*) from effects"), "the failure left nothing else")
		})
	}
}
