package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/services"
)

// committed is the offset of the group in partition 0; -1 = none.
func (w *inboundWorld) committed() int64 {
	offsets, err := w.clusterAdmin().ListConsumerGroupOffsets(w.group, map[string][]int32{w.topic: {0}})
	require.NoError(w.t, err)
	return offsets.GetBlock(w.topic, 0).Offset
}

// TestInboundCloseCommitsEveryAck: what was acked before the end of Close is not delivered again, whoever commits.
func TestInboundCloseCommitsEveryAck(t *testing.T) {
	t.Parallel()
	for name, manual := range map[string]bool{"sarama commits": false, "we commit": true} {
		t.Run(name, func(t *testing.T) {
			if manual {
				extended(t)
			}
			t.Parallel()
			w := newInboundWorld(t, 1)
			w.send(1500, 1000)
			c := w.config()
			c.ManualCommit = manual
			s := w.serve(c, work)
			w.await(500)
			s.close()
			done := w.handled()
			require.Less(t, done, w.settled, "all was handled before Close")
			again := w.serve(c, work)
			w.await(w.settled)
			again.close()
			w.verify()
			// One that is behind another of its key may be committed late; what is above the watermark is delivered again and
			// skipped.
			assert.EqualValues(t, w.settled-done, again.calls.Load(), "handlers that were called for a message twice")
			assert.EqualValues(t, w.settled, w.committed())
		})
	}
}

// TestInboundBrokerRestart: the broker goes away and comes back.
func TestInboundBrokerRestart(t *testing.T) {
	extended(t)
	t.Parallel()
	restarted := func(t *testing.T, w *inboundWorld, leave func() error, restart func(context.Context) error) {
		w.send(2000, 200)
		w.serve(w.config(), work)
		w.await(w.settled / 4)
		require.NoError(t, leave())
		time.Sleep(time.Second) // for which it is away
		require.NoError(t, restart(t.Context()))
		w.await(w.settled)
		w.verify()
	}
	t.Run("Kafka", func(t *testing.T) {
		server, err := services.StartKafka(t.Context(), services.Options{QuickStart: true})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, server.Close()) })
		if server.Fake() {
			t.Skip("the fake broker does not restart")
		}
		restarted(t, newInboundWorldOn(t, server, 2), server.Kill, server.Restart)
	})
	t.Run("JetStream", func(t *testing.T) {
		server, err := services.StartNATS(t.Context(), services.Options{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, server.Close()) })
		restarted(t, newJetStreamWorld(t, server.URL()).inboundWorld, server.Stop, server.Restart)
	})
}

// TestInboundSlowHandlersAtRevoke: handlers that do not end within RevokeTimeout are given up; their messages are
// delivered to the new owner, and applied once all the same.
func TestInboundSlowHandlersAtRevoke(t *testing.T) {
	extended(t)
	t.Parallel()
	w := newInboundWorld(t, 2)
	w.send(400, 50)
	c := w.config()
	c.RevokeTimeout = 200 * time.Millisecond
	stuck := make(chan struct{})
	entered := make(chan struct{}, 16)
	w.serve(c, func(*message.Message, string) error {
		select {
		case entered <- struct{}{}:
		default:
		}
		<-stuck
		return nil
	})
	within(t, "a handler is at work", entered)
	second := w.serve(c, work)
	eventually(t, func() bool { return second.calls.Load() > 0 }, "the group does not wait for handlers for ever")
	close(stuck)
	w.await(w.settled)
	w.verify()
}
