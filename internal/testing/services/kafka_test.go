package services

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// produce writes one record to the topic, which may not exist yet.
func produce(ctx context.Context, t *testing.T, brokers []string, topic string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.AllowAutoTopicCreation())
	must(t, err)
	defer client.Close()
	must(t, client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte("one")}).FirstErr())
}

func consume(ctx context.Context, t *testing.T, brokers []string, topic string, want int) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic))
	must(t, err)
	defer client.Close()
	for got := 0; got < want; {
		fetches := client.PollFetches(ctx)
		must(t, fetches.Err0())
		got += fetches.NumRecords()
	}
}

func wantPartitions(ctx context.Context, t *testing.T, brokers []string, topic string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	must(t, err)
	defer client.Close()
	request := kmsg.NewPtrMetadataRequest()
	request.Topics = []kmsg.MetadataRequestTopic{{Topic: &topic}}
	response, err := request.RequestWith(ctx, client)
	must(t, err)
	if n := len(response.Topics[0].Partitions); n != 4 {
		t.Errorf("topic has %d partitions, want 4", n)
	}
}

func TestKafka(t *testing.T) {
	t.Parallel()
	ctx := within(t, 5*time.Minute)
	k, err := StartKafka(ctx, Options{Log: io.Discard, QuickStart: true})
	must(t, err)
	if k.Fake() {
		must(t, k.Close())
		t.Skip("no Java or Maven on this machine")
	}
	brokers := k.Brokers()
	if !strings.Contains(tail(k.logPath()), "Kafka Server started") {
		t.Errorf("its log does not show its actions: %s", tail(k.logPath()))
	}
	produce(ctx, t, brokers, "kept")
	wantPartitions(ctx, t, brokers, "kept")

	must(t, k.Stop())
	if _, err := clusterID(ctx, brokers); err == nil {
		t.Error("stopped broker answers")
	}
	must(t, k.Restart(ctx))
	produce(ctx, t, brokers, "kept")
	must(t, k.Kill())
	must(t, k.Restart(ctx))
	consume(ctx, t, brokers, "kept", 2)

	must(t, k.Close())
	must(t, k.Close())
	wantGone(t, k.daemon)
}

func TestKafkaFake(t *testing.T) {
	ctx := within(t, time.Minute)
	t.Setenv("PATH", t.TempDir())
	t.Setenv("JAVA_HOME", "")
	t.Setenv("CI", "")
	var log bytes.Buffer
	k, err := StartKafka(ctx, Options{Log: &log, QuickStart: true})
	must(t, err)
	defer k.Close()
	if !k.Fake() {
		t.Error("not a fake")
	}
	if line := log.String(); !strings.Contains(line, "FAKE") || strings.Count(line, "\n") != 1 {
		t.Errorf("log is %q, want one line about a fake", line)
	}
	produce(ctx, t, k.Brokers(), "new")
	wantPartitions(ctx, t, k.Brokers(), "new")
	for name, err := range map[string]error{"Stop": k.Stop(), "Kill": k.Kill(), "Restart": k.Restart(ctx)} {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s returned %v", name, err)
		}
	}

	t.Setenv("CI", "true")
	if _, err := StartKafka(ctx, Options{Log: io.Discard}); err == nil {
		t.Error("CI accepted a fake")
	}
}
