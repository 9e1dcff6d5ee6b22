package integration_test

import (
	"testing"
	"time"

	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	brokers "github.com/millrace-go/watermill-outbox/broker"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/kafka"
	"github.com/millrace-go/watermill-outbox/nats"
)

// TestInboxRetention: a topic that Kafka keeps for longer than the inbox remembers is found, and no other.
func TestInboxRetention(t *testing.T) {
	extended(t)
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

	f := inboxRetention(t, reader, long, short)
	assert.Contains(t, f.Evidence, `messages of topic "`+long+`" for 2d00h`)
}

// TestInboxRetentionOfJetStream is the same of max_age.
func TestInboxRetentionOfJetStream(t *testing.T) {
	extended(t)
	t.Parallel()
	url := natsServer(t).URL()
	lasting := func(d time.Duration, policy natsgo.RetentionPolicy) string {
		_, _, prefix := natsStream(t, url, func(c *natsgo.StreamConfig) { c.MaxAge, c.Retention = d, policy })
		return prefix
	}
	long, short := lasting(48*time.Hour, natsgo.LimitsPolicy), lasting(time.Hour, natsgo.LimitsPolicy)
	ever, consumed := lasting(0, natsgo.LimitsPolicy), lasting(48*time.Hour, natsgo.WorkQueuePolicy)
	reader, err := nats.NewTopicReader(nats.TopicReaderConfig{URL: url}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, reader.Close()) }()
	for topic, want := range map[string]time.Duration{
		long + "orders": 48 * time.Hour, long + "*": 48 * time.Hour, ever + "orders": -1,
		consumed + "orders": 0, "nobodys": 0,
	} {
		kept, known, err := reader.Keeps(t.Context(), topic)
		require.NoError(t, err)
		assert.Equal(t, want != 0, known, topic)
		assert.Equal(t, want, kept, topic)
	}
	f := inboxRetention(t, reader, long+"orders", short+"orders", ever+"orders", consumed+"orders")
	assert.Contains(t, f.Evidence, `messages of topic "`+long+`orders" for 2d00h`)
}

// inboxRetention is the only finding of Doctor on topics of which the inbox remembers a day.
func inboxRetention(t *testing.T, reader brokers.Checker, topics ...string) admin.Finding {
	t.Helper()
	h := newPgxHandle(t, newMigratedDatabase(t))
	cfg := quickConfig()
	cfg.InboxRetention = 24 * time.Hour
	for _, topic := range topics {
		(*core.DB)(h.db).Consumes("booking/"+topic, topic)
	}
	startForwarder(t, h, cfg)
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
	return found[0]
}
