package integration_test

import (
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
	"github.com/millrace-go/watermill-outbox/publisher/nats"
)

// TestAllTopicsAreBackTogether: the topics of two forwarders are paused for ten minutes each, and the broker comes back sooner. Whether
// their publisher knows its errors or not, one of them finds out, and the others do not wait for the end of their pauses.
func TestAllTopicsAreBackTogether(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	for name, failure := range map[string]error{"known": &forwarder.PublishError{Verdict: forwarder.Unavailable, Err: errDown}, "unknown": errOdd} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newPgxHandle(t, newMigratedDatabase(t))
			cfg := sharing(quickConfig())
			cfg.OutageBackoff = outbox.Backoff{Func: func(n int) time.Duration {
				if n < 3 {
					return 20 * time.Millisecond
				}
				return 10 * time.Minute
			}}
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
			w.wait(t, "all are paused for long", func() bool {
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
			t.Logf("all are back after %s", time.Since(begun))
			assert.LessOrEqual(t, h.count(t, "select coalesce(sum(attempts), 0)::int from outbox"), 2*topics)
		})
	}
}

// TestTopicsAreBackWithPlainProducers measures how long after plain producers the topics of two forwarders publish again, when JetStream was away for
// so long that their pauses have their full length.
func TestTopicsAreBackWithPlainProducers(t *testing.T) {
	if os.Getenv("OUTBOX_LONG") == "" {
		t.Skip("it takes a minute: OUTBOX_LONG=1")
	}
	noLeaks(t)
	const topics, outage = 20, 40 * time.Second
	server, err := services.StartNATS(t.Context(), services.Options{})
	require.NoError(t, err)
	defer server.Close()
	js, stream, prefix := natsStream(t, server.URL(), nil)
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
	eventually(t, func() bool { return h.count(t, "select count(distinct owner) from outbox_lanes") == 2 }, "they share the lanes")
	require.NoError(t, server.Stop())
	for i := range topics {
		for n := range 30 {
			h.publish(t, fmt.Sprint(prefix, "topic", i), fmt.Sprint(i, "-", n), fmt.Sprint(i, "-", n))
		}
	}
	time.Sleep(outage) // so long is what it measures
	require.NoError(t, server.Restart(t.Context()))
	begun := time.Now()
	var plain sync.WaitGroup
	var first, last atomic.Int64
	for i, pub := range publishers {
		plain.Go(func() {
			for pub.Publish(fmt.Sprint(prefix, "plain", i), newMessage("")) != nil {
				time.Sleep(20 * time.Millisecond)
			}
			took := int64(time.Since(begun))
			first.CompareAndSwap(0, took)
			last.Store(took)
		})
	}
	var firstOurs time.Duration
	eventually(t, func() bool {
		info, err := js.StreamInfo(stream, &natsgo.StreamInfoRequest{SubjectsFilter: prefix + "topic*"})
		if err != nil {
			return false
		}
		stored := 0
		for _, n := range info.State.Subjects {
			stored += int(n)
		}
		if stored > 0 && firstOurs == 0 {
			firstOurs = time.Since(begun)
		}
		return stored >= topics*30
	}, "all are stored")
	ours := time.Since(begun)
	plain.Wait()
	t.Logf("plain producers: first after %s, last after %s; ours: first after %s, last after %s", time.Duration(first.Load()), time.Duration(last.Load()), firstOurs, ours)
	assert.LessOrEqual(t, ours, time.Duration(last.Load())+2*time.Second)
}
