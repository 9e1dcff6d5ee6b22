package integration_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/middleware"
)

type placeOrder struct{ ID string }
type orderPlaced struct{ ID string }
type sendInvoice struct{ ID string }

// One event bus and one command bus for all handlers: they publish with the context of the handler, and so in its
// transaction.
func TestCQRSBusesPublishInTheHandlersTransaction(t *testing.T) {
	t.Parallel()
	forEachHandle(t, func(t *testing.T, h handle) {
		for _, swallow := range []bool{false, true} { // AckCommandHandlingErrors
			h.exec(t, "drop table if exists effects")
			h.exec(t, "truncate outbox, inbox")
			newEffects(t, h)
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
	})
}
