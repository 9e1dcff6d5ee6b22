package integration_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/publisher/kafka"
)

// TestInboxRetention: a topic that Kafka keeps for longer than the inbox remembers is found, and no other.
func TestInboxRetention(t *testing.T) {
	t.Parallel()
	server := kafkaServer(t)
	if server.Fake() {
		t.Skip("the fake broker has no settings of topics")
	}
	lasting := func(d time.Duration) map[string]*string {
		ms := itoa(int(d.Milliseconds()))
		return map[string]*string{"retention.ms": &ms}
	}
	long := kafkaTopic(t, server, 1, lasting(48*time.Hour))
	short := kafkaTopic(t, server, 1, lasting(time.Hour))
	reader, err := kafka.NewTopicReader(kafka.TopicReaderConfig{Brokers: server.Brokers()}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, reader.Close()) }()
	kept, known, err := reader.Keeps(t.Context(), long)
	require.NoError(t, err)
	assert.True(t, known)
	assert.Equal(t, 48*time.Hour, kept)
	_, known, err = reader.Keeps(t.Context(), long+"-of-another-broker")
	require.NoError(t, err)
	assert.False(t, known)

	h := newPgxHandle(t, newMigratedDatabase(t))
	cfg := quickConfig()
	cfg.InboxRetention = 24 * time.Hour
	startForwarder(t, h, cfg)
	(*core.DB)(h.db).Consumes("booking/long", long)
	(*core.DB)(h.db).Consumes("booking/short", short)
	var found []admin.Finding
	eventually(t, func() bool {
		found = nil
		all, err := newAdmin(t, h).Doctor(t.Context(), reader)
		require.NoError(t, err)
		for _, f := range all {
			if f.Check == "inbox_retention" {
				found = append(found, f)
			}
		}
		return len(found) > 0
	}, "doctor finds the topic")
	require.Len(t, found, 1)
	assert.Contains(t, found[0].Evidence, `messages of topic "`+long+`" for 2.0 days`)
}
