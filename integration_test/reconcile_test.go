package integration_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"
	wmkafka "github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	asked "github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/kafka"
	"github.com/millrace-go/watermill-outbox/nats"
)

// memoryLog is a broker's log with the time of each message by its own clock.
type memoryLog struct {
	uuids []string
	times []time.Time
	reads int // calls of Each
	seen  int // messages that these calls returned
	fail  error
}

func (l *memoryLog) Each(_ context.Context, _ string, after time.Time, fn func(string) error) error {
	l.reads++
	for i, uuid := range l.uuids {
		if l.times[i].Before(after) {
			continue
		}
		l.seen++
		if err := fn(uuid); err != nil {
			return err
		}
	}
	return l.fail
}

// TestReconcileFindsWhatIsMissing compares more messages than fit into memory with a log whose clock is minutes slow.
func TestReconcileFindsWhatIsMissing(t *testing.T) {
	h := onPgx(t)
	const rows, behind = 120_000, 8 * time.Minute
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, created_at, published_at)
		SELECT 'u' || i, 'orders', 'key', '', now() - interval '2 days' + i * interval '100 ms', now() - interval '2 days' + i * interval '100 ms' FROM generate_series(1, $1::int) i`, rows)
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload, published_at, dead_at) VALUES ('discarded', `+
		`'orders', '', now(), now())`)
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload) VALUES ('pending', 'orders', '')`)
	// a copy that the broker dropped
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload, created_at, published_at) SELECT uuid, topic, payload, `+
		`created_at, published_at FROM outbox WHERE uuid = 'u7'`)
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload, published_at) VALUES ('other', 'invoices', '', now())`)
	begun := time.Now()
	log := &memoryLog{}
	lost := []string{"u5", "u6", "u100000", "u119999"}
	for i := 1; i <= rows; i++ {
		if uuid := fmt.Sprint("u", i); !slices.Contains(lost, uuid) {
			log.uuids = append(log.uuids, uuid)
			log.times = append(log.times, begun.Add(-48*time.Hour+time.Duration(i)*100*time.Millisecond-behind))
		}
	}
	a := newAdmin(t, h)
	act := admin.Action{
		Filter: admin.Filter{IDs: []string{"5", "6", "8", "100000", itoa(rows + 4)}}, Reason: "a power cut", DryRun: true,
	}
	r, err := a.Reconcile(t.Context(), log, act)
	require.NoError(t, err)
	assert.Equal(t, admin.Result{Matched: admin.Count{N: 4}, Preview: r.Preview, Compared: 5}, r)
	assert.Equal(t, 2, log.reads, "each topic is compared with its own log")
	assert.Equal(t, 0, h.count(t, "SELECT count(*) FROM outbox WHERE due_at IS NOT NULL"))

	act.Filter.IDs, act.DryRun, act.Limit = act.Filter.IDs[:4], false, 1
	r, err = a.Reconcile(t.Context(), log, act)
	require.NoError(t, err)
	assert.Equal(t, int64(1), r.Touched)
	assert.Equal(t, []string{"u5"}, column[string](t, h, "SELECT uuid FROM outbox WHERE due_at IS NOT NULL"))

	var progress []int64
	log.reads = 0
	act = admin.Action{
		Filter: admin.Filter{Topic: "orders"}, Reason: "a power cut", Progress: func(_ context.Context, r admin.Result) {
			progress = append(progress, r.Compared)
		},
	}
	r, err = a.Reconcile(t.Context(), log, act)
	require.NoError(t, err)
	assert.Equal(t, int64(3), r.Touched)
	assert.Equal(t, int64(rows), r.Compared, "with a copy, and without requeued messages")
	assert.Equal(t, 2, log.reads, "the memory is limited, so the log is read in parts")
	progress = slices.Compact(progress) // progress reports both changed and compared messages
	require.Len(t, progress, 2)
	assert.Less(t, progress[0], progress[1])
	assert.Equal(t, lost, column[string](t, h, "SELECT uuid FROM outbox WHERE due_at IS NOT NULL "+
		"AND published_at IS NULL AND attempts = 1 AND metadata->>'outbox_generation' = '1' ORDER BY id"))
	entries, _, err := a.Audit(t.Context(), admin.Page{})
	require.NoError(t, err)
	assert.Equal(t, "reconcile", entries[0].Action)
	assert.Equal(t, r, entries[0].Result, "with the number of compared messages")

	// If nothing is missing the log is not read to its end.
	log.seen = 0
	act.Filter = admin.Filter{IDs: []string{"11", "12"}}
	r, err = a.Reconcile(t.Context(), log, act)
	require.NoError(t, err)
	assert.Equal(t, int64(2), r.Compared)
	assert.Less(t, log.seen, 10_000)

	log.fail = errors.New("the broker is gone")
	log.uuids = nil
	_, err = a.Reconcile(t.Context(), log, act)
	require.ErrorIs(t, err, log.fail, "nothing is missing from a log that could not be read")
	assert.Equal(t, 4, h.count(t, "SELECT count(*) FROM outbox WHERE due_at IS NOT NULL"))
	assert.Equal(t, []int64{0, 2, int64(rows)},
		column[int64](t, h, "SELECT compared FROM outbox_audit ORDER BY id DESC LIMIT 3"))
	_, err = a.Reconcile(t.Context(), nil, act)
	require.ErrorIs(t, err, admin.ErrInvalid)
	_, err = a.Reconcile(t.Context(), log, admin.Action{})
	require.ErrorIs(t, err, admin.ErrEmptyFilter)
}

// reconciles publishes messages, loses some of them at the broker, and checks that exactly those are sent again. lose
// may publish more messages first, and returns the lost ones.
func reconciles(
	t *testing.T, topic string, pub message.Publisher, log asked.TopicReader, lose func(more func()) []string,
) {
	t.Helper()
	h := newPgxHandle(t, newMigratedDatabase(t))
	runForwarder(t, h, pub, quickConfig(), nil)
	settled := func() bool { return h.count(t, "SELECT count(*) FROM outbox WHERE published_at IS NULL") == 0 }
	h.publish(t, topic, "K", numbered("m", 1, 100)...)
	h.publish(t, topic, "", numbered("n", 1, 200)...)
	eventually(t, settled, "all messages are published")
	holds := func() (uuids []string) {
		require.NoError(t, log.Each(t.Context(), topic, time.Now().Add(-time.Hour), func(uuid string) error {
			uuids = append(uuids, uuid)
			return nil
		}))
		slices.Sort(uuids)
		return slices.Compact(uuids) // messages with a late acknowledgement exist twice
	}
	all := func() []string { return column[string](t, h, "SELECT uuid FROM outbox ORDER BY uuid COLLATE \"C\"") }
	require.Equal(t, all(), holds())

	a := newAdmin(t, h)
	act := admin.Action{Filter: admin.Filter{Topic: topic}, Reason: "a power cut", DryRun: true}
	r, err := a.Reconcile(t.Context(), log, act)
	require.NoError(t, err)
	assert.Equal(t, admin.Result{Preview: r.Preview, Compared: 300}, r)

	lost := lose(func() {
		h.publish(t, topic, "K", numbered("k", 1, 100)...)
		eventually(t, settled, "more messages are published")
	})
	require.NotEmpty(t, lost)
	require.Less(t, len(lost), 300)
	r, err = a.Reconcile(t.Context(), log, act)
	require.NoError(t, err)
	assert.Equal(t, int64(len(lost)), r.Matched.N)
	act.DryRun, act.Preview = false, r.Preview
	r, err = a.Reconcile(t.Context(), log, act)
	require.NoError(t, err)
	assert.Equal(t, int64(len(lost)), r.Touched)
	eventually(t, settled, "the lost messages are published again")
	assert.Equal(t, all(), holds())
	slices.Sort(lost)
	t.Logf("%d of %d messages were lost, found and published again", len(lost), len(all()))
	assert.Equal(t, lost, column[string](t, h, `SELECT uuid FROM outbox WHERE metadata ? 'outbox_generation' `+
		`ORDER BY uuid COLLATE "C"`))
}

// TestReconcileKnowsLimits: messages deleted by the broker's own limits are not lost. If the limits may have deleted
// messages as recent as the compared ones, the result is unknown.
func TestReconcileKnowsLimits(t *testing.T) {
	t.Parallel()
	nothing := func(string) error { return nil }
	hourAgo := time.Now().Add(-time.Hour)

	t.Run("JetStream", func(t *testing.T) {
		t.Parallel()
		url := natsServer(t).URL()
		log, err := nats.NewTopicReader(nats.TopicReaderConfig{URL: url}, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, log.Close()) }()
		for name, c := range map[string]struct {
			configure func(*natsgo.StreamConfig)
			want      string // "" = nothing deleted
		}{
			"messages": {func(c *natsgo.StreamConfig) { c.MaxMsgs = 10 }, "has max_msgs 10 and"},
			"bytes":    {func(c *natsgo.StreamConfig) { c.MaxBytes = 1000 }, "and max_bytes 1000, and begins at"},
			"a topic": {func(c *natsgo.StreamConfig) {
				c.MaxMsgsPerSubject = 10
			}, "max_msgs_per_subject 10, and of topic"},
			"not reached": {func(c *natsgo.StreamConfig) {
				c.MaxMsgs, c.MaxBytes, c.MaxMsgsPerSubject = 100, 1<<20, 100
			}, ""},
			"new ones, refused": {func(c *natsgo.StreamConfig) { c.MaxMsgs, c.Discard = 10, natsgo.DiscardNew }, ""},
		} {
			js, _, prefix := natsStream(t, url, c.configure)
			for range 15 {
				if _, err := js.Publish(prefix+"orders", make([]byte, 100)); c.want != "" {
					require.NoError(t, err)
				}
			}
			err := log.Each(t.Context(), prefix+"orders", hourAgo, nothing)
			later := log.Each(t.Context(), prefix+"orders", time.Now(), nothing)
			require.NoError(t, later, "%s: the deleted messages are older", name)
			if c.want == "" {
				require.NoError(t, err, name)
				continue
			}
			require.ErrorContains(t, err, c.want, name)
			require.ErrorContains(t, err, "Filter.After")
		}
	})

	t.Run("Kafka", func(t *testing.T) {
		t.Parallel()
		server := kafkaServer(t)
		log, err := kafka.NewTopicReader(kafka.TopicReaderConfig{Brokers: server.Brokers()}, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, log.Close()) }()
		asks, err := sarama.NewClusterAdmin(server.Brokers(), sarama.NewConfig())
		require.NoError(t, err)
		defer asks.Close()
		settings := sarama.NewConfig()
		settings.Producer.Return.Successes = true
		producer, err := sarama.NewSyncProducer(server.Brokers(), settings)
		require.NoError(t, err)
		defer producer.Close()
		bytes := "1000000"
		for name, limits := range map[string]map[string]*string{"limited": {"retention.bytes": &bytes}, "for ever": nil} {
			topic := kafkaTopic(t, server, 1, limits)
			for i := range 6 { // three of them are old
				at := hourAgo.Add(-time.Hour)
				if i >= 3 {
					at = time.Now()
				}
				_, _, err := producer.SendMessage(&sarama.ProducerMessage{
					Topic: topic, Timestamp: at, Value: sarama.StringEncoder("x"),
				})
				require.NoError(t, err)
			}
			require.NoError(t, log.Each(t.Context(), topic, hourAgo.Add(-2*time.Hour), nothing), "%s: nothing was deleted", name)
			// like the broker's retention.bytes, enforced every five minutes
			require.NoError(t, asks.DeleteRecords(topic, map[int32]int64{0: 2}))
			require.NoError(t, log.Each(t.Context(), topic, hourAgo, nothing), "%s: the deleted messages are older", name)
			err := log.Each(t.Context(), topic, hourAgo.Add(-2*time.Hour), nothing)
			if limits == nil {
				require.NoError(t, err, "it was lost")
				continue
			}
			require.ErrorContains(t, err, "has retention.bytes, and partition 0 begins with offset 2")
			require.NoError(t, asks.DeleteRecords(topic, map[int32]int64{0: 6}))
			err = log.Each(t.Context(), topic, hourAgo, nothing)
			require.ErrorContains(t, err, "everything in partition 0 up to offset 6 was deleted",
				"some deleted messages are as recent")
		}
	})
}

func TestReconcileKafka(t *testing.T) {
	extended(t)
	t.Parallel()
	server := kafkaServer(t)
	topic := kafkaTopic(t, server, 4, nil)
	log, err := kafka.NewTopicReader(kafka.TopicReaderConfig{Brokers: server.Brokers()}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, log.Close()) }()
	truncated := map[int32]int64{0: 30, 1: 20, 3: 1}
	reconciles(t, topic, kafkaPublisher(t, server), log, func(func()) (lost []string) {
		asks, err := sarama.NewClusterAdmin(server.Brokers(), sarama.NewConfig())
		require.NoError(t, err)
		defer asks.Close()
		consumer, err := sarama.NewConsumer(server.Brokers(), sarama.NewConfig())
		require.NoError(t, err)
		defer consumer.Close()
		for partition, upTo := range truncated {
			records, err := consumer.ConsumePartition(topic, partition, sarama.OffsetOldest)
			require.NoError(t, err)
			for record := range records.Messages() {
				msg, err := wmkafka.DefaultMarshaler{}.Unmarshal(record)
				require.NoError(t, err)
				if lost = append(lost, msg.UUID); record.Offset+1 == upTo {
					break
				}
			}
			require.NoError(t, records.Close())
		}
		require.NoError(t, asks.DeleteRecords(topic, truncated))
		return lost
	})

	risks, missing, err := log.Check(t.Context(), []string{topic, "nobody-has-it", "not a name"})
	require.NoError(t, err)
	require.Len(t, risks, 1)
	assert.Contains(t, risks[0].Evidence, "has one replica")
	assert.Equal(t, []string{"nobody-has-it", "not a name"}, missing)
	compact, short := "compact", "3600000"
	for _, c := range []struct {
		setting, value, want string
	}{
		{"cleanup.policy", compact, "is compacted"}, {"retention.ms", short, "deletes messages after 1h0m0s"},
	} {
		topic := kafkaTopic(t, server, 1, map[string]*string{c.setting: &c.value})
		err := log.Each(t.Context(), topic, time.Now().Add(-2*time.Hour), func(string) error { return nil })
		require.ErrorContains(t, err, c.want)
	}
	require.ErrorIs(t, log.Each(t.Context(), "nobody-has-it", time.Time{}, nil), sarama.ErrUnknownTopicOrPartition)
	_, err = kafka.NewTopicReader(kafka.TopicReaderConfig{Brokers: []string{"nonsense"}}, nil)
	require.ErrorContains(t, err, "TopicReaderConfig.Brokers")
}

func TestReconcileJetStream(t *testing.T) {
	t.Parallel()
	server := natsServer(t)
	js, stream, prefix := natsStream(t, server.URL(), nil)
	log, err := nats.NewTopicReader(nats.TopicReaderConfig{URL: server.URL()}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, log.Close()) }()
	topic := prefix + "orders"
	reconciles(t, topic, natsPublisher(t, server.URL()), log, func(func()) (lost []string) {
		var before []string
		collect := func(uuid string) error { before = append(before, uuid); return nil }
		require.NoError(t, log.Each(t.Context(), topic, time.Time{}, collect)) // in the order of the stream
		require.NoError(t, js.PurgeStream(stream, &natsgo.StreamPurgeRequest{Sequence: 51}))
		require.NoError(t, js.DeleteMsg(stream, 300))
		return append(before[:50:50], before[299])
	})

	risks, missing, err := log.Check(t.Context(), []string{topic, "nobody.has.it", "not a name"})
	require.NoError(t, err)
	require.Len(t, risks, 1)
	assert.Contains(t, risks[0].Evidence, "has one replica")
	assert.Equal(t, []string{"nobody.has.it", "not a name"}, missing)
	for name, c := range map[string]struct {
		configure func(*natsgo.StreamConfig)
		want      string
	}{
		"work queue": {func(c *natsgo.StreamConfig) { c.Retention = natsgo.WorkQueuePolicy }, "deletes consumed messages"},
		"short":      {func(c *natsgo.StreamConfig) { c.MaxAge = time.Hour }, "deletes messages after 1h0m0s"},
	} {
		_, _, prefix := natsStream(t, server.URL(), c.configure)
		err := log.Each(t.Context(), prefix+"orders", time.Now().Add(-2*time.Hour), func(string) error { return nil })
		require.ErrorContains(t, err, c.want, name)
	}
	_, _, memory := natsStream(t, server.URL(), func(c *natsgo.StreamConfig) { c.Storage = natsgo.MemoryStorage })
	risks, _, err = log.Check(t.Context(), []string{memory + "orders"})
	require.NoError(t, err)
	require.Len(t, risks, 1)
	assert.Equal(t, admin.Critical, risks[0].Severity)
	require.ErrorIs(t, log.Each(t.Context(), "nobody.has.it", time.Time{}, nil), natsgo.ErrNoMatchingStream)
}

// TestReconcileKafkaCluster: all three nodes die together. When they return, each has a different part of the
// acknowledged messages on its disk, with half a batch at its end.
func TestReconcileKafkaCluster(t *testing.T) {
	cluster := kafkaCluster(t)
	topic := newKafkaClusterTopic(t, cluster)
	takesNoRisk(t, topic)
	reconciles(t, topic.name, topic.pub, topic.log, func(func()) []string {
		before := topic.stored()
		require.NoError(t, cluster.Kill())
		for i, n := range cluster.Nodes() {
			truncateLogs(t, n, topic.name, 60+10*int64(i))
		}
		require.NoError(t, cluster.Restart(t.Context()))
		return gone(t, before, topic)
	})
}

// truncateLogs keeps this percentage of each partition of a topic.
func truncateLogs(t *testing.T, n *services.Node, topic string, percent int64) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(n.Data(), topic+"-*", "*.log"))
	require.NoError(t, err)
	require.Len(t, logs, 4, "a segment of each partition")
	for _, log := range logs {
		info, err := os.Stat(log)
		require.NoError(t, err)
		require.NotZero(t, info.Size(), log)
		require.NoError(t, os.Truncate(log, info.Size()*percent/100))
	}
}

// TestReconcileJetStreamCluster: the disks of all three servers are reset to their state before the last messages were
// acknowledged.
func TestReconcileJetStreamCluster(t *testing.T) {
	cluster := natsCluster(t)
	topic := newJetStreamClusterTopic(t, cluster)
	takesNoRisk(t, topic)
	reconciles(t, topic.name, topic.pub, topic.log, func(more func()) []string {
		require.NoError(t, cluster.Stop())
		older := t.TempDir()
		for _, n := range cluster.Nodes() {
			require.NoError(t, os.CopyFS(filepath.Join(older, n.Name()), os.DirFS(n.Data())))
		}
		require.NoError(t, cluster.Restart(t.Context()))
		topic.led(t, nil)
		more()
		before := topic.stored()
		require.NoError(t, cluster.Kill())
		for _, n := range cluster.Nodes() {
			require.NoError(t, os.RemoveAll(n.Data()))
			require.NoError(t, os.CopyFS(n.Data(), os.DirFS(filepath.Join(older, n.Name()))))
		}
		require.NoError(t, cluster.Restart(t.Context()))
		return gone(t, before, topic)
	})
}

// takesNoRisk checks that doctor has no finding for a topic created as documented.
func takesNoRisk(t *testing.T, topic clusterTopic) {
	t.Helper()
	checker, ok := topic.log.(asked.Checker)
	require.True(t, ok)
	risks, missing, err := checker.Check(t.Context(), []string{topic.name})
	require.NoError(t, err)
	assert.Empty(t, risks)
	assert.Empty(t, missing)
}

// gone returns the messages in before that the topic no longer has, once it can be read.
func gone(t *testing.T, before []string, topic clusterTopic) []string {
	t.Helper()
	topic.led(t, nil)
	left := topic.stored()
	return slices.Compact(slices.Sorted(slices.Values(slices.DeleteFunc(before, func(uuid string) bool {
		return slices.Contains(left, uuid)
	}))))
}
