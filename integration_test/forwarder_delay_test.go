package integration_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
)

func TestDelayedMessages(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		cfg := quickConfig()
		w := startForwarder(t, h, cfg)
		pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
		require.NoError(t, err)
		send := func(payload string, delay func(*message.Message)) {
			msg := newMessage(payload)
			outbox.SetKey(msg, "K")
			if delay != nil {
				delay(msg)
			}
			require.NoError(t, pub.Publish("orders", msg))
		}
		send("later", func(m *message.Message) { outbox.SetDelay(m, time.Hour) })
		send("past", func(m *message.Message) { outbox.SetDueAt(m, time.Now().Add(-time.Hour)) })
		send("now", nil)
		w.arrives(t, "now", "past") // though a delayed message of their key came first
		begun := time.Now()
		send("for", func(m *message.Message) { outbox.SetDelay(m, 300*time.Millisecond) })
		send("until", func(m *message.Message) { outbox.SetDueAt(m, begun.Add(500*time.Millisecond)) })
		w.arrives(t, "for", "until")
		for _, m := range w.all() {
			switch m.payload {
			case "for":
				assert.GreaterOrEqual(t, m.at.Sub(begun), 290*time.Millisecond)
			case "until":
				assert.GreaterOrEqual(t, m.at.Sub(begun), 490*time.Millisecond)
			case "later":
				t.Error("sent an hour too early")
			}
		}
	})
}

// TestManyDueAtOnce: what falls due together leaves without waiting for a poll after every few.
func TestManyDueAtOnce(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `insert into outbox (uuid, topic, key, payload, due_at)
		select gen_random_uuid(), 'orders', 'K', convert_to(n::text, 'UTF8'), now() from generate_series(1, 5000) n`)
	cfg := quickConfig()
	cfg.PollInterval = time.Hour
	w := startForwarder(t, h, cfg)
	w.arrives(t, numbered("", 1, 5000)...)
}
