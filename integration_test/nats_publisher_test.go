package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/nats"
)

var startNATS = shared(func(ctx context.Context) (*services.NATS, error) {
	return services.StartNATS(ctx, services.Options{})
})

// natsServer returns the server that all tests of the run share. Do not stop it.
func natsServer(t testing.TB) *services.NATS {
	t.Helper()
	server, err := startNATS()
	require.NoError(t, err)
	return server
}

// natsStream creates a stream for one test, with all subjects that begin with the returned prefix.
func natsStream(
	t testing.TB, url string, configure func(*natsgo.StreamConfig),
) (js natsgo.JetStreamContext, stream, prefix string) {
	t.Helper()
	conn, err := natsgo.Connect(url, natsgo.Timeout(patience), natsgo.MaxReconnects(-1),
		natsgo.ReconnectWait(50*time.Millisecond))
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	js, err = conn.JetStream(natsgo.MaxWait(patience))
	require.NoError(t, err)
	stream = "s-" + watermill.NewShortUUID()
	cfg := &natsgo.StreamConfig{
		Name: stream, Subjects: []string{stream + ".>"}, Storage: natsgo.FileStorage, Duplicates: 10 * time.Minute,
	}
	if configure != nil {
		configure(cfg)
	}
	_, err = js.AddStream(cfg)
	require.NoError(t, err)
	return js, stream, stream + "."
}

const natsAckTimeout = 5 * time.Second

func natsPublisher(t testing.TB, url string) *nats.Publisher {
	t.Helper()
	pub, err := nats.NewPublisher(nats.PublisherConfig{URL: url, AckTimeout: natsAckTimeout}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pub.Close()) })
	return pub
}

func natsStored(t testing.TB, js natsgo.JetStreamContext, stream string) int {
	t.Helper()
	info, err := js.StreamInfo(stream)
	require.NoError(t, err)
	return int(info.State.Msgs)
}

func TestNATSDeduplication(t *testing.T) {
	t.Parallel()
	url := natsServer(t).URL()
	js, stream, prefix := natsStream(t, url, nil)
	pub := natsPublisher(t, url)
	a, b := prefix+"a", prefix+"b"
	publish := func(what, topic string, msg *message.Message, wantStored int) {
		t.Helper()
		require.NoError(t, pub.Publish(topic, msg))
		require.Equal(t, wantStored, natsStored(t, js, stream), what)
	}

	msg := newMessage("hello")
	publish("first", a, msg, 1)
	publish("the same again", a, msg, 1)
	publish("the same UUID on another subject of the stream", b, msg, 2)
	msg.Metadata.Set(outbox.MetadataGeneration, "1")
	publish("requeued", a, msg, 3)
	publish("requeued, the same again", a, msg, 3)
	msg.Metadata.Set(outbox.MetadataGeneration, "2")
	publish("requeued once more", a, msg, 4)

	own, other := newMessage("own"), newMessage("own")
	nats.SetHeader(own, natsgo.MsgIdHdr, "mine")
	nats.SetHeader(other, natsgo.MsgIdHdr, "mine")
	publish("with the user's id", a, own, 5)
	publish("another UUID under the user's id", b, other, 5)
}

func TestNATSIsReadByWatermillNATS(t *testing.T) {
	t.Parallel()
	url := natsServer(t).URL()
	_, _, prefix := natsStream(t, url, nil)
	pub := natsPublisher(t, url)
	sub, err := wmnats.NewSubscriber(wmnats.SubscriberConfig{URL: url, Unmarshaler: &wmnats.NATSMarshaler{}}, nil)
	require.NoError(t, err)
	defer sub.Close()
	in, err := sub.Subscribe(t.Context(), prefix+"a")
	require.NoError(t, err)

	msg := newMessage("\x00\xff")
	msg.Metadata.Set("tenant", "größe")
	outbox.SetKey(msg, "order/1")
	require.NoError(t, pub.Publish(prefix+"a", msg))
	got := take(t, in, 1)[0]
	require.True(t, got.Equals(msg), "got %s %v %q, want %s %v %q", got.UUID, got.Metadata, got.Payload, msg.UUID,
		msg.Metadata, msg.Payload)
}

