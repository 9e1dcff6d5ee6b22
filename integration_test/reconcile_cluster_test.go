package integration_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	asked "github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/internal/services"
)

// TestReconcileKafkaCluster: all three nodes die at once, and of what they had acknowledged each has another part on
// its disk when they come back, with half a batch at its end.
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

// truncateLogs leaves some percent of each partition of a topic.
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

// TestReconcileJetStreamCluster: the disks of all three servers are put back to how they were before the last messages
// were acknowledged.
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

// takesNoRisk: doctor has nothing to say of a topic that is made as the documents say.
func takesNoRisk(t *testing.T, topic clusterTopic) {
	t.Helper()
	checker, ok := topic.log.(asked.Checker)
	require.True(t, ok)
	risks, missing, err := checker.Check(t.Context(), []string{topic.name})
	require.NoError(t, err)
	assert.Empty(t, risks)
	assert.Empty(t, missing)
}

// gone are the messages that a topic had before and has no more, once it can be read.
func gone(t *testing.T, before []string, topic clusterTopic) []string {
	t.Helper()
	topic.led(t, nil)
	left := topic.stored()
	return slices.Compact(slices.Sorted(slices.Values(slices.DeleteFunc(before, func(uuid string) bool {
		return slices.Contains(left, uuid)
	}))))
}
