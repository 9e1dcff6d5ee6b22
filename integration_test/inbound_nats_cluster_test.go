package integration_test

import (
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/services"
)

// TestJetStreamCluster: of three servers that have the stream the leader of the consumer goes away, which forgets the
// acks that it had not told the others, and who is pinned.
func TestJetStreamCluster(t *testing.T) {
	extended(t)
	t.Parallel()
	cluster, err := services.StartNATSCluster(t.Context(), services.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Close()) })
	w := newJetStreamWorldIn(t, inboundHandle(t), cluster.URL(), func(cfg *natsgo.StreamConfig) { cfg.Replicas = 3 })
	w.send(900, 100)
	c := w.config()
	c.AckWait = 15 * time.Second // the default: with less an owner whose three servers are busy is deposed again and again
	w.serve(c, work)
	w.serve(c, work) // a standby
	w.await(w.settled / 3)
	info := w.consumer()
	require.NotNil(t, info.Cluster)
	require.NoError(t, cluster.Node(info.Cluster.Leader).Stop())
	w.await(w.settled)
	w.verify()
}

// TestSubscriberLeavesAnIsolatedServer: of three servers that have the stream the one that the subscriber has its
// connection to is cut off from the others, and answers its pings. The subscriber reads on from another one.
func TestSubscriberLeavesAnIsolatedServer(t *testing.T) {
	extended(t)
	cluster := natsCluster(t)
	away, other := cluster.Nodes()[0], cluster.Nodes()[1]
	w := newJetStreamWorldIn(t, inboundHandle(t), "nats://"+other.Address(), func(cfg *natsgo.StreamConfig) { cfg.Replicas = 3 })
	c := w.config()
	c.AckWait = 15 * time.Second
	c.NATS, c.natsOptions = "nats://"+away.Address()+","+w.url, []natsgo.Option{natsgo.DontRandomize()}
	w.serve(c, work)
	w.send(300, 30)
	w.await(w.settled)
	require.NoError(t, away.Isolate())
	eventually(t, func() bool {
		leader, err := jetStreamLeader(other, w.stream)
		return err == nil && leader != "" && leader != away.Name()
	}, "another one leads")
	w.send(300, 30)
	begun := time.Now()
	w.await(w.settled)
	t.Logf("the subscriber has left the server after %s", time.Since(begun).Round(time.Second))
	require.NoError(t, away.Join())
	w.verify()
}
