package integration_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/nats"
)

// jetStreamWorld is an inboundWorld whose topic is a subject of a stream.
type jetStreamWorld struct {
	*inboundWorld
	url    string
	js     natsgo.JetStreamContext
	stream string
}

func newJetStreamWorld(t testing.TB, url string) *jetStreamWorld {
	t.Helper()
	return newJetStreamWorldIn(t, inboundHandle(t), url, nil)
}

// newJetStreamWorldIn has an AckWait that is short, as what a process that was killed had in hand comes after it.
func newJetStreamWorldIn(t testing.TB, h handle, url string, configure func(*natsgo.StreamConfig)) *jetStreamWorld {
	t.Helper()
	js, stream, prefix := natsStream(t, url, configure)
	w := newWorldOf(t, h, prefix+"orders")
	w.base.NATS, w.base.AckWait = url, 3*time.Second
	w.put = func(all []numberedMessage) {
		for _, n := range all {
			msg := natsgo.NewMsg(w.topic)
			msg.Header.Set(wmnats.WatermillUUIDHdr, watermill.NewUUID())
			msg.Header.Set(outbox.MetadataKey, n.key)
			msg.Data = []byte(n.key + " " + itoa(n.seq))
			_, err := js.PublishMsgAsync(msg, natsgo.StallWait(patience))
			require.NoError(t, err)
		}
		select {
		case <-js.PublishAsyncComplete():
		case <-time.After(patience):
			t.Fatal("JetStream does not store the messages")
		}
	}
	return &jetStreamWorld{inboundWorld: w, url: url, js: js, stream: stream}
}

// consumer is what the server says of the only consumer of the stream.
func (w *jetStreamWorld) consumer() *natsgo.ConsumerInfo {
	for info := range w.js.Consumers(w.stream) {
		return info
	}
	return nil
}

func (c inboundConfig) natsSubscriber(logger watermill.LoggerAdapter) (message.Subscriber, error) {
	cfg := nats.SubscriberConfig{
		URL: c.NATS, Options: c.natsOptions, Consumer: c.Group, AckWait: c.AckWait, MaxAhead: c.MaxAhead,
		MaxBytes: c.MaxBytes, Concurrency: c.Concurrency, CloseTimeout: c.CloseTimeout,
		Backoff: outbox.Backoff{Initial: 20 * time.Millisecond, Max: 200 * time.Millisecond},
	}
	cfg.Observers = c.observers
	if c.Unordered {
		cfg.Key = func(*natsgo.Msg) []byte { return nil }
	}
	return nats.NewSubscriber(cfg, logger)
}
