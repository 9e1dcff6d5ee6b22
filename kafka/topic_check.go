package kafka

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-go/watermill-outbox/broker"
)

// topicSettings holds the settings that decide which messages a topic may lose.
type topicSettings struct {
	compacted, unclean bool
	keeps              time.Duration // -1 = forever
	sized              bool          // retention.bytes is set
	minInSync          int
}

func settingsOf(client sarama.Client, topic string) (s topicSettings, err error) {
	admin, err := sarama.NewClusterAdminFromClient(client) // not closed: that would close the client
	if err != nil {
		return s, err
	}
	resource := &sarama.ConfigResource{Type: sarama.TopicResource, Name: topic}
	described, err := admin.DescribeConfigs([]*sarama.ConfigResource{resource}, sarama.DescribeConfigsOptions{})
	switch {
	case err != nil:
	case len(described) != 1:
		err = sarama.ErrIncompleteResponse
	case described[0].ErrorCode != sarama.ErrNoError:
		err = described[0].ErrorCode
	case len(described[0].Configs) == 0:
		err = sarama.ErrIncompleteResponse
	}
	if err != nil {
		return s, fmt.Errorf("kafka: describe the settings of topic %q, which needs the permission DescribeConfigs: %w",
			topic, err)
	}
	s.keeps = -1
	for _, e := range described[0].Configs {
		switch e.Name {
		case "cleanup.policy":
			s.compacted = strings.Contains(e.Value, "compact")
		case "unclean.leader.election.enable":
			s.unclean = e.Value == "true"
		case "min.insync.replicas":
			s.minInSync, _ = strconv.Atoi(e.Value)
		case "retention.bytes":
			s.sized = e.Value != "" && e.Value != "-1"
		case "retention.ms":
			if ms, err := strconv.ParseInt(e.Value, 10, 64); err == nil && ms >= 0 {
				s.keeps = time.Duration(min(ms, int64(1<<62/time.Millisecond))) * time.Millisecond
			}
		}
	}
	return s, nil
}

// Retention returns the retention.ms of a topic.
func (l *TopicReader) Retention(_ context.Context, topic string) (retention time.Duration, known bool, err error) {
	client, _, err := l.partitions(topic)
	switch {
	case isMissing(err):
		return 0, false, nil
	case err != nil:
		return 0, false, err
	}
	s, err := settingsOf(client, topic)
	return s.keeps, err == nil, err
}

// Check returns the topics that may lose acknowledged messages, and the topics that do not exist.
func (l *TopicReader) Check(ctx context.Context, topics []string) (risks []broker.Risk, missing []string, err error) {
	for _, topic := range topics {
		if ctx.Err() != nil {
			return risks, missing, ctx.Err()
		}
		client, partitions, err := l.partitions(topic)
		if isMissing(err) {
			missing = append(missing, topic)
			continue
		}
		if err != nil {
			return risks, missing, err
		}
		s, err := settingsOf(client, topic)
		if err != nil {
			return risks, missing, err
		}
		replicas, err := fewestReplicas(client, topic, partitions)
		if err != nil {
			return risks, missing, err
		}
		warn := func(evidence, cure string) {
			risks = append(risks, broker.Risk{
				Severity: broker.Warning, Evidence: fmt.Sprintf("Kafka topic %q %s", topic, evidence), Cure: cure,
			})
		}
		if replicas == 1 {
			warn("has one replica, which syncs to disk when its operating system decides: if it crashes, the last "+
				"acknowledged messages are lost",
				"raise its replication factor to 3 (kafka-reassign-partitions), and set min.insync.replicas=2")
		} else if s.minInSync < 2 {
			warn(fmt.Sprintf("has %d replicas, and min.insync.replicas=%d: while the others are down, one "+
				"acknowledges alone, and if it crashes its messages are lost", replicas, s.minInSync),
				l.alter(topic, "min.insync.replicas=2"))
		}
		if s.unclean {
			warn("lets an out-of-sync replica become leader: messages that it lacks are lost",
				l.alter(topic, "unclean.leader.election.enable=false"))
		}
	}
	return risks, missing, nil
}

func fewestReplicas(client sarama.Client, topic string, partitions []int32) (fewest int, err error) {
	for i, p := range partitions {
		all, err := client.Replicas(topic, p)
		if err != nil {
			return 0, fmt.Errorf("kafka: replicas of topic %q: %w", topic, err)
		}
		if i == 0 || len(all) < fewest {
			fewest = len(all)
		}
	}
	return fewest, nil
}

// alter returns the command that changes a setting of a topic.
func (l *TopicReader) alter(topic, setting string) string {
	return "kafka-configs --bootstrap-server " + l.cfg.Brokers[0] + " --alter --entity-type topics --entity-name " +
		topic + " --add-config " + setting
}
