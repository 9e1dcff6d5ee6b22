package integration_test

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
)

// TestFirstMessageOfADatabase: the sequence was never used when the forwarder first reads it.
func TestFirstMessageOfADatabase(t *testing.T) {
	h := onPgx(t)
	w := startForwarder(t, h, quickConfig())
	w.idle(t)
	w.publish(t, "orders", "key", "1")
	w.arrives(t, "1")
	assert.Zero(t, w.log.count("message became pending again"), "found by the sweep, not by a normal read")
}

// TestUnkeyedMessagesUseAllLanes: messages without a key are spread over all lanes.
func TestUnkeyedMessagesUseAllLanes(t *testing.T) {
	h := onPgx(t)
	w := startForwarder(t, h, quickConfig())
	all := numbered("m", 1, 2000)
	w.publish(t, "orders", "", all...)
	w.arrives(t, all...)
	assert.Equal(t, 64, h.count(t, "select count(distinct lane) from outbox"))
	assert.Len(t, w.all(), 2000)
}

func TestLargeMessage(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		w := startForwarder(t, h, quickConfig())
		payload := strings.Repeat("\x00\xff payload ", 512<<10)
		w.publish(t, "orders", "K", payload, "next")
		w.arrives(t, payload, "next")
		assert.Equal(t, []string{payload, "next"}, w.payloads("K"))
	})
}

// TestMetadataComesOutAsItWentIn, also with characters that JSON escapes.
func TestMetadataComesOutAsItWentIn(t *testing.T) {
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
		assert.Equal(t, want, within(t, "the message arrives", got))
	})
}

func TestDelayedMessages(t *testing.T) {
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
		w.arrives(t, "now", "past") // although a delayed message of their key was written first
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

// TestManyDueAtOnce: messages that fall due together are published without waiting for a poll after every few.
func TestManyDueAtOnce(t *testing.T) {
	extended(t)
	h := onPgx(t)
	h.exec(t, `insert into outbox (uuid, topic, key, payload, due_at)
		select gen_random_uuid(), 'orders', 'K', convert_to(n::text, 'UTF8'), now() from generate_series(1, 5000) n`)
	cfg := quickConfig()
	cfg.PollInterval = time.Hour
	w := startForwarder(t, h, cfg)
	w.arrives(t, numbered("", 1, 5000)...)
}

// TestOddMetadata inserts rows by SQL with metadata that no message can carry, or with a generation that package admin
// never assigns. Each row is settled; one that cannot be sent dies with a reason and leaves a dead letter.
func TestOddMetadata(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		for _, topic := range []string{"good", "bad"} {
			for _, metadata := range []string{`null`, `[]`, `{"n": 5}`, `{"outbox_generation": 5}`, `"text"`} {
				h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, metadata)
					VALUES ($1, $2, $1, '', $3::text::jsonb)`,
					topic+metadata, topic, metadata)
			}
			for _, generation := range []string{``, `7`, `x`} { // due, and failing immediately
				h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, metadata, due_at)
					VALUES ($1, $2, $1, '', jsonb_build_object('outbox_generation', $3::text), now())`,
					topic+generation, topic, generation)
			}
		}
		cfg := classifyingConfig()
		cfg.DeadLetterTopic = "letters"
		cfg.MaxAttempts, cfg.MinDeadAge = 1, -1
		cfg.Classify = func(error) forwarder.Verdict { return forwarder.Permanent }
		w := startForwarderOn(t, h, cfg, func(topic string, _ *message.Message) error {
			if topic == "bad" {
				return errors.New("refused")
			}
			return nil
		})
		h.reaches(t, 0, "a row is never settled",
			`SELECT count(*)::int FROM outbox WHERE published_at IS NULL AND dead_at IS NULL`)
		const unreadable, bad = 4 + 4, 4 + 8
		assert.Equal(t, unreadable, h.count(t, `SELECT count(*)::int FROM outbox WHERE dead_at IS NOT NULL `+
			`AND last_error LIKE '%metadata is not%'`))
		assert.Equal(t, bad, h.count(t, `SELECT count(*)::int FROM outbox WHERE dead_at IS NOT NULL`))
		assert.Equal(t, bad,
			h.count(t, `SELECT count(*)::int FROM outbox WHERE topic = 'letters' AND published_at IS NOT NULL`))
		assert.Equal(t, bad, h.count(t, `SELECT count(DISTINCT metadata->>'uuid_poisoned')::int FROM outbox `+
			`WHERE topic = 'letters'`))
		assert.Equal(t, 4, h.count(t, `SELECT count(*)::int FROM outbox `+
			`WHERE topic = 'good' AND published_at IS NOT NULL`))
		w.idle(t)
	})
}
