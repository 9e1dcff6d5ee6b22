package integration_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/services"
	"github.com/millrace-go/watermill-outbox/nats"
)

// TestAllTopicsAreBackTogether: all topics of two forwarders are paused. When the broker is back, they all publish again
// within the maximum of OutageBackoff, whether the errors had a verdict or not. Without one the outage has cost each
// forwarder four attempts, with one none.
func TestAllTopicsAreBackTogether(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	for name, failure := range map[string]error{
		"known": &forwarder.PublishError{Verdict: forwarder.Unavailable, Err: errDown}, "unknown": errOdd,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newPgxHandle(t, newMigratedDatabase(t))
			cfg := sharing(quickConfig())
			cfg.OutageBackoff = outbox.Backoff{Initial: 20 * time.Millisecond, Max: time.Second}
			const topics, perTopic = 20, 30
			var down atomic.Bool
			down.Store(true)
			var mu sync.Mutex
			tries := map[string]int{}
			w := startForwarderOn(t, h, cfg, func(topic string, _ *message.Message) error {
				mu.Lock()
				defer mu.Unlock()
				if tries[topic]++; down.Load() {
					return failure
				}
				return nil
			})
			w.join(t, h, cfg)
			eventually(t, func() bool {
				return h.count(t, "select count(distinct owner) from outbox_lanes") == 2
			}, "they share the lanes")
			var all []string
			for i := range topics {
				for n := range perTopic {
					payload := fmt.Sprint("t", i, "-", n)
					all = append(all, payload)
					h.publish(t, fmt.Sprint("topic", i), payload, payload)
				}
			}
			w.wait(t, "all are paused", func() bool {
				mu.Lock()
				defer mu.Unlock()
				for i := range topics {
					if tries[fmt.Sprint("topic", i)] < 2*3 {
						return false
					}
				}
				return true
			})
			down.Store(false)
			begun := time.Now()
			w.arrives(t, all...)
			assert.Less(t, time.Since(begun), 10*time.Second)
			charged := 0
			if failure == errOdd {
				charged = 2 * 4
			}
			assert.LessOrEqual(t, h.count(t, "select coalesce(sum(attempts), 0)::int from outbox"), charged)
		})
	}
}

// jetStream is a server or a cluster that the test stops and starts.
type jetStream interface {
	URL() string
	Stop() error
	Restart(ctx context.Context) error
	Close() error
}

// TestTopicsAreBackWithPlainProducers measures how long after plain producers the topics of two forwarders publish
// again, when JetStream was away for so long that their pauses have their full length: one server, and three of which
// each has a replica of the stream.
func TestTopicsAreBackWithPlainProducers(t *testing.T) {
	extended(t)
	if os.Getenv("OUTBOX_LONG") == "" {
		t.Skip("it takes a minute each: OUTBOX_LONG=1")
	}
	noLeaks(t)
	for name, start := range map[string]func() (jetStream, error){
		"one server":    func() (jetStream, error) { return services.StartNATS(t.Context(), services.Options{}) },
		"three servers": func() (jetStream, error) { return services.StartNATSCluster(t.Context(), services.Options{}) },
	} {
		t.Run(name, func(sub *testing.T) {
			server, err := start()
			require.NoError(sub, err)
			defer server.Close()
			replicas := 1
			if name == "three servers" {
				replicas = 3
			}
			measureResumption(sub, server, replicas)
		})
	}
}

func measureResumption(t *testing.T, server jetStream, replicas int) {
	const topics, outage = 20, 40 * time.Second
	js, stream, prefix := natsStream(t, server.URL(), func(cfg *natsgo.StreamConfig) { cfg.Replicas = replicas })
	h := newPgxHandle(t, newMigratedDatabase(t))
	cfg := sharing(quickConfig())
	cfg.OutageBackoff = outbox.Backoff{}
	publishers := make([]*nats.Publisher, topics)
	for i := range publishers {
		publishers[i] = natsPublisher(t, server.URL())
	}
	for range 2 {
		f, err := forwarder.New(h.db, natsPublisher(t, server.URL()), cfg, newLogCapture(t))
		require.NoError(t, err)
		runInBackground(t, f)
	}
	eventually(t, func() bool { return h.count(t, "select count(distinct owner) from outbox_lanes") == 2 },
		"they share the lanes")
	require.NoError(t, server.Stop())
	for i := range topics {
		for n := range 30 {
			h.publish(t, fmt.Sprint(prefix, "topic", i), fmt.Sprint(i, "-", n), fmt.Sprint(i, "-", n))
		}
	}
	time.Sleep(outage) // so long is what it measures
	begun := time.Now()
	var plain sync.WaitGroup
	for i, pub := range publishers {
		plain.Go(func() {
			for pub.Publish(fmt.Sprint(prefix, "plain", i), newMessage("")) != nil {
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	require.NoError(t, server.Restart(t.Context()))
	plain.Wait()
	eventually(t, func() bool { return natsStored(t, js, stream) >= topics*31 }, "all are stored")
	plainFirst, plainLast := resumed(t, js, prefix+"plain", topics, begun)
	first, last := resumed(t, js, prefix+"topic", topics, begun)
	t.Logf("since the servers start: plain producers first after %s, last after %s; topics of forwarders first "+
		"after %s, last after %s",
		plainFirst, plainLast, first, last)
	assert.LessOrEqual(t, last, plainLast+2*time.Second)
	assert.LessOrEqual(t, last-first, plainLast-plainFirst+2*time.Second)
}

// resumed is how long after a moment the stream took the first message of the first and of the last of some subjects,
// by its own clock.
func resumed(
	t *testing.T, js natsgo.JetStreamContext, subjects string, n int, since time.Time,
) (first, last time.Duration) {
	for i := range n {
		sub, err := js.SubscribeSync(fmt.Sprint(subjects, i), natsgo.OrderedConsumer())
		require.NoError(t, err)
		msg, err := sub.NextMsg(patience)
		require.NoError(t, err)
		meta, err := msg.Metadata()
		require.NoError(t, err)
		require.NoError(t, sub.Unsubscribe())
		if took := meta.Timestamp.Sub(since); i == 0 {
			first, last = took, took
		} else {
			first, last = min(first, took), max(last, took)
		}
	}
	return first, last
}
