package integration_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wmnats "github.com/ThreeDotsLabs/watermill-nats/v2/pkg/nats"
	"github.com/ThreeDotsLabs/watermill/message"
	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/internal/testing/services"
	"github.com/millrace-go/watermill-outbox/nats"
	"github.com/millrace-go/watermill-outbox/observe"
)

// TestJetStreamClose: messages acked before the end of Close are not delivered again, and the rest is nacked
// immediately: AckWait is longer than this test waits.
func TestJetStreamClose(t *testing.T) {
	t.Parallel()
	w := newJetStreamWorld(t, natsServer(t).URL())
	w.send(1500, 1000)
	c := w.config()
	c.AckWait = time.Hour
	s := w.serve(c, work)
	w.await(500)
	standby := w.serve(c, work)
	s.close()
	done := w.handled()
	require.Less(t, done, w.settled, "all was handled before Close")
	w.await(w.settled)
	standby.close()
	w.verify()
	assert.EqualValues(t, w.settled, s.calls.Load()+standby.calls.Load(), "a handler was called twice for a message")
	info := w.consumer()
	assert.Equal(t, [2]int{0, 0}, [2]int{info.NumAckPending, int(info.NumPending)}, "unacked messages at JetStream")
}

// TestInboundBounds: reading stops at MaxAhead messages, or at about MaxBytes plus fetched messages, and resumes.
func TestInboundBounds(t *testing.T) {
	extended(t)
	t.Parallel()
	const n = 800
	ahead := func(c *inboundConfig) { c.MaxAhead = 100 }
	for name, tt := range map[string]struct {
		nats   bool
		set    func(c *inboundConfig)
		most   int
		reason meter.PauseReason
	}{
		"Kafka, messages":     {false, ahead, n, meter.PausedByHandlers}, // a fetch has all of them
		"JetStream, messages": {true, ahead, 100, meter.PausedByHandlers},
		"JetStream, bytes": { // plus two pulls
			true, func(c *inboundConfig) { c.MaxBytes = 20_000 }, 600, meter.PausedByBytes,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var w *inboundWorld
			if tt.nats {
				w = newJetStreamWorld(t, natsServer(t).URL()).inboundWorld
				w.base.AckWait = 10 * time.Second // an owner that is starved for 4/3 of it is replaced
			} else {
				w = newInboundWorld(t, 1)
			}
			w.send(n, n/2)
			c := w.config()
			tt.set(&c)
			seen := &seenPartitions{}
			c.observers = []observe.Observer{seen}
			t.Cleanup(func() {
				if seen.mu.Lock(); t.Failed() && len(seen.all) > 0 {
					t.Logf("first reported %+v, last %+v", seen.all[0], seen.all[len(seen.all)-1])
				}
				seen.mu.Unlock()
			})
			release := make(chan struct{})
			w.serve(c, func(*message.Message, string) error {
				<-release
				return nil
			})
			eventually(t, func() bool {
				return seen.any(func(p meter.PartitionState) bool {
					return p.Paused == tt.reason && p.Running == 16 && p.PausedFor > 3*c.AckWait/2 && p.Lag == n
				})
			}, "it pauses for longer than an owner may be silent while all slots are in use, and stays the owner")
			close(release)
			w.await(w.settled)
			w.verify()
			assert.False(t, seen.any(func(p meter.PartitionState) bool { return p.Pending > tt.most }), "too much in memory")
			assert.False(t, seen.any(func(p meter.PartitionState) bool { return !p.Owned }), "it was not the owner")
		})
	}
}

// alter changes the settings of the stream's only consumer.
func (w *jetStreamWorld) alter(change func(*jetstream.ConsumerConfig)) {
	w.t.Helper()
	js := w.newJetStream()
	consumer, err := js.Consumer(w.t.Context(), w.stream, w.consumer().Name)
	require.NoError(w.t, err)
	config := consumer.CachedInfo().Config
	change(&config)
	_, err = js.UpdateConsumer(w.t.Context(), w.stream, config)
	require.NoError(w.t, err)
}

// TestJetStreamPullLimits: a consumer with small pull limits, its own or the server's, is read nevertheless, even if
// the limits are set while it is read.
func TestJetStreamPullLimits(t *testing.T) {
	t.Parallel()
	w := newJetStreamWorld(t, natsServer(t).URL())
	w.send(20, 5)
	w.serve(w.config(), nil)
	w.await(w.settled)
	w.alter(func(c *jetstream.ConsumerConfig) { c.MaxRequestBatch, c.MaxRequestExpires = 3, 150*time.Millisecond })
	w.send(50, 5)
	w.await(w.settled)
	w.verify()
}

// TestJetStreamHeadersOnly: a consumer that delivers no payloads is refused with an error.
func TestJetStreamHeadersOnly(t *testing.T) {
	t.Parallel()
	w := newJetStreamWorld(t, natsServer(t).URL())
	w.send(5, 5)
	service := w.serve(w.config(), nil)
	w.await(w.settled)
	service.close()
	w.alter(func(c *jetstream.ConsumerConfig) { c.HeadersOnly = true })
	w.send(5, 5)
	log := newLogCapture(t)
	again, err := startInbound(w.h, w.config(), nil, log)
	require.NoError(t, err)
	t.Cleanup(again.close)
	require.Eventually(t, func() bool { return log.count("HeadersOnly") > 0 }, patience, 20*time.Millisecond)
	require.Zero(t, again.calls.Load(), "messages without payloads were handled")
}

