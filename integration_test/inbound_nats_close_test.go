package integration_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/nats"
	"github.com/millrace-go/watermill-outbox/observe"
)

// hangsAt is user code that hangs when it sees a message, as all of the subscriber's hooks.
type hangsAt struct {
	nats.SubscriberConfig
	entered func()
	until   chan struct{}
}

func (h hangsAt) hang() {
	h.entered()
	<-h.until
}

func (h hangsAt) PartitionState(_ context.Context, s observe.PartitionState) {
	if s.Owned {
		h.hang()
	}
}

type unmarshalNATS func(*natsgo.Msg) (*message.Message, error)

func (f unmarshalNATS) Unmarshal(msg *natsgo.Msg) (*message.Message, error) { return f(msg) }

// TestJetStreamCloseWaitsForNoUserCode: whatever of the user's hangs, Close returns, closes the channel, and the server
// has what was acked before. What then goes on reaches no handler.
func TestJetStreamCloseWaitsForNoUserCode(t *testing.T) {
	extended(t)
	t.Parallel()
	for what, change := range map[string]func(*nats.SubscriberConfig, hangsAt){
		"an observer": func(c *nats.SubscriberConfig, h hangsAt) { c.Observers = []observe.Observer{h} },
		"Key": func(c *nats.SubscriberConfig, h hangsAt) {
			c.Key = func(msg *natsgo.Msg) []byte {
				if string(msg.Data) == "bad" {
					h.hang()
				}
				return nil
			}
		},
		"the Unmarshaler": func(c *nats.SubscriberConfig, h hangsAt) {
			c.Unmarshaler = unmarshalNATS(func(msg *natsgo.Msg) (*message.Message, error) {
				if string(msg.Data) == "bad" {
					h.hang()
				}
				return (&wmnats.NATSMarshaler{}).Unmarshal(msg)
			})
		},
		"a handler": nil,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			js, stream, prefix := natsStream(t, natsServer(t).URL(), nil)
			entered := make(chan struct{})
			hook := hangsAt{entered: sync.OnceFunc(func() { close(entered) }), until: make(chan struct{})}
			cfg := nats.SubscriberConfig{
				URL: natsServer(t).URL(), Consumer: "hostile", CloseTimeout: 100 * time.Millisecond,
				Backoff: outbox.Backoff{Initial: time.Millisecond, Max: time.Millisecond},
			}
			if change != nil {
				change(&cfg, hook)
			}
			sub, err := nats.NewSubscriber(cfg, watermill.NopLogger{})
			require.NoError(t, err)
			messages, err := sub.Subscribe(t.Context(), prefix+"orders")
			require.NoError(t, err)
			publish := func(data string) {
				msg := natsgo.NewMsg(prefix + "orders")
				msg.Header.Set(wmnats.WatermillUUIDHdr, watermill.NewUUID())
				msg.Data = []byte(data)
				_, err := js.PublishMsg(msg)
				require.NoError(t, err)
			}
			publish("good")
			within(t, "the good message", messages).Ack()
			settled := func() bool {
				info := slices.Collect(consumersOf(js, stream))
				return len(info) == 1 && info[0].AckFloor.Stream == 1
			}
			eventually(t, settled, "the good message is acked")
			publish("bad")
			if change == nil {
				require.Equal(t, "bad", string(within(t, "the bad message", messages).Payload))
				hook.entered()
			}
			within(t, "user code is at work", entered)
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				_ = sub.Close()
			}()
			within(t, "Close returns", closed)
			close(hook.until)
			for msg := range messages { // the observer hung while the bad message was on its way
				require.Equal(t, "an observer", what)
				require.Equal(t, "bad", string(msg.Payload))
			}
			require.True(t, settled(), "JetStream does not know what was acked")
		})
	}
}

func consumersOf(js natsgo.JetStreamContext, stream string) func(func(*natsgo.ConsumerInfo) bool) {
	return func(yield func(*natsgo.ConsumerInfo) bool) {
		for info := range js.Consumers(stream) {
			if !yield(info) {
				return
			}
		}
	}
}
