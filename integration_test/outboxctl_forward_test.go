package integration_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/IBM/sarama"
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

// TestOutboxctlForwards publishes to NATS without any Go code, until the command is ended.
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
	h.reaches(t, 1, "the message of the evil topic is dead",
		"SELECT count(*)::int FROM outbox WHERE dead_at IS NOT NULL")
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
	assert.NotContains(t, c.run("doctor").out+c.run("check").out, "UNKNOWN") // including findings about the broker
}

// TestOutboxctlOnKafka forwards to Kafka, truncates its log, and recovers the lost messages.
func TestOutboxctlOnKafka(t *testing.T) {
	extended(t)
	parallel(t)
	server := kafkaServer(t)
	topic := kafkaTopic(t, server, 1, nil)
	h := newPgxHandle(t, newMigratedDatabase(t))
	h.exec(t, "INSERT INTO outbox (uuid, topic, key, payload) SELECT gen_random_uuid(), $1, 'K', '' "+
		"FROM generate_series(1, 20)", topic)
	c := ctl{t: t, url: h.url}
	broker := func(args ...string) ctlResult { return c.run(append(args, "--kafka", server.Brokers()[0])...) }
	r := broker("forward", "--drain")
	require.Zero(t, r.code, r.err)
	distinct := func(uuids []string) []string { return slices.Compact(slices.Sorted(slices.Values(uuids))) }
	log := kafkaUUIDs(t, server, topic) // each message at least once
	sent := distinct(log)
	assert.ElementsMatch(t, column[string](t, h, "SELECT uuid FROM outbox"), sent)
	lost := 0
	for len(distinct(log[lost:])) > len(sent)-3 { // a message that was sent twice is lost only with its second record
		lost++
	}

	asks, err := sarama.NewClusterAdmin(server.Brokers(), sarama.NewConfig())
	require.NoError(t, err)
	defer asks.Close()
	require.NoError(t, asks.DeleteRecords(topic, map[int32]int64{0: int64(lost)}))
	assert.Contains(t, broker("reconcile", "--topic", topic, "--dry-run").out, "Reconcile would change 3 messages")
	r = broker("reconcile", "--topic", topic, "--yes", "--reason", "disk lost", "-o", "json")
	require.Zero(t, r.code, r.err)
	assert.Contains(t, r.out, `"touched": 3`)
	assert.Contains(t, r.out, `"compared": 20`)
	require.Zero(t, broker("forward", "--drain").code)
	assert.Equal(t, sent, distinct(kafkaUUIDs(t, server, topic)))
	assert.Contains(t, broker("reconcile", "--all", "--dry-run").out, "would change 0 messages")
	assert.Contains(t, broker("doctor").out, "has one replica", "findings about the broker")
	other := natsServer(t).URL()
	assert.Contains(t, c.run("doctor", "--nats", other).out, "no broker that was checked has topic")
	both := broker("check", "--nats", other).out
	assert.Contains(t, both, "has one replica")
	assert.NotContains(t, both, "no broker that was checked has topic")
}

// TestOutboxctlOnRabbitMQ forwards to the queue of a topic, and hides the password of an unreachable server.
func TestOutboxctlOnRabbitMQ(t *testing.T) {
	extended(t)
	t.Parallel()
	server := rabbitMQ(t)
	queue := amqpQueue(t, server.URL(), nil)
	h := newPgxHandle(t, newMigratedDatabase(t))
	h.exec(t, "INSERT INTO outbox (uuid, topic, key, payload) SELECT gen_random_uuid(), $1, 'K', '' "+
		"FROM generate_series(1, 20)", queue)
	c := ctl{t: t, url: h.url, env: []string{"OUTBOX_AMQP=" + server.URL()}}
	r := c.run("forward", "--drain")
	require.Zero(t, r.code, r.err)
	var sent []string
	for _, msg := range amqpStored(t, server.URL(), queue) {
		sent = append(sent, msg.UUID)
	}
	assert.Equal(t, column[string](t, h, "SELECT uuid FROM outbox ORDER BY id"), slices.Compact(sent))

	assert.Equal(t, 2, c.run("forward", "--drain", "--amqp", server.URL(), "--nats", "nats://localhost:1").code,
		"two brokers")
	h.exec(t, "INSERT INTO outbox (uuid, topic, payload) VALUES ('u', $1, '')", queue)
	c.env = []string{"OUTBOX_AMQP=amqp://ann:canary@127.0.0.1:1/"}
	var log watched
	end := c.start(&log, "forward")
	eventually(t, func() bool { return strings.Contains(log.String(), "not connected to RabbitMQ") }, "the log shows why")
	assert.NotContains(t, end().err, "canary")
}

