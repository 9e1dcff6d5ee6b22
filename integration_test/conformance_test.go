package integration_test

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/outboxtest"
	"github.com/millrace-go/watermill-outbox/queue"
)

// What a handle promises whatever is behind it: the same functions over Postgres and over the database in memory of
// package outboxtest. They see the outbox by outboxtest.Drain, which on Postgres is a forwarder. TestIBX does the same
// for the inbox.

// promise finds an empty outbox and leaves one.
type promise struct {
	name string
	test func(t *testing.T, s subject)
}

var promises = [][]promise{promisesOfTransactions, promisesOfHandlers, promisesOfStores}

// subject is what a promise is asked of: a handle, and another one on another database.
type subject struct{ db, other *outbox.DB }

func TestConformance(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	conforms(t, subject{newPgxHandle(t, newMigratedDatabase(t)).db, newPgxHandle(t, newMigratedDatabase(t)).db})
}

// TestConformanceInMemory needs no Postgres.
func TestConformanceInMemory(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	conforms(t, subject{outboxtest.NewDB(t), outboxtest.NewDB(t)})
}

func conforms(t *testing.T, s subject) {
	for _, some := range promises {
		for _, p := range some {
			t.Run(p.name, func(t *testing.T) { p.test(t, s) })
		}
	}
}

func (s subject) publisher(t testing.TB, cfg outbox.PublisherConfig) *outbox.Publisher {
	t.Helper()
	pub, err := outbox.NewPublisher(s.db, cfg, nil)
	require.NoError(t, err)
	return pub
}

func (s subject) store(t testing.TB, cfg queue.StoreConfig) *queue.Store {
	t.Helper()
	store, err := queue.NewStore(s.db, cfg, nil)
	require.NoError(t, err)
	return store
}

// leaves says which payloads leave now, in this order.
func (s subject) leaves(t testing.TB, payloads ...string) {
	t.Helper()
	assert.Equal(t, payloads, payloadsOf(outboxtest.Drain(t, s.db)))
}

func payloadsOf(msgs []outboxtest.Message) (payloads []string) {
	for _, msg := range msgs {
		payloads = append(payloads, string(msg.Payload))
	}
	return payloads
}

// ordered is a message of the one key whose order the promises look at.
func ordered(payload string) *message.Message {
	msg := newMessage(payload)
	outbox.SetKey(msg, "key")
	return msg
}

// sqlState is that of an error.
func sqlState(err error) string {
	var e interface{ SQLState() string }
	if errors.As(err, &e) {
		return e.SQLState()
	}
	return ""
}
