package integration_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/IBM/sarama"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
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

// clusterTopic is a topic with a replica on each of three nodes.
type clusterTopic struct {
	name   string
	pub    message.Publisher
	log    asked.TopicReader
	nodes  []*services.Node
	leader func(of *services.Node) (name string, err error)
	stored func() []string // UUIDs, for each key in the order of the log
}

// TestKafkaClusterLosesANode: a forwarder publishes to a topic with a replica on each of three nodes, while the leader
// of a partition is killed, frozen, or cut off from the others although clients reach it. The other two continue, and
// in the end each message is there, in order for each key. Reconcile misses none as soon as the node is back.
func TestKafkaClusterLosesANode(t *testing.T) {
	extended(t)
	losesANode(t, newKafkaClusterTopic(t, kafkaCluster(t)))
}

// TestJetStreamClusterLosesANode is TestKafkaClusterLosesANode with a stream of three replicas.
func TestJetStreamClusterLosesANode(t *testing.T) {
	extended(t)
	losesANode(t, newJetStreamClusterTopic(t, natsCluster(t)))
}

// led returns the leading node, according to a node other than away.
func (c clusterTopic) led(t testing.TB, away *services.Node) (leader *services.Node) {
	t.Helper()
	eventually(t, func() bool {
		for _, n := range c.nodes {
			if n == away {
				continue
			}
			if name, err := c.leader(n); err == nil {
				i := slices.IndexFunc(c.nodes, func(n *services.Node) bool { return n.Name() == name })
				if i >= 0 && c.nodes[i] != away {
					leader = c.nodes[i]
					return true
				}
			}
		}
		return false
	}, "a node leads")
	return leader
}

func losesANode(t *testing.T, topic clusterTopic) {
	w := &clusterWorld{T: t, h: newPgxHandle(t, newMigratedDatabase(t)), topic: topic, sent: map[string]int{}}
	runForwarder(t, w.h, topic.pub, quickConfig(), newLogCapture(t))
	w.without("killed", (*services.Node).Kill, func(n *services.Node) error { return n.Restart(t.Context()) })
	w.without("frozen", (*services.Node).Freeze, (*services.Node).Thaw)
	w.without("isolated", (*services.Node).Isolate, (*services.Node).Join)
	w.verify()
}

// clusterWorld is an outbox whose messages go to a topic of a cluster.
type clusterWorld struct {
	*testing.T
	h     handle
	topic clusterTopic
	sent  map[string]int // number of messages, by key
	total int
}

// write commits messages of random keys; each contains its number within its key.
func (w *clusterWorld) write(n int) {
	w.Helper()
	for range n / 10 {
		key := "key-" + itoa(rand.IntN(100))
		var payloads []string
		for range 10 {
			w.sent[key]++
			payloads = append(payloads, itoa(w.sent[key]))
		}
		w.h.publish(w, w.topic.name, key, payloads...)
		w.total += len(payloads)
	}
}

func (w *clusterWorld) await(n int, what string) {
	w.Helper()
	published := func() int { return w.h.count(w, "SELECT count(*) FROM outbox WHERE published_at IS NOT NULL") }
	for begun := time.Now(); published() < n; time.Sleep(20 * time.Millisecond) {
		if time.Since(begun) > 3*patience {
			w.Fatalf("%s: %d of %d messages are published", what, published(), n)
		}
	}
}

// without takes the leader away while messages are published, until as many are published without it.
func (w *clusterWorld) without(what string, leave, back func(*services.Node) error) {
	w.Helper()
	published := w.total
	w.write(1000)
	w.await(published+200, "a leader that is to be "+what)
	leader := w.topic.led(w, nil)
	begun := time.Now()
	require.NoError(w, leave(leader))
	w.write(1000)
	w.await(w.total, "with a leader "+what)
	took := time.Since(begun)
	w.Logf("node %s %s: node %s led, and all were published after %s", leader.Name(), what,
		w.topic.led(w, leader).Name(), took.Round(time.Millisecond))
	require.NoError(w, back(leader))
	w.missesNone("after a leader was " + what)
	w.write(1000)
	w.await(w.total, "after a leader was "+what)
}

// missesNone asserts that Reconcile would send nothing again, once the broker can report that.
func (w *clusterWorld) missesNone(what string) {
	w.Helper()
	eventually(w, func() bool {
		r, err := newAdmin(w, w.h).Reconcile(w.Context(), w.topic.log, admin.Action{
			Filter: admin.Filter{Topic: w.topic.name}, Reason: what, DryRun: true,
		})
		if err != nil {
			return false
		}
		assert.Equal(w, [2]int64{0, int64(w.total)}, [2]int64{r.Matched.N, r.Compared}, "%s: missing, compared", what)
		return true
	}, "the broker's log can be read")
}

