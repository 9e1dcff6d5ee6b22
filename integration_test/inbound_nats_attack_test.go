package integration_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
)

// TestJetStreamHeadersOfProducers: a producer may set headers that the server uses for status replies. They are data.
func TestJetStreamHeadersOfProducers(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newJetStreamWorld(t, natsServer(t).URL())
	send := func(key string, data []byte, headers ...string) {
		msg := natsgo.NewMsg(w.topic)
		msg.Header.Set(wmnats.WatermillUUIDHdr, watermill.NewUUID())
		msg.Header.Set(outbox.MetadataKey, key)
		for i := 0; i < len(headers); i += 2 {
			msg.Header.Add(headers[i], headers[i+1])
		}
		msg.Data = data
		_, err := w.js.PublishMsg(msg)
		require.NoError(t, err)
	}
	sendMalformed(t, w.url, w.topic, "no header")
	send("k", nil, "Status", "408", "Description", "Request Timeout")
	send("k", nil, "Status", "409", "Description", "Consumer Deleted")
	send("k", []byte("pin"), "Nats-Pin-Id", "x")
	send("k", nil, "Nats-Pin-Id", "x", "Nats-Pin-Id", "y", "Status", "423")
	send("k", []byte("ack"), "outbox_headers", `{"Nats-Rollup":"all"}`, "Nats-Expected-Stream", w.stream)
	send("\u00ff", []byte("last"))
	sub, err := w.config().natsSubscriber(watermill.NopLogger{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sub.Close()) })
	messages, err := sub.Subscribe(t.Context(), w.topic)
	require.NoError(t, err)
	var got []string
	for range 7 {
		msg := within(t, "a message", messages)
		got = append(got, string(msg.Payload))
		assert.Empty(t, msg.Metadata.Get("outbox_headers"))
		msg.Ack()
	}
	assert.ElementsMatch(t, []string{"no header", "", "", "pin", "", "ack", "last"}, got)
	require.NoError(t, sub.Close())
	assert.Zero(t, w.consumer().NumAckPending)
}

// sendMalformed publishes a message whose headers no client can parse, but which the server stores.
func sendMalformed(t *testing.T, url, subject, data string) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "nats://"))
	require.NoError(t, err)
	defer conn.Close()
	header := "NATS/1.0\r\nno colon\r\n\r\n"
	_, err = fmt.Fprintf(conn, "CONNECT {\"headers\":true,\"verbose\":false}\r\nHPUB %s %d %d\r\n%s%s\r\nPING\r\n",
		subject, len(header), len(header)+len(data), header, data)
	require.NoError(t, err)
	lines := bufio.NewScanner(conn)
	for lines.Scan() && lines.Text() != "PONG" {
	}
	require.Equal(t, "PONG", lines.Text())
}

// TestJetStreamConsumerIsMoved: an operator deletes the consumer, which is recreated and reads the stream from its
// beginning, or moves it back while it is read. The inbox skips copies.
func TestJetStreamConsumerIsMoved(t *testing.T) {
	extended(t)
	t.Parallel()
	for name, move := range map[string]func(w *jetStreamWorld, consumer string) error{
		"deleted": func(w *jetStreamWorld, consumer string) error { return w.js.DeleteConsumer(w.stream, consumer) },
		"reset": func(w *jetStreamWorld, consumer string) error {
			_, err := w.newJetStream().ResetConsumer(t.Context(), w.stream, consumer)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newJetStreamWorld(t, natsServer(t).URL())
			w.send(600, 100)
			w.serve(w.config(), work)
			w.await(200)
			require.NoError(t, move(w, w.consumer().Name))
			w.await(w.settled)
			w.verify()
			w.allAcked()
		})
	}
}

// newJetStream returns the newer of the two client interfaces, which supports pinning and resets.
func (w *jetStreamWorld) newJetStream() jetstream.JetStream {
	conn, err := natsgo.Connect(w.url)
	require.NoError(w.t, err)
	w.t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	require.NoError(w.t, err)
	return js
}