// TestOutboxctlImportsTables moves the unsent messages of a home-made relay.
func TestOutboxctlImportsTables(t *testing.T) {
	h := onPgx(t)
	h.exec(t, "CREATE TABLE events (id bigserial, type text, customer text, body jsonb, sent_at timestamptz)")
	h.exec(t, `INSERT INTO events (type, customer, body, sent_at) SELECT 'orders', 'c' || i, '{"n": 1}', CASE `+
		`WHEN i = 1 THEN now() END FROM generate_series(1, 4) i`)
	c := ctl{t: t, url: h.url}
	does := []string{
		"import", "table", "events", "--pending", "sent_at IS NULL", "--done", "sent_at = now()", "--topic", "type", "--key",
		"customer", "--payload", "body",
	}
	r := c.run(append(does, "--dry-run")...)
	require.Zero(t, r.code, r.err)
	assert.Contains(t, r.out, "Import would move 3 messages (orders 3)")
	assert.Empty(t, r.err)
	r = c.run("import", "table", "events", "--pending", "sent_at IS NULL", "--done", "sent_at = now()", "--topic", "type",
		"--payload", "body", "--dry-run")
	assert.Contains(t, r.err, "no ordering key, so their order is not kept: 3 messages: see --key")
	assert.Equal(t, 2, c.run(does...).code, "no terminal for the confirmation")
	r = c.run(does[:len(does)-2]...)
	assert.Equal(t, 2, r.code)
	assert.Contains(t, r.err, "--payload is missing")
	r = c.run("import", "table", "evnts", "--pending", "true", "--done", "DELETE", "--topic", "type", "--payload", "body")
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.err, "from table evnts: TABLE: there is no table evnts")
	mistyped := c.run("import", "table", "events", "--id", "nr", "--pending", "true", "--done", "DELETE", "--topic",
		"type", "--payload", "body")
	assert.Contains(t, mistyped.err, `from table events: --id: the table has no column "nr"`)
	mistyped = c.run("import", "table", "events", "--pending", "true", "--done", "DELETE", "--topic", "type", "--payload",
		"boddy", "--batch", "1")
	assert.Contains(t, mistyped.err, `from table events: --payload: `)
	assert.Contains(t, c.run("import", "table", "events", "--pending", "true", "--done", "DELETE", "--topic", "''",
		"--payload", "body", "--id", "customer").err, "row with customer c1")
	assert.Contains(t, c.run("import", "watermill-sql", "--batch", "-1").err, "--batch is -1")
	assert.Zero(t, h.count(t, "SELECT count(*) FROM outbox"))
	r = c.run(append(does, "--yes")...)
	require.Zero(t, r.code, r.err)
	assert.Contains(t, r.out, "Moved 3 messages")
	assert.Equal(t, []string{"c2", "c3", "c4"},
		column[string](t, h, `SELECT key FROM outbox WHERE topic = 'orders' AND convert_from(payload, 'UTF8') = '{"n": 1}' `+
			`ORDER BY id`))
	assert.Zero(t, h.count(t, "SELECT count(*) FROM events WHERE sent_at IS NULL"))

	h.exec(t, "CREATE TABLE my_outbox (id bigserial, event_id uuid, topic text, aggregate_id text, body jsonb, "+
		"headers jsonb, run_at timestamptz, sent_at timestamptz)")
	h.exec(t,
		"INSERT INTO my_outbox (event_id, topic, aggregate_id, body) VALUES (gen_random_uuid(), 'orders', 'a', '{}')")
	s := stranger{t: t, h: h}
	s.does(movingPage(t)["From an outbox table of your own"]...)
	assert.Equal(t, "Import would move 1 message (orders 1).\n", s.said)
}
