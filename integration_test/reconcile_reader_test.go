package integration_test

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	asked "github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/nats"
)

// TestATopicThatVanishedIsFound: a stream in memory is gone after a restart, with all acknowledged messages, and the
// broker has nothing left to check.
func TestATopicThatVanishedIsFound(t *testing.T) {
	extended(t)
	t.Parallel()
	server, err := services.StartNATS(t.Context(), services.Options{})
	require.NoError(t, err)
	defer server.Close()
	_, _, kept := natsStream(t, server.URL(), nil)
	_, _, memory := natsStream(t, server.URL(), func(c *natsgo.StreamConfig) { c.Storage = natsgo.MemoryStorage })
	h := newPgxHandle(t, newMigratedDatabase(t))
	runForwarder(t, h, natsPublisher(t, server.URL()), quickConfig(), nil)
	h.publish(t, kept+"orders", "", "1")
	h.publish(t, memory+"orders", "", "1", "2")
	h.reaches(t, 0, "all messages are published", "SELECT count(*) FROM outbox WHERE published_at IS NULL")
	// the recent rate no longer shows the topic
	h.exec(t, "UPDATE outbox SET published_at = published_at - interval '1 hour'")

	reader, err := nats.NewTopicReader(nats.TopicReaderConfig{URL: server.URL()}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, reader.Close()) }()
	gone := func(brokers ...asked.Checker) []string {
		var topics []string
		all, err := newAdmin(t, h).Doctor(t.Context(), brokers...)
		require.NoError(t, err)
		for _, f := range all {
			if _, after, found := strings.Cut(f.Evidence, "no broker that was checked has topic "); found {
				topic, _, _ := strings.Cut(after, ",")
				topics = append(topics, topic)
				assert.Contains(t, f.Cure, "file storage")
			}
		}
		return topics
	}
	assert.Empty(t, gone(reader))
	require.NoError(t, server.Stop())
	require.NoError(t, server.Restart(t.Context()))
	want := []string{strconv.Quote(memory + "orders")}
	eventually(t, func() bool { return slices.Equal(gone(reader), want) }, "the missing stream is found")
	assert.Empty(t, gone(reader, brokerFunc(func([]string) ([]asked.Risk, []string, error) {
		return nil, nil, nil
	})), "another broker has all of them")
	assert.Empty(t, gone(reader, brokerFunc(func([]string) ([]asked.Risk, []string, error) {
		return nil, nil, errDown
	})), "another broker may have the stream")
	assert.Empty(t, gone(), "no broker was checked")
}

// TestAReplicaThatIsBehindIsNoEnd: a consumer reports that no message is pending as far as its replica knows. If
// reading ended there, all later messages would count as lost and be sent again.
func TestAReplicaThatIsBehindIsNoEnd(t *testing.T) {
	extended(t)
	t.Parallel()
	url := natsServer(t).URL()
	js, stream, prefix := natsStream(t, url, nil)
	pub := natsPublisher(t, url)
	var sent []string
	for range 5 {
		msg := newMessage("")
		require.NoError(t, pub.Publish(prefix+"orders", msg))
		sent = append(sent, msg.UUID)
	}
	_, err := js.Publish(prefix+"others", nil)
	require.NoError(t, err)
	each := func(hidden string, fn func()) (read []string) {
		replica := startProxy(t, url, passOn, func(client, server net.Conn, _ <-chan struct{}) {
			nonePending(client, server, hidden)
		})
		reader, err := nats.NewTopicReader(nats.TopicReaderConfig{URL: replica}, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, reader.Close()) }()
		require.NoError(t, reader.Each(t.Context(), prefix+"orders", time.Now().Add(-time.Hour), func(uuid string) error {
			if read = append(read, uuid); len(read) == 4 {
				fn()
			}
			return nil
		}))
		return read
	}
	assert.Equal(t, sent, each("", func() {}))
	assert.Equal(t, sent[:4], each("5", func() {
		require.NoError(t, js.DeleteMsg(stream, 5))
	}), "the last message at the start was deleted, as the leader reports")
}

// nonePending copies the server's output, but each message is reported as the consumer's last one, and the one with the
// hidden sequence is left out. It changes the last part of the ack subjects,
// $JS.ACK.stream.consumer.delivered.sequence.sequence.time.pending.
func nonePending(client io.Writer, from io.Reader, hidden string) {
	in := bufio.NewReaderSize(from, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		words, payload, to := bytes.Fields(line), 0, client
		if len(words) > 3 && (bytes.Equal(words[0], []byte("HMSG")) || bytes.Equal(words[0], []byte("MSG"))) {
			if payload, err = strconv.Atoi(string(words[len(words)-1])); err != nil {
				return
			}
			payload += len("\r\n")
			if reply := words[3]; bytes.HasPrefix(reply, []byte("$JS.ACK.")) {
				parts := strings.Split(string(reply), ".")
				if parts[len(parts)-4] == hidden {
					to = io.Discard
				}
				parts[len(parts)-1] = "0"
				words[3] = []byte(strings.Join(parts, "."))
				line = append(bytes.Join(words, []byte(" ")), "\r\n"...)
			}
		}
		if _, err := to.Write(line); err != nil {
			return
		}
		if _, err := io.CopyN(to, in, int64(payload)); err != nil {
			return
		}
	}
}
