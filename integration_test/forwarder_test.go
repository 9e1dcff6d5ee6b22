package integration_test

import (
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
)

// TestFirstMessageOfADatabase: the sequence was never used when the forwarder first reads it.
func TestFirstMessageOfADatabase(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		w := startForwarder(t, h, quickConfig())
		w.idle(t)
		w.publish(t, "orders", "key", "1")
		w.arrives(t, "1")
		assert.Zero(t, w.log.count("message became pending again"), "by the sweep, which is not how it should be")
	})
}

// TestUnkeyedMessagesUseAllLanes: nothing keeps messages without a key from being spread.
func TestUnkeyedMessagesUseAllLanes(t *testing.T) {
	h := onPgx(t)
	w := startForwarder(t, h, quickConfig())
	all := numbered("m", 1, 10000)
	w.publish(t, "orders", "", all...)
	w.arrives(t, all...)
	assert.Equal(t, 64, h.count(t, "select count(distinct lane) from outbox"))
	assert.Len(t, w.all(), 10000)
}

func TestLargeMessage(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		w := startForwarder(t, h, quickConfig())
		payload := strings.Repeat("\x00\xff payload ", 512<<10)
		w.publish(t, "orders", "K", payload, "next")
		w.arrives(t, payload, "next")
		assert.Equal(t, []string{payload, "next"}, w.payloads("K"))
	})
}

// TestKeyOnTwoTopics: a key is one sequence whatever its topics, also while one of them fails.
func TestKeyOnTwoTopics(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		var tries atomic.Int64
		w := startForwarderOn(t, h, classifyingConfig(), func(topic string, _ *message.Message) error {
			if topic == "billing" && tries.Add(1) < 5 {
				return errDown
			}
			if topic == "orders" && tries.Add(1)%3 == 0 {
				return errRefused
			}
			return nil
		})
		for i := 1; i <= 40; i++ {
			w.publish(t, []string{"orders", "billing", "stock"}[i%3], "K", itoa(i))
		}
		w.arrives(t, numbered("", 1, 40)...)
		assert.Equal(t, numbered("", 1, 40), w.payloads("K"))
	})
}

// TestMetadataComesOutAsItWentIn also for what JSON escapes.
func TestMetadataComesOutAsItWentIn(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		got := make(chan message.Metadata, 1)
		startForwarderOn(t, h, quickConfig(), func(_ string, msg *message.Message) error {
			got <- maps.Clone(msg.Metadata)
			return nil
		})
		msg := newMessage("1")
		msg.Metadata = message.Metadata{"quote": `"\ <>&`, "ünï": "\u2028\x01 é", "empty": "", outbox.MetadataKey: "K"}
		want := maps.Clone(msg.Metadata)
		pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
		require.NoError(t, err)
		require.NoError(t, pub.Publish("orders", msg))
		select {
		case metadata := <-got:
			assert.Equal(t, want, metadata)
		case <-time.After(patience):
			t.Fatal("no message came")
		}
	})
}