func TestNATSVerdicts(t *testing.T) {
	t.Parallel()
	url := natsServer(t).URL()
	_, _, small := natsStream(t, url, func(c *natsgo.StreamConfig) { c.MaxMsgSize = 1000 })
	_, _, full := natsStream(t, url, func(c *natsgo.StreamConfig) { c.MaxMsgs, c.Discard = 1, natsgo.DiscardNew })
	own, err := wmnats.NewPublisher(wmnats.PublisherConfig{URL: url}, nil)
	require.NoError(t, err)
	defer own.Close()

	publishers := map[string]message.Publisher{"ours": natsPublisher(t, url), "watermill-nats's default": own}
	require.NoError(t, own.Publish(full+"a", newMessage("fills the stream")))
	for name, pub := range publishers {
		for _, tt := range []struct {
			what  string
			topic string
			msg   *message.Message
			want  forwarder.Verdict
		}{
			{"over the server's limit", small + "a", newMessage(string(make([]byte, 2<<20))), permanent},
			{"over the stream's limit", small + "a", newMessage(string(make([]byte, 2000))), permanent},
			{"a bad subject", small + "a b", newMessage(""), permanent},
			{"a header that none can be", small + "a", withHeader(newMessage(""), "a key", "x"), permanent},
			{"a full stream", full + "a", newMessage(""), unavailable},
			{"no stream", "nobody." + watermill.NewShortUUID(), newMessage(""), unavailable},
			{"a failed expectation", small + "a", withHeader(newMessage(""), natsgo.ExpectedLastSeqHdr, "99"), retry},
		} {
			err := pub.Publish(tt.topic, tt.msg)
			require.Error(t, err, "%s: %s", name, tt.what)
			require.Equal(t, tt.want, nats.Classify(err), "%s: %s: %v", name, tt.what, err)
		}
	}
	err = publishers["ours"].Publish(small+"a", withHeader(newMessage(""), natsgo.ExpectedStreamHdr, "OTHER"))
	require.Equal(t, retry, verdictOf(err), "a message that expects another stream: %v", err)
}

// withHeader requests a header from any publisher.
func withHeader(msg *message.Message, name, value string) *message.Message {
	msg.Metadata.Set(name, value)
	nats.SetHeader(msg, name, value)
	return msg
}

func TestNATSOutage(t *testing.T) {
	t.Parallel()
	server, err := services.StartNATS(t.Context(), services.Options{})
	require.NoError(t, err)
	defer server.Close()
	js, stream, prefix := natsStream(t, server.URL(), nil)
	pub := natsPublisher(t, server.URL())

	l := startLoad(t, pub, prefix+"a", 64, "x")
	l.wait("a first message", func(l *load) bool { return len(l.acked) > 100 })
	require.NoError(t, server.Stop())
	l.wait("unavailable", func(l *load) bool { return l.verdicts[unavailable] > 0 })

	// The first calls wait for acknowledgements that never arrive; later ones need not wait.
	eventually(t, func() bool {
		start := time.Now()
		err := pub.Publish(prefix+"b", newMessage(""))
		return nats.Classify(err) == unavailable && time.Since(start) < natsAckTimeout/2
	}, "a call fails immediately while disconnected")

	require.NoError(t, server.Restart(t.Context()))
	before := l.count()
	l.wait("recovery", func(l *load) bool { return len(l.acked) > before+100 })
	l.stop()

	require.Zero(t, l.verdicts[permanent]+l.verdicts[unknown], "an outage must not blame the message: %v", l.errs)
	// Messages that were sent again although they were stored the first time count once. At most one message of each
	// goroutine is stored without an acknowledgement.
	stored := natsStored(t, js, stream)
	require.GreaterOrEqual(t, stored, len(l.acked))
	require.LessOrEqual(t, stored, len(l.acked)+64)
}

// TestNATSLeavesASilentServer: one of two servers, the one that the publisher is connected to, accepts messages and
// does not reply. Pings would detect that after a minute, or never if it replies to them.
func TestNATSLeavesASilentServer(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	url := natsServer(t).URL()
	_, _, prefix := natsStream(t, url, nil)
	proxy := newProxy(t, url)
	pub, err := nats.NewPublisher(nats.PublisherConfig{
		URL: proxy.url + "," + url, AckTimeout: time.Second, Options: []natsgo.Option{natsgo.DontRandomize()},
	}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, pub.Close()) }()
	require.NoError(t, pub.Publish(prefix+"orders", newMessage("")))
	proxy.freeze()
	defer proxy.thaw()
	require.Equal(t, unavailable, verdictOf(pub.Publish(prefix+"orders", newMessage(""))))
	eventually(t, func() bool { return pub.Publish(prefix+"orders", newMessage("")) == nil }, "it finds the other server")
}
