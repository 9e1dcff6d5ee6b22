package integration_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/nats"
	"github.com/millrace-go/watermill-outbox/observe"
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
	return newJetStreamWorldOn(t, url, nil)
}

func newJetStreamWorldOn(t testing.TB, url string, configure func(*natsgo.StreamConfig)) *jetStreamWorld {
	t.Helper()
	h := pgxHandle(t, "inbound", newMigratedDatabase(t), func(cfg *pgxpool.Config) { cfg.MaxConns = 60 })
	h.exec(t, inboundLedger)
	js, stream, prefix := natsStream(t, url, configure)
	return &jetStreamWorld{
		inboundWorld: &inboundWorld{
			t: t, h: h, topic: prefix + "orders", group: "g-" + watermill.NewShortUUID(), sent: map[string]int{},
		},
		url: url, js: js, stream: stream,
	}
}

// send writes messages of random keys to the topic; each says which of its key it is.
func (w *jetStreamWorld) send(n, keys int) {
	w.t.Helper()
	for range n {
		key := "key-" + itoa(rand.IntN(keys))
		w.sent[key]++
		w.settled++
		msg := natsgo.NewMsg(w.topic)
		msg.Header.Set(wmnats.WatermillUUIDHdr, watermill.NewUUID())
		msg.Header.Set(outbox.MetadataKey, key)
		msg.Data = []byte(key + " " + itoa(w.sent[key]))
		_, err := w.js.PublishMsgAsync(msg, natsgo.StallWait(patience))
		require.NoError(w.t, err)
	}
	select {
	case <-w.js.PublishAsyncComplete():
	case <-time.After(patience):
		w.t.Fatal("JetStream does not store the messages")
	}
}

// config has an AckWait that is short, as what a process that was killed had in hand comes after it.
func (w *jetStreamWorld) config() inboundConfig {
	return inboundConfig{
		URL: w.h.url, Topic: w.topic, Group: w.group, NATS: w.url, AckWait: 3 * time.Second, CloseTimeout: patience / 2,
	}
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
	if c.observer != nil {
		cfg.Observers = []observe.Observer{c.observer}
	}
	if c.Unordered {
		cfg.Key = func(*natsgo.Msg) []byte { return nil }
	}
	return nats.NewSubscriber(cfg, logger)
}
