package integration_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
)

func TestOutboxCapturesWhatTheHandlerReturns(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		tx := newTx(t, h, middleware.TxConfig{})
		out := capturing(t, newOutboxPublisher(t, h), middleware.OutboxConfig{Topic: "events"})

		msg := newMessage("")
		produced, err := chain(book(h), tx, out)(msg) // Tx and Outbox, no Inbox
		require.NoError(t, err)
		assert.Empty(t, produced)
		assert.Equal(t, 1, h.count(t, `select count(*) from outbox where topic = 'events' and payload = $1::bytea`,
			[]byte("booked "+msg.UUID)))
		assert.Equal(t, msg.UUID, value[string](t, h, "select metadata->>'correlation_id' from outbox"))
		assert.Equal(t, msg.UUID, value[string](t, h, "select metadata->>'causation_id' from outbox"))

		_, err = chain(failing(book(h), errHandler), tx, out)(newMessage(""))
		require.ErrorIs(t, err, errHandler)
		assert.Equal(t, 1, outboxed(t, h))

		h.exec(t, "delete from outbox")
		msg = newMessage("")
		msg.Metadata.Set(wmiddleware.CorrelationIDMetadataKey, "conversation")
		_, err = chain(book(h), tx, out)(msg)
		require.NoError(t, err)
		assert.Equal(t, "conversation", value[string](t, h, "select metadata->>'correlation_id' from outbox"))
	})
}

func TestOutboxNeedsWhatIsAroundIt(t *testing.T) {
	h := onPgx(t)
	tx := newTx(t, h, middleware.TxConfig{})
	pub := newOutboxPublisher(t, h)
	msg := newMessage("")
	_, err := chain(book(h), tx, capturing(t, pub, middleware.OutboxConfig{}))(msg)
	require.ErrorContains(t, err, "topic")
	assert.Zero(t, effects(t, h, msg))

	_, err = chain(func(msg *message.Message) ([]*message.Message, error) {
		bad := newMessage("")
		bad.Metadata.Set("x", "\x00")
		return message.Messages{newMessage(""), bad}, write(h, msg)
	}, tx, capturing(t, pub, middleware.OutboxConfig{Topic: "events"}))(msg)
	require.ErrorIs(t, err, outbox.ErrInvalidMessage)
	_, err = chain(func(msg *message.Message) ([]*message.Message, error) {
		return message.Messages{nil}, write(h, msg)
	}, tx, capturing(t, pub, middleware.OutboxConfig{Topic: "events"}))(msg)
	require.ErrorIs(t, err, outbox.ErrInvalidMessage)
	assert.Zero(t, effects(t, h, msg)+outboxed(t, h))
}

// The whole stack in a Router, with the handler names and topics that the Router sets.
func TestStackInARouter(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		obs := &seen{}
		orders, legacy := newFeed(), newFeed()
		broker := &published{}
		startRouter(t, func(r *message.Router) {
			r.AddMiddleware(stackFor(t, newOutboxPublisher(t, h.seenBy(t, obs)), middleware.StackConfig{
				Except: []string{"legacy"},
			}, nil)...)
			r.AddHandler("book-order", "orders", orders, "bookings", broker, book(h))
			r.AddHandler("legacy", "orders", legacy, "bookings", broker, func(msg *message.Message) ([]*message.Message, error) {
				assert.ErrorIs(t, write(h, msg), outbox.ErrNoTx)
				return message.Messages{newMessage("")}, nil
			})
		})
		msg := newMessage("")
		for range 2 {
			assert.True(t, orders.deliver(t, msg.Copy()))
		}
		assert.Equal(t, 1, effects(t, h, msg))
		assert.Equal(t, []string{"bookings"}, column[string](t, h, "select topic from outbox"))
		assert.Equal(t, []string{"shop/book-order"},
			column[string](t, h, "select consumer from inbox where message_id = $1", msg.UUID))
		assert.Zero(t, broker.count())
		require.Equal(t, []observe.Outcome{observe.Processed, observe.Duplicate}, obs.outcomes())
		first := obs.all[0]
		assert.Equal(t, "book-order orders "+msg.UUID+" "+h.db.Name(), first.Handler+" "+first.Topic+" "+
			first.UUID+" "+first.DB)
		assert.Positive(t, first.Duration)

		assert.True(t, legacy.deliver(t, newMessage("")))
		assert.Equal(t, 1, broker.count())
		assert.Equal(t, 1, outboxed(t, h))
	})
}

// delivered marks messages as a Subscriber of the outbox does.
func delivered(next message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := core.WithDelivery(msg.Context(), msg, core.Delivery{ID: 7, Topic: "events"})
		msg.SetContext(core.WithOwnBackoff(ctx, msg, func(time.Duration, error) {}))
		return next(msg)
	}
}

