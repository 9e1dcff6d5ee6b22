package integration_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
)

// errOdd is an error without a verdict.
var errOdd = errors.New("broken pipe, or something")

// mortalConfig makes messages die soon.
func mortalConfig() forwarder.Config {
	cfg := quickConfig()
	cfg.MaxAttempts, cfg.MinDeadAge = 3, -1
	return cfg
}

const dead = "select count(*) from outbox where dead_at is not null"

// TestAnOutageThatNobodyRecognisesKillsNothing: the publisher's errors have no verdict, and during the outage each
// message could reach MaxAttempts many times.
func TestAnOutageThatNobodyRecognisesKillsNothing(t *testing.T) {
	h := onPgx(t)
	const keys, perKey = 20, 20
	topics := []string{"orders", "bills", "letters"}
	var all []string
	for k := range keys {
		for n := range perKey {
			payload := fmt.Sprintf("k%d-%d", k, n)
			h.publish(t, topics[k%2], fmt.Sprint("key", k), payload)
			all = append(all, payload)
		}
	}
	h.publish(t, "orders", "", numbered("u", 1, 970)...)
	for i := range 30 { // one in each of many topics
		h.publish(t, fmt.Sprint("rare", i), "", fmt.Sprint("r", i))
		all = append(all, fmt.Sprint("r", i))
	}
	all = append(all, numbered("u", 1, 970)...)

	var down atomic.Bool
	var failed atomic.Int64
	down.Store(true)
	cfg := mortalConfig()
	cfg.MaxAttempts = 5
	cfg.Backoff = outbox.Backoff{Initial: 500 * time.Millisecond, Max: time.Second}
	w := startForwarderOn(t, h, cfg, func(string, *message.Message) error {
		if down.Load() {
			failed.Add(1)
			return errOdd
		}
		return nil
	})
	eventually(t, func() bool {
		return w.log.count("all its publishes fail") > 0 && failed.Load() > 200
	}, "the topic is tried again and again")
	charged := h.count(t, "select coalesce(sum(attempts), 0)::int from outbox")
	assert.LessOrEqual(t, charged, 4, "one attempt each of the messages that failed before the breaker opened")
	assert.Zero(t, h.count(t, dead))

	down.Store(false)
	w.arrives(t, all...)
	for k := range keys {
		var want []string
		for n := range perKey {
			want = append(want, fmt.Sprintf("k%d-%d", k, n))
		}
		assert.Equal(t, want, w.payloads(fmt.Sprint("key", k)))
	}
	assert.Zero(t, h.count(t, dead))
}

// TestAMessageThatFailsAmongOthersDies: its error has no verdict, but others of its topic are published.
func TestAMessageThatFailsAmongOthersDies(t *testing.T) {
	h := onPgx(t)
	w := startForwarder(t, h, mortalConfig())
	w.answers(func(_ string, msg *message.Message) error {
		if strings.HasPrefix(string(msg.Payload), "poison") {
			return errOdd
		}
		return nil
	})
	// A single message: nothing shows whether its topic works.
	w.publish(t, "quiet", "q", "poison-alone")
	eventually(t, func() bool { return h.count(t, dead) == 1 }, "a message that fails alone is dead")

	// A message among others.
	w.publish(t, "orders", "k", "poison-1", "behind")
	w.publish(t, "orders", "", numbered("m", 1, 200)...)
	w.arrives(t, append(numbered("m", 1, 200), "behind")...)
	eventually(t, func() bool { return h.count(t, dead) == 2 }, "a message that fails among others is dead")
	assert.LessOrEqual(t, w.triedTimes("poison-1"), 6, "some attempts may not be charged")

	// Very many, concurrently and one after another, in a topic with few others: they delay no other message, and die.
	bad := numbered("poison-x", 1, 100)
	for i, payload := range bad {
		w.publish(t, "bulk", fmt.Sprint("b", i), payload)
	}
	for i := range 10 {
		good := fmt.Sprint("good", i)
		begun := time.Now()
		w.publish(t, "bulk", good, good)
		w.arrives(t, good)
		t.Logf("%s took %s", good, time.Since(begun))
	}
	for i := 0; h.count(t, dead) < 2+len(bad); i++ {
		require.Less(t, i, 2000, "%d are dead", h.count(t, dead))
		good := fmt.Sprint("more", i)
		w.publish(t, "bulk", "", good)
		w.arrives(t, good)
	}
}

// TestDrainOfAPoisonMessage: a message that fails alone is charged immediately, so that a job that drains the outbox
// leaves a trace of the failure.
func TestDrainOfAPoisonMessage(t *testing.T) {
	h := onPgx(t)
	broker := newFakeBroker()
	broker.answers(func(string, *message.Message) error { return errOdd })
	f, err := forwarder.New(h.db, broker, quickConfig(), newLogCapture(t))
	require.NoError(t, err)
	h.publish(t, "orders", "", "odd")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, f.Drain(ctx))
	require.NoError(t, f.Close())
	assert.Equal(t, errOdd.Error(), value[string](t, h, "select last_error from outbox where attempts > 0"))
}

// TestWatermillAMQPWithoutConnectionChargesNothing: its publisher returns no verdict when it is not connected, but a
// method reports it. The message is the only one, so nothing else would show it.
func TestWatermillAMQPWithoutConnectionChargesNothing(t *testing.T) {
	extended(t)
	h := onPgx(t)
	log := newLogCapture(t)
	lost := &amqp.Publisher{ConnectionWrapper: &amqp.ConnectionWrapper{}}
	f, err := forwarder.New(h.db, lost, mortalConfig(), log)
	require.NoError(t, err)
	h.publish(t, "orders", "", "1")
	runInBackground(t, f)
	h.reaches(t, 1, "the topic is paused", "select count(*) from outbox_topics where reason like 'not connected%'")
	assert.Zero(t, h.count(t, "select count(*) from outbox where attempts > 0"), "charged")
}
