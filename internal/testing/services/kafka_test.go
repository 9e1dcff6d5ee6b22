package services

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/rcrowley/go-metrics"
)

// sarama's meters start a goroutine that nothing stops.
func init() { metrics.UseNilMetrics = true }

func kafkaClient(t *testing.T, brokers []string) sarama.Client {
	t.Helper()
	config := sarama.NewConfig()
	config.Producer.Return.Successes = true
	config.Metadata.Retry.Max = 100 // a new topic, or one of a restarted broker, takes a moment to get a leader
	client, err := sarama.NewClient(brokers, config)
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// produce writes one message to the topic, which may not exist yet.
func produce(t *testing.T, brokers []string, topic string) {
	t.Helper()
	producer, err := sarama.NewSyncProducerFromClient(kafkaClient(t, brokers))
	must(t, err)
	defer producer.Close()
	_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder("one")})
	must(t, err)
}

// wantStored checks that the topic has four partitions, and this number of messages.
func wantStored(t *testing.T, brokers []string, topic string, want int64) {
	t.Helper()
	client := kafkaClient(t, brokers)
	partitions, err := client.Partitions(topic)
	must(t, err)
	if len(partitions) != 4 {
		t.Errorf("topic has %d partitions, want 4", len(partitions))
	}
	var stored int64
	for _, p := range partitions {
		end, err := client.GetOffset(topic, p, sarama.OffsetNewest)
		must(t, err)
		stored += end
	}
	if stored != want {
		t.Errorf("topic has %d messages, want %d", stored, want)
	}
}

func TestKafka(t *testing.T) {
	t.Parallel()
	ctx := within(t, 5*time.Minute)
	k, err := StartKafka(ctx, Options{Log: io.Discard, QuickStart: true})
	if errors.Is(err, ErrNotInstalled) && !InCI() {
		t.Skip("no Java or Maven on this machine: this test did not run")
	}
	must(t, err)
	brokers := k.Brokers()
	if !strings.Contains(tail(k.logPath()), "Kafka Server started") {
		t.Errorf("its log does not show its actions: %s", tail(k.logPath()))
	}
	produce(t, brokers, "kept")
	wantStored(t, brokers, "kept", 1)
	if err := kafkaReady(brokers[0], "another"); err == nil {
		t.Error("another cluster's broker counts as ready")
	}

	must(t, k.Stop())
	if err := k.ready(ctx); err == nil {
		t.Error("stopped broker answers")
	}
	must(t, k.Restart(ctx))
	produce(t, brokers, "kept")
	must(t, k.Kill())
	must(t, k.Restart(ctx))
	wantStored(t, brokers, "kept", 2)

	must(t, k.Close())
	must(t, k.Close())
	wantGone(t, k.daemon)
}

func TestKafkaNotInstalled(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	t.Setenv("JAVA_HOME", dir)
	t.Setenv("XDG_CACHE_HOME", dir)
	t.Setenv("HOME", dir)
	check := func(why string) {
		t.Helper()
		_, err := StartKafka(t.Context(), Options{Log: io.Discard})
		_, clusterErr := StartKafkaCluster(t.Context(), Options{Log: io.Discard})
		for _, err := range []error{err, clusterErr} {
			if !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), why) ||
				!strings.HasSuffix(err.Error(), ": install Java 17 or later and Maven") {
				t.Errorf("got %v, want %s, and what to install", err, why)
			}
		}
	}
	check("no java in JAVA_HOME or PATH")
	if runtime.GOOS == "windows" {
		return // the program is a shell script
	}
	program := filepath.Join(dir, "java")
	for version, why := range map[string]string{"11.0.2": "too old", "21.0.1": "no mvn in PATH"} {
		must(t, os.WriteFile(program, []byte("#!/bin/sh\necho 'openjdk version \""+version+"\"'\n"), 0o755))
		check(why)
	}
}