// TestJetStreamStreamIsPurged: messages in handlers finish normally, and those sent afterwards are handled.
func TestJetStreamStreamIsPurged(t *testing.T) {
	extended(t)
	t.Parallel()
	for name, remake := range map[string]bool{"purged": false, "made anew": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newJetStreamWorld(t, natsServer(t).URL())
			w.send(500, 100)
			w.serve(w.config(), work)
			w.serve(w.config(), work) // a standby
			w.await(200)
			if remake {
				info, err := w.js.StreamInfo(w.stream)
				require.NoError(t, err)
				require.NoError(t, w.js.DeleteStream(w.stream))
				_, err = w.js.AddStream(&info.Config)
				require.NoError(t, err)
			} else {
				require.NoError(t, w.js.PurgeStream(w.stream))
			}
			w.h.exec(t, `create view fresh as select * from ledger where key like 'fresh-%'`)
			fresh := make([]numberedMessage, 200)
			for i := range fresh {
				fresh[i] = numberedMessage{"fresh-" + itoa(i%50), i/50 + 1}
			}
			w.put(fresh)
			w.h.reaches(t, 200, "the new messages are handled", `select count(*) from fresh`)
			assert.Zero(t, w.h.count(t, `select count(*) from (
				select seq, lag(seq) over (partition by key order by n) as before from fresh) r
				where seq <> coalesce(before, 0) + 1`), "out of order")
			assert.Zero(t, w.h.count(t, `select count(*) - count(distinct (key, seq)) from ledger`), "twice")
			w.allAcked()
		})
	}
}

// TestJetStreamForeignConfiguration: a change to the consumer that would lose messages stops reading with an error, and
// reverting it resumes reading.
func TestJetStreamForeignConfiguration(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newJetStreamWorld(t, natsServer(t).URL())
	w.send(200, 20)
	s := w.serve(w.config(), work)
	w.await(w.settled)
	w.alter(func(c *jetstream.ConsumerConfig) { c.MaxDeliver = 1 })
	log := newLogCapture(t)
	other, err := w.config().natsSubscriber(log)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	_, err = other.Subscribe(t.Context(), w.topic)
	require.NoError(t, err)
	eventually(t, func() bool { return log.count("it has MaxDeliver or BackOff") > 0 }, "an error line")
	eventually(t, func() bool { // the owner stops reading
		return w.consumer().NumWaiting == 0
	}, "nobody pulls")
	w.send(100, 20)
	w.alter(func(c *jetstream.ConsumerConfig) { c.MaxDeliver = -1 })
	require.NoError(t, other.Close())
	w.await(w.settled)
	s.close()
	w.verify()
}

// TestJetStreamTopicOfTwoStreams: a consumer reads one stream, so messages of the other would wait in silence.
func TestJetStreamTopicOfTwoStreams(t *testing.T) {
	t.Parallel()
	w := newJetStreamWorld(t, natsServer(t).URL())
	_, other, _ := natsStream(t, w.url, nil)
	log := newLogCapture(t)
	sub, err := w.config().natsSubscriber(log)
	require.NoError(t, err)
	_, err = sub.Subscribe(t.Context(), "*.*")
	require.NoError(t, err)
	eventually(t, func() bool { return log.count(other) > 0 && log.count(w.stream) > 0 }, "a line names both streams")
	require.NoError(t, sub.Close())
}

// TestJetStreamHandlerOutlivesAckWait: JetStream gets progress acks, so the message is not delivered again.
func TestJetStreamHandlerOutlivesAckWait(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newJetStreamWorld(t, natsServer(t).URL())
	w.send(40, 20)
	c := w.config()
	c.AckWait = 2 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), 3*c.AckWait)
	t.Cleanup(cancel)
	s := w.serve(c, func(*message.Message, string) error {
		<-ctx.Done() // for the first ones: three times AckWait
		return work(nil, "")
	})
	w.await(w.settled)
	assert.EqualValues(t, w.settled, s.calls.Load(), "a handler was called twice for a message")
	w.verify()
}