func TestMessagesFromOurOutbox(t *testing.T) {
	h := onPgx(t)
	local, process, looping := newFeed(), newFeed(), newFeed()
	broker := &published{}
	pub := newOutboxPublisher(t, h)
	passOn := func(msg *message.Message) ([]*message.Message, error) {
		d, ok := core.DeliveryFrom(msg.Context())
		assert.True(t, ok)
		assert.EqualValues(t, 7, d.ID)
		return message.Messages{msg}, nil
	}
	startRouter(t, func(r *message.Router) {
		r.AddMiddleware(delivered)
		r.AddMiddleware(stackFor(t, pub, middleware.StackConfig{}, nil)...)
		r.AddConsumerHandler("local", "events", local, func(msg *message.Message) error { return write(h, msg) })
		r.AddHandler("process", "events", process, "more", broker, book(h))
		r.AddHandler("looping", "events", looping, "events", broker, passOn)
	})

	msg := newMessage("")
	for range 2 {
		assert.True(t, local.deliver(t, msg.Copy()))
	}
	assert.Equal(t, 1, effects(t, h, msg), "a handler that returns no messages is guarded too")

	msg = newMessage("")
	for range 2 {
		assert.True(t, process.deliver(t, msg.Copy()))
	}
	assert.Equal(t, 1, effects(t, h, msg))
	assert.False(t, looping.deliver(t, newMessage("")), "a wiring mistake is nacked without a charge")
	assert.Zero(t, h.count(t, "select count(*) from inbox where processed_at is null"), "it would return forever")
	assert.Equal(t, []string{"more"}, column[string](t, h, "select topic from outbox"))
	assert.Zero(t, broker.count())
}

// Handlers that run in parallel do not mix up their transactions.
func TestStackUnderConcurrency(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		mws := stack(t, h, middleware.StackConfig{})
		var messages []*message.Message
		for range 15 {
			messages = append(messages, newMessage(""))
		}
		var wg sync.WaitGroup
		for worker := range 8 {
			wg.Go(func() {
				for i, msg := range messages {
					handler := book(h)
					if (i+worker)%3 == 0 {
						handler = failing(handler, errHandler)
					}
					if _, err := chain(handler, mws...)(msg.Copy()); err != nil {
						assert.ErrorIs(t, err, errHandler)
					}
				}
			})
		}
		wg.Wait()
		assert.Equal(t, 15, h.count(t, "select count(*) from effects"))
		assert.Equal(t, 15, h.count(t, "select count(distinct message_id) from effects"))
		assert.Equal(t, 15, outboxed(t, h))
		assert.Equal(t, 15, h.count(t, "select count(distinct metadata->>'causation_id') from outbox"))
	})
}

type placeOrder struct{ ID string }
type orderPlaced struct{ ID string }
type sendInvoice struct{ ID string }

// One event bus and one command bus for all handlers: they publish with the context of the handler, and so in its
// transaction.
func TestCQRSBusesPublishInTheHandlersTransaction(t *testing.T) {
	h := onPgx(t)
	for _, swallow := range []bool{false, true} { // AckCommandHandlingErrors
		h.exec(t, "truncate outbox, inbox, effects")
		pub := newOutboxPublisher(t, h)
		marshaler := cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
		events, err := cqrs.NewEventBusWithConfig(pub, cqrs.EventBusConfig{
			GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) {
				return "events." + p.EventName, nil
			},
			Marshaler: marshaler,
		})
		require.NoError(t, err)
		commands, err := cqrs.NewCommandBusWithConfig(pub, cqrs.CommandBusConfig{
			GeneratePublishTopic: func(p cqrs.CommandBusGeneratePublishTopicParams) (string, error) {
				return "commands." + p.CommandName, nil
			},
			Marshaler: marshaler,
		})
		require.NoError(t, err)

		f := newFeed()
		startRouter(t, func(r *message.Router) {
			r.AddMiddleware(stackFor(t, pub, middleware.StackConfig{}, nil)...)
			processor, err := cqrs.NewCommandProcessorWithConfig(r, cqrs.CommandProcessorConfig{
				GenerateSubscribeTopic: func(cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
					return "commands", nil
				},
				SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
					return f, nil
				},
				Marshaler:                marshaler,
				AckCommandHandlingErrors: swallow,
			})
			require.NoError(t, err)
			require.NoError(t,
				processor.AddHandlers(cqrs.NewCommandHandler("place-order", func(ctx context.Context, cmd *placeOrder) error {
					if err := h.execTx(ctx, "insert into effects (message_id) values ($1)", cmd.ID); err != nil {
						return err
					}
					if err := events.Publish(ctx, orderPlaced{cmd.ID}); err != nil {
						return err
					}
					if err := commands.Send(ctx, sendInvoice{cmd.ID}); err != nil {
						return err
					}
					if cmd.ID == "bad" {
						if swallow {
							if err := outbox.SetRollbackOnly(ctx); err != nil {
								return err
							}
						}
						return errHandler
					}
					return nil
				})))
		})

		command := func(id string) *message.Message {
			msg, err := marshaler.Marshal(placeOrder{id})
			require.NoError(t, err)
			return msg
		}
		good := command("good")
		for range 2 {
			assert.True(t, f.deliver(t, good.Copy()))
		}
		assert.Equal(t, swallow, f.deliver(t, command("bad")))
		assert.Equal(t, []string{"good"}, column[string](t, h, "select message_id from effects"))
		assert.Equal(t, []string{"commands.sendInvoice", "events.orderPlaced"},
			column[string](t, h, "select topic from outbox order by topic"))
	}
}
