package integration_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/cmd/outboxctl/cli"
)

// start runs a command until end is called, which returns its result.
func (c ctl) start(log *watched, args ...string) (end func() ctlResult) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan int, 1)
	var out watched
	go func() {
		done <- cli.Run(ctx, args, cli.World{Out: &out, Err: log, Environ: append([]string{"OUTBOX_DSN=" + c.url}, c.env...)})
	}()
	return func() ctlResult {
		cancel()
		return ctlResult{<-done, out.String(), log.String()}
	}
}

// TestOutboxctlForwards publishes to NATS without any Go code, until the command is told to end.
func TestOutboxctlForwards(t *testing.T) {
	h := onPgx(t)
	js, stream, prefix := natsStream(t, natsServer(t).URL(), nil)
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	publish := func(topic string, n int) {
		t.Helper()
		msgs := make([]*message.Message, n)
		for i := range msgs {
			msgs[i] = message.NewMessage(watermill.NewUUID(), []byte("x"))
		}
		require.NoError(t, pub.PublishContext(t.Context(), topic, msgs...))
	}
	withUser := strings.Replace(natsServer(t).URL(), "nats://", "nats://ann:canary@", 1)
	c := ctl{
		t: t, url: h.url, env: []string{
			"OUTBOX_NATS=" + withUser, "OUTBOX_LEASE_TTL=3s", "OUTBOX_NAME=in-a-container",
			"OUTBOX_DEAD_LETTER_TOPIC=" + prefix + "dead",
		},
	}

	const evil = "evil\u202e \x1b[2J\u009b" // not a NATS subject
	publish(evil, 1)
	publish(prefix+"orders", 100)
	end := c.start(&watched{}, "forward", "--log", "json")
	eventually(t, func() bool {
		return natsStored(t, js, stream) == 101
	}, "all messages and the dead letter are in the stream")
	eventually(t, func() bool { return h.count(t, "SELECT count(*)::int FROM outbox WHERE dead_at IS NOT NULL") == 1 },
		"the message of the evil topic is dead")
	assert.Equal(t, "in-a-container", value[string](t, h, "SELECT name FROM outbox_forwarders"))
	r := end()
	assert.Zero(t, r.code, r.err)
	assert.Empty(t, r.out)
	assert.Equal(t, 101, h.count(t, "SELECT count(*)::int FROM outbox WHERE published_at IS NOT NULL"))
	assert.Zero(t, h.count(t, "SELECT count(*)::int FROM outbox_lanes WHERE owner IS NOT NULL"),
		"lanes that were not released")
	assert.NotContains(t, r.err, "canary")
	onlyPrints(t, r.err, "the log")
	for line := range strings.Lines(r.err) {
		assert.True(t, json.Valid([]byte(line)), line)
	}

	publish(prefix+"orders", 10)
	publish(prefix+"other", 10)
	r = c.run("forward", "--drain", "--topics", prefix+"orders", "--retention", "none")
	assert.Zero(t, r.code, r.err)
	assert.Equal(t, 111, natsStored(t, js, stream))
	assert.Equal(t, []string{prefix + "other"},
		column[string](t, h, "SELECT DISTINCT topic FROM outbox WHERE published_at IS NULL AND dead_at IS NULL"))
}

// TestOutboxctlForwardsNothing runs misconfigured forwarders: nothing is lost, and no secret is logged.
func TestOutboxctlForwardsNothing(t *testing.T) {
	h := onPgx(t)
	h.exec(t, "INSERT INTO outbox (uuid, topic, payload) VALUES ('u', 'orders', '')")
	c := ctl{t: t, url: h.url, env: []string{"OUTBOX_KAFKA_PASSWORD=canary"}}
	for _, broker := range [][]string{
		{"--nats", "nats://ann:canary@127.0.0.1:1"}, {"--nats", "nats://canary@127.0.0.1:1"},
		{"--nats", "nats://ann:c/an@ary@127.0.0.1:1,nats://ann:canary@127.0.0.1:2"},
		{"--kafka", "127.0.0.1:1", "--kafka-user", "ann", "--kafka-mechanism", "SCRAM-SHA-512", "--broker-tls"},
	} {
		log := &watched{}
		end := c.start(log, append([]string{"forward"}, broker...)...)
		eventually(t, func() bool {
			return h.count(t, "SELECT count(*)::int FROM outbox_topics") == 1 || strings.Contains(log.String(), "outboxctl:")
		}, "the topic is paused: %s", log)
		r := end()
		assert.NotContains(t, r.err, "canary", broker)
		assert.NotContains(t, r.err, "an@ary", broker)
		onlyPrints(t, r.err, broker)
		h.exec(t, "DELETE FROM outbox_topics")
	}
	assert.Equal(t, 1, h.count(t, "SELECT count(*)::int FROM outbox WHERE published_at IS NULL AND attempts = 0"))
	golden(t, "forward.txt", c.script(`
		forward
		forward --kafka 127.0.0.1:1 --nats nats://127.0.0.1:1
		forward --kafka here
		forward --kafka 127.0.0.1:1 --kafka-user ann --kafka-mechanism MD5
		forward --nats nats://127.0.0.1:1 --broker-ca testdata/none.pem
		forward --nats nats://127.0.0.1:1 --log xml
		forward --nats nats://127.0.0.1:1 --retention 0d
	`))
}

// TestOutboxctlReconciles recovers acknowledged messages that a stream has lost.
func TestOutboxctlReconciles(t *testing.T) {
	h := onPgx(t)
	js, stream, prefix := natsStream(t, natsServer(t).URL(), nil)
	h.exec(t, "INSERT INTO outbox (uuid, topic, payload) SELECT gen_random_uuid(), $1, '' FROM generate_series(1, 20)",
		prefix+"orders")
	c := ctl{t: t, url: h.url, env: []string{"OUTBOX_NATS=" + natsServer(t).URL()}}
	r := c.run("forward", "--drain")
	require.Zero(t, r.code, r.err)
	require.Equal(t, 20, natsStored(t, js, stream))
	for _, n := range []uint64{3, 7, 20} {
		require.NoError(t, js.SecureDeleteMsg(stream, n))
	}

	r = c.run("reconcile", "--topic", prefix+"orders", "--dry-run")
	assert.Zero(t, r.code, r.err)
	assert.Contains(t, r.out, "Reconcile would change 3 messages")
	r = c.run("reconcile", "--topic", prefix+"orders", "--yes", "--reason", "disk lost", "-o", "json")
	assert.Zero(t, r.code, r.err)
	assert.Contains(t, r.out, `"touched": 3`)
	r = c.run("forward", "--drain")
	require.Zero(t, r.code, r.err)
	assert.Equal(t, 20, natsStored(t, js, stream))
	assert.Contains(t, c.run("reconcile", "--all", "--dry-run").out, "would change 0 messages")

	r = ctl{t: t, url: h.url}.run("reconcile", "--all", "--dry-run")
	assert.Equal(t, 2, r.code)
	assert.Contains(t, r.err, "no broker given")
	assert.NotContains(t, c.run("doctor").out+c.run("check").out, "UNKNOWN") // including the broker's findings
}