// verify compares the log with the outbox: each message is there, and the first copies of each key are in order.
func (w *clusterWorld) verify() {
	w.Helper()
	key, want := map[string]string{}, map[string][]string{}
	for _, row := range column[string](w, w.h, "SELECT uuid || ' ' || key FROM outbox ORDER BY id") {
		words := words(row)
		key[words[0]] = words[1]
		want[words[1]] = append(want[words[1]], words[0])
	}
	got, seen, invented, copies := map[string][]string{}, map[string]bool{}, 0, 0
	for _, uuid := range w.topic.stored() {
		switch of, known := key[uuid]; {
		case !known:
			invented++
		case seen[uuid]:
			copies++
		default:
			seen[uuid] = true
			got[of] = append(got[of], uuid)
		}
	}
	disorder := 0
	for of, uuids := range got {
		there := slices.DeleteFunc(slices.Clone(want[of]), func(uuid string) bool { return !seen[uuid] })
		if !slices.Equal(there, uuids) {
			disorder++
		}
	}
	charged := w.h.count(w, "SELECT count(*) FROM outbox WHERE dead_at IS NOT NULL OR attempts > 0")
	w.Logf("%d messages of %d keys: %d lost, %d invented, %d keys out of order, %d copies, %d charged", w.total,
		len(w.sent), len(key)-len(seen), invented, disorder, copies, charged)
	assert.Equal(w, [5]int{w.total, 0, 0, 0, 0}, [5]int{len(key), len(key) - len(seen), invented, disorder, charged},
		"committed, lost, invented, keys out of order, charged")
}

func kafkaCluster(t testing.TB) *services.KafkaCluster {
	t.Helper()
	if !long {
		t.Skip("takes minutes: set OUTBOX_LONG=1")
	}
	cluster, err := services.StartKafkaCluster(t.Context(), services.Options{})
	needsKafka(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Close()) })
	return cluster
}

func newKafkaClusterTopic(t testing.TB, cluster *services.KafkaCluster) clusterTopic {
	t.Helper()
	topic := kafkaTopic(t, cluster, 4, nil)
	log, err := kafka.NewTopicReader(kafka.TopicReaderConfig{Brokers: cluster.Brokers()}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, log.Close()) })
	return clusterTopic{
		name: topic, pub: kafkaPublisher(t, cluster), log: log, nodes: cluster.Nodes(),
		leader: func(of *services.Node) (string, error) { return kafkaLeader(of, topic) },
		stored: func() []string { return kafkaUUIDs(t, cluster, topic) },
	}
}

// kafkaLeader returns the leader of the first partition of a topic, according to one node.
func kafkaLeader(of *services.Node, topic string) (string, error) {
	b := sarama.NewBroker(of.Address())
	cfg := sarama.NewConfig()
	cfg.Net.ReadTimeout = patience / 5
	if err := b.Open(cfg); err != nil {
		return "", err
	}
	defer b.Close()
	metadata, err := b.GetMetadata(&sarama.MetadataRequest{Version: 5, Topics: []string{topic}})
	if err != nil {
		return "", err
	}
	for _, p := range metadata.Topics[0].Partitions {
		if p.ID == 0 && p.Err == sarama.ErrNoError {
			return itoa(int(p.Leader)), nil
		}
	}
	return "", sarama.ErrLeaderNotAvailable
}

func natsCluster(t testing.TB) *services.NATSCluster {
	t.Helper()
	if !long {
		t.Skip("takes minutes: set OUTBOX_LONG=1")
	}
	cluster, err := services.StartNATSCluster(t.Context(), services.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Close()) })
	return cluster
}

func newJetStreamClusterTopic(t testing.TB, cluster *services.NATSCluster) clusterTopic {
	t.Helper()
	js, stream, prefix := natsStream(t, cluster.URL(), func(c *natsgo.StreamConfig) { c.Replicas = 3 })
	log, err := nats.NewTopicReader(nats.TopicReaderConfig{URL: cluster.URL()}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, log.Close()) })
	return clusterTopic{
		name: prefix + "orders", pub: natsPublisher(t, cluster.URL()), log: log, nodes: cluster.Nodes(),
		leader: func(of *services.Node) (string, error) { return jetStreamLeader(of, stream) },
		stored: func() []string { return jetStreamUUIDs(t, js, stream) },
	}
}

// jetStreamLeader returns the leader of a stream, according to one server.
func jetStreamLeader(of *services.Node, stream string) (string, error) {
	conn, err := natsgo.Connect("nats://"+of.Address(), natsgo.NoReconnect())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	js, err := conn.JetStream(natsgo.MaxWait(patience / 5))
	if err != nil {
		return "", err
	}
	info, err := js.StreamInfo(stream)
	if err != nil {
		return "", err
	}
	return info.Cluster.Leader, nil
}

// jetStreamUUIDs fetches one message after another, by its sequence.
func jetStreamUUIDs(t testing.TB, js natsgo.JetStreamContext, stream string) (uuids []string) {
	t.Helper()
	info, err := js.StreamInfo(stream)
	require.NoError(t, err)
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; seq++ {
		msg, err := js.GetMsg(stream, seq)
		if errors.Is(err, natsgo.ErrMsgNotFound) {
			continue
		}
		require.NoError(t, err)
		uuids = append(uuids, msg.Header.Get(wmnats.WatermillUUIDHdr))
	}
	return uuids
}
