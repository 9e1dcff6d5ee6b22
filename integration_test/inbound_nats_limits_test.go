package integration_test

import (
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// alter changes the settings of the only consumer of the stream.
func (w *jetStreamWorld) alter(change func(*jetstream.ConsumerConfig)) {
	w.t.Helper()
	conn, err := natsgo.Connect(w.url)
	require.NoError(w.t, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	require.NoError(w.t, err)
	consumer, err := js.Consumer(w.t.Context(), w.stream, w.consumer().Name)
	require.NoError(w.t, err)
	config := consumer.CachedInfo().Config
	change(&config)
	_, err = js.UpdateConsumer(w.t.Context(), w.stream, config)
	require.NoError(w.t, err)
}

// TestJetStreamPullLimits: a consumer that lets a pull ask for little, by itself or as its server says, is read all the
// same, also if the limits come while it is read.
func TestJetStreamPullLimits(t *testing.T) {
	t.Parallel()
	w := newJetStreamWorld(t, natsServer(t).URL())
	w.send(20, 5)
	w.serve(w.config(), nil)
	w.await(w.settled)
	w.alter(func(c *jetstream.ConsumerConfig) { c.MaxRequestBatch, c.MaxRequestExpires = 3, 150*time.Millisecond })
	w.send(50, 5)
	w.await(w.settled)
	w.verify()
}

// TestJetStreamHeadersOnly: a consumer that delivers no payloads is refused in words.
func TestJetStreamHeadersOnly(t *testing.T) {
	t.Parallel()
	w := newJetStreamWorld(t, natsServer(t).URL())
	w.send(5, 5)
	service := w.serve(w.config(), nil)
	w.await(w.settled)
	service.close()
	w.alter(func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true })
	w.send(5, 5)
	log := newLogCapture(t)
	again, err := startInbound(w.h, w.config(), nil, log)
	require.NoError(t, err)
	t.Cleanup(again.close)
	require.Eventually(t, func() bool { return log.count("HeadersOnly") > 0 }, patience, 20*time.Millisecond)
	require.Zero(t, again.calls.Load(), "messages without payloads were handled")
}