// TestJetStreamCluster: of the three servers with the stream, the consumer's leader goes down, and with it acks that it
// had not replicated and the pinned client.
func TestJetStreamCluster(t *testing.T) {
	extended(t)
	t.Parallel()
	cluster, err := services.StartNATSCluster(t.Context(), services.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Close()) })
	w := newJetStreamWorldIn(t, inboundHandle(t), cluster.URL(), func(cfg *natsgo.StreamConfig) { cfg.Replicas = 3 })
	w.send(900, 100)
	c := w.config()
	c.AckWait = 15 * time.Second // the default: with less, an owner whose servers are busy is replaced again and again
	w.serve(c, work)
	w.serve(c, work) // a standby
	w.await(w.settled / 3)
	info := w.consumer()
	require.NotNil(t, info.Cluster)
	require.NoError(t, cluster.Node(info.Cluster.Leader).Stop())
	w.await(w.settled)
	w.verify()
}

// TestSubscriberLeavesAnIsolatedServer: of the three servers with the stream, the one that the subscriber is connected
// to is cut off from the others but still answers pings. The subscriber continues with another one.
func TestSubscriberLeavesAnIsolatedServer(t *testing.T) {
	extended(t)
	cluster := natsCluster(t)
	away, other := cluster.Nodes()[0], cluster.Nodes()[1]
	w := newJetStreamWorldIn(t, inboundHandle(t), "nats://"+other.Address(),
		func(cfg *natsgo.StreamConfig) { cfg.Replicas = 3 })
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

// hangsAt is user code that hangs when it sees a certain message, in any of the subscriber's hooks.
type hangsAt struct {
	nats.SubscriberConfig
	entered func()
	until   chan struct{}
}

func (h hangsAt) hang() {
	h.entered()
	<-h.until
}

func (h hangsAt) PartitionState(_ context.Context, s meter.PartitionState) {
	if s.Owned {
		h.hang()
	}
}

type unmarshalNATS func(*natsgo.Msg) (*message.Message, error)

func (f unmarshalNATS) Unmarshal(msg *natsgo.Msg) (*message.Message, error) { return f(msg) }

// TestJetStreamCloseWaitsForNoUserCode: whichever user code hangs, Close returns and closes the channel, and the server
// has the acks made before. When the code resumes, no handler gets a message.
func TestJetStreamCloseWaitsForNoUserCode(t *testing.T) {
	extended(t)
	t.Parallel()
	for what, change := range map[string]func(*nats.SubscriberConfig, hangsAt){
		"an observer": func(c *nats.SubscriberConfig, h hangsAt) { c.Observers = []observe.Observer{h} },
		"Key": func(c *nats.SubscriberConfig, h hangsAt) {
			c.Key = func(msg *natsgo.Msg) []byte {
				if string(msg.Data) == "bad" {
					h.hang()
				}
				return nil
			}
		},
		"the Unmarshaler": func(c *nats.SubscriberConfig, h hangsAt) {
			c.Unmarshaler = unmarshalNATS(func(msg *natsgo.Msg) (*message.Message, error) {
				if string(msg.Data) == "bad" {
					h.hang()
				}
				return (&wmnats.NATSMarshaler{}).Unmarshal(msg)
			})
		},
		"a handler": nil,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			js, stream, prefix := natsStream(t, natsServer(t).URL(), nil)
			entered := make(chan struct{})
			hook := hangsAt{entered: sync.OnceFunc(func() { close(entered) }), until: make(chan struct{})}
			cfg := nats.SubscriberConfig{
				URL: natsServer(t).URL(), Consumer: "hostile", CloseTimeout: 100 * time.Millisecond,
				Backoff: outbox.Backoff{Initial: time.Millisecond, Max: time.Millisecond},
			}
			if change != nil {
				change(&cfg, hook)
			}
			sub, err := nats.NewSubscriber(cfg, watermill.NopLogger{})
			require.NoError(t, err)
			messages, err := sub.Subscribe(t.Context(), prefix+"orders")
			require.NoError(t, err)
			publish := func(data string) {
				msg := natsgo.NewMsg(prefix + "orders")
				msg.Header.Set(wmnats.WatermillUUIDHdr, watermill.NewUUID())
				msg.Data = []byte(data)
				_, err := js.PublishMsg(msg)
				require.NoError(t, err)
			}
			publish("good")
			within(t, "the good message", messages).Ack()
			settled := func() bool {
				info := (&jetStreamWorld{js: js, stream: stream}).consumer()
				return info != nil && info.AckFloor.Stream == 1
			}
			eventually(t, settled, "the good message is acked")
			publish("bad")
			if change == nil {
				require.Equal(t, "bad", string(within(t, "the bad message", messages).Payload))
				hook.entered()
			}
			within(t, "user code is at work", entered)
			closed := make(chan struct{})
			go func() {
				defer close(closed)
				_ = sub.Close()
			}()
			within(t, "Close returns", closed)
			close(hook.until)
			for msg := range messages { // the observer hung while the bad message was being delivered
				require.Equal(t, "an observer", what)
				require.Equal(t, "bad", string(msg.Payload))
			}
			require.True(t, settled(), "JetStream lacks some acks")
		})
	}
}
