package integration_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/kafka"
	"github.com/millrace-go/watermill-outbox/middleware"
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
			{"an impossible header", small + "a", withHeader(newMessage(""), "a key", "x"), permanent},
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
	// Messages that were sent again although they were stored the first time count once. At most one message per goroutine
	// is stored without an acknowledgement.
	stored := natsStored(t, js, stream)
	require.GreaterOrEqual(t, stored, len(l.acked))
	require.LessOrEqual(t, stored, len(l.acked)+64)
}

// TestNATSLeavesASilentServer: the publisher is connected to one of two servers, which accepts messages and does not
// reply. Pings would detect that after a minute, or never if it replies to them.
func TestNATSLeavesASilentServer(t *testing.T) {
	extended(t)
	parallel(t)
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

// commands is metadata that JetStream would obey as headers: each would lose this message or others, or make JetStream
// refuse it.
var commands = message.Metadata{
	"Nats-Msg-Id": "same", "Nats-Rollup": "all", "Nats-Expected-Stream": "OTHER", "Nats-Expected-Last-Sequence": "99",
	"Nats-TTL": "never", "Nats-Expected-Last-Msg-Id": "x",
}

// oddKeys is metadata whose keys cannot be NATS header names.
var oddKeys = message.Metadata{
	"customer name": "1", "größe": "2", "a:b": "3", "": "4", "%a": "5", "%%25a": "6", "_watermill_message_uuid": "another",
	"tab\t": "7", "nats-rollup": "8", "100%": "9", "a/b": "10", "[0]": "11",
}

// obedient makes a stream obey headers.
func obedient(c *natsgo.StreamConfig) { c.AllowRollup, c.AllowMsgTTL = true, true }

// received returns the first n messages of a topic as a consumer that decodes metadata reads them.
func received(t *testing.T, url, topic string, n int) []*message.Message {
	t.Helper()
	sub, err := wmnats.NewSubscriber(wmnats.SubscriberConfig{URL: url, Unmarshaler: nats.Unmarshaler{}}, nil)
	require.NoError(t, err)
	defer sub.Close()
	in, err := sub.Subscribe(t.Context(), topic)
	require.NoError(t, err)
	return take(t, in, n)
}

// TestMetadataCommandNoBroker: metadata that looks like a command is stored unchanged, and so are keys that cannot be
// header names.
func TestMetadataCommandNoBroker(t *testing.T) {
	t.Parallel()
	var sent []*message.Message
	all := func(more message.Metadata) (all []message.Metadata) {
		for key, value := range more {
			all = append(all, message.Metadata{key: value, "a": "b"})
		}
		return append(all, more)
	}
	for _, metadata := range append(append(all(oddKeys), all(commands)...), message.Metadata{"Status": "503"}, commands) {
		msg := newMessage("")
		msg.Metadata = metadata
		sent = append(sent, msg)
	}
	arrived := func(t *testing.T, got []*message.Message) {
		t.Helper()
		byUUID := map[string]message.Metadata{}
		for _, msg := range got {
			byUUID[msg.UUID] = msg.Metadata
		}
		for _, msg := range sent {
			assert.Equal(t, msg.Metadata, byUUID[msg.UUID])
		}
	}
	t.Run("JetStream", func(t *testing.T) {
		t.Parallel()
		url := natsServer(t).URL()
		js, stream, prefix := natsStream(t, url, obedient)
		pub := natsPublisher(t, url)
		for _, msg := range sent {
			require.NoError(t, pub.Publish(prefix+"a", msg), "%v", msg.Metadata)
		}
		require.Equal(t, len(sent), natsStored(t, js, stream))
		arrived(t, received(t, url, prefix+"a", len(sent)))
	})
	t.Run("Kafka", func(t *testing.T) {
		t.Parallel()
		server := kafkaServer(t)
		topic := kafkaTopic(t, server, 1, nil)
		require.NoError(t, kafkaPublisher(t, server).Publish(topic, sent...))
		arrived(t, consumeKafkaWith(t, server, topic, len(sent), kafka.Unmarshaler{}))
	})
}

// TestHeadersThatTheApplicationSets command JetStream, and leave nothing that a consumer could pass on.
func TestHeadersThatTheApplicationSets(t *testing.T) {
	t.Parallel()
	url := natsServer(t).URL()
	js, stream, prefix := natsStream(t, url, obedient)
	h := newPgxHandle(t, newMigratedDatabase(t))
	runForwarder(t, h, natsPublisher(t, url), quickConfig(), nil)
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	publish := func(what string, header, value string, want int) *message.Message {
		t.Helper()
		msg := newMessage(what)
		nats.SetHeader(msg, "Nats-TTL", "1h")
		nats.SetHeader(msg, header, value)
		require.NoError(t, pub.Publish(prefix+"a", msg))
		eventually(t, func() bool { return h.count(t, "SELECT count(*) FROM outbox WHERE published_at IS NULL") == 0 },
			"%s is published", what)
		require.Equal(t, want, natsStored(t, js, stream), what)
		return msg
	}
	publish("one", natsgo.MsgIdHdr, "mine", 1)
	again := publish("another message with the same id", natsgo.MsgIdHdr, "mine", 1)

	r, err := newAdmin(t, h).Replay(t.Context(), admin.Action{
		Filter: admin.Filter{IDs: column[string](t, h, "SELECT id::text FROM outbox WHERE uuid = $1", again.UUID)},
		Reason: "again",
	})
	require.NoError(t, err)
	require.Equal(t, int64(1), r.Touched)
	eventually(t, func() bool {
		return natsStored(t, js, stream) == 2
	}, "a deliberate replay has a new id")

	last := publish("a rollup", "Nats-Rollup", "all", 1)
	got := received(t, url, prefix+"a", 1)[0]
	assert.Equal(t, last.UUID, got.UUID)
	assert.Equal(t, message.Metadata{"Nats-TTL": "1h", "Nats-Rollup": "all"}, got.Metadata)

	for _, bad := range []string{"", "a name", "_watermill_message_uuid"} {
		msg := newMessage("")
		nats.SetHeader(msg, bad, "x")
		require.ErrorIs(t, natsPublisher(t, url).Publish(prefix+"a", msg), outbox.ErrInvalidMessage, bad)
	}
}

// TestDeadLettersAndCopiesCommandNoBroker: a service that republishes or dead-letters the metadata of consumed messages
// obeys no outside commands, even with a publisher that does not know ours.
func TestDeadLettersAndCopiesCommandNoBroker(t *testing.T) {
	t.Parallel()
	url := natsServer(t).URL()
	plain, err := wmnats.NewPublisher(wmnats.PublisherConfig{URL: url}, nil)
	require.NoError(t, err)
	defer plain.Close()
	for name, pub := range map[string]message.Publisher{"ours": natsPublisher(t, url), "watermill-nats's": plain} {
		t.Run(name, func(t *testing.T) {
			js, stream, prefix := natsStream(t, url, obedient)
			h := newPgxHandle(t, newMigratedDatabase(t))
			copying := func(msg *message.Message) ([]*message.Message, error) {
				if name != "ours" || string(msg.Payload) == "poison" {
					return nil, outbox.Poison(errHandler)
				}
				out := newMessage("")
				out.Metadata = msg.Metadata
				return []*message.Message{out}, nil
			}
			handler := chain(copying, stack(t, h, middleware.StackConfig{
				ErrorHandler: middleware.ErrorHandlerConfig{DeadLetterTopic: prefix + "dead"},
				Outbox:       middleware.OutboxConfig{Topic: prefix + "events"},
			})...)
			forged := newMessage("")
			nats.SetHeader(forged, "Nats-Rollup", "all")
			for i := range 6 {
				msg := newMessage(strings.Repeat("poison", i%2))
				msg.Metadata.Set(core.MetadataHeaders, forged.Metadata.Get(core.MetadataHeaders))
				for key, value := range commands {
					msg.Metadata.Set(key, value)
				}
				if name == "ours" {
					for key, value := range oddKeys {
						msg.Metadata.Set(key, value)
					}
				}
				_, err := handler(msg)
				require.NoError(t, err)
			}
			runForwarder(t, h, pub, classifyingConfig(), nil)
			h.reaches(t, 0, "all are published", "SELECT count(*) FROM outbox WHERE published_at IS NULL")
			assert.Equal(t, 6, natsStored(t, js, stream))
		})
	}
}

// TestDeadLettersOfTheForwarderCommandNoBroker: SQL writes these dead letters, and filters the same commands as the
// middlewares.
func TestDeadLettersOfTheForwarderCommandNoBroker(t *testing.T) {
	h := onPgx(t)
	cfg := classifyingConfig()
	cfg.DeadLetterTopic = "dead_letters"
	deadLetters := make(chan *message.Message, 1)
	startForwarderOn(t, h, cfg, func(topic string, msg *message.Message) error {
		if topic != "dead_letters" {
			return errMalformed
		}
		deadLetters <- msg.Copy()
		return nil
	})
	bad, want := newMessage(""), message.Metadata{}
	for _, key := range []string{
		"Nats-Rollup", "nats-rollup", "NATS-TTL", "Nats-", "nats", "X-Nats-TTL", "outbox_headers", "_watermill_message_uuid",
		"CC", "BCC", "cc", "x-delay", "x-delayed",
		"a_watermill_message_uuid", "outbox_headers2", "tenant", "größe",
	} {
		bad.Metadata.Set(key, key)
		if core.Commands(key) {
			key += "_poisoned"
		}
		want.Set(key, strings.TrimSuffix(key, "_poisoned"))
	}
	require.Equal(t, "Nats-Rollup", want["Nats-Rollup_poisoned"])
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	require.NoError(t, pub.Publish("orders", bad))
	deadLetter := within(t, "the dead letter", deadLetters)
	for _, own := range []string{
		"uuid_poisoned", wmiddleware.PoisonedTopicKey, wmiddleware.ReasonForPoisonedKey, "service_poisoned",
		wmiddleware.PoisonedHandlerKey, wmiddleware.PoisonedSubscriberKey,
	} {
		delete(deadLetter.Metadata, own)
	}
	assert.Equal(t, want, deadLetter.Metadata)
}

// TestADeadLetterIsNoCopySentAgain: the generation belongs to the message. Its dead letter has none, and a message that
// was requeued and dies again gets a different dead letter.
func TestADeadLetterIsNoCopySentAgain(t *testing.T) {
	h := onPgx(t)
	errorHandler, err := middleware.ErrorHandler(h.db, middleware.ErrorHandlerConfig{Service: "shop"}, nil)
	require.NoError(t, err)
	msg := newMessage("")
	outbox.SetDueAt(msg, time.Now().Add(time.Hour))
	for _, generation := range []string{"", "1", "2"} {
		again := msg.Copy()
		if generation != "" {
			again.Metadata.Set(outbox.MetadataGeneration, generation)
		}
		for range 2 {
			_, err := chain(poison, errorHandler)(again)
			require.NoError(t, err)
		}
	}
	assert.Equal(t, 6, outboxed(t, h))
	assert.Zero(t, h.count(t, "SELECT count(*) FROM outbox WHERE metadata ? 'outbox_generation' OR due_at IS NOT NULL"),
		"this dead letter is sent for the first time")
	assert.Equal(t, 3, h.count(t, "SELECT count(DISTINCT uuid) FROM outbox"))
}
