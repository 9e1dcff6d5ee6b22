package integration_test

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

// TestOddMetadata has rows that SQL has written, with metadata that no message can carry, or with a generation that
// package admin would not give: each is settled, and those that cannot be sent die and leave a letter.
func TestOddMetadata(t *testing.T) {
	h := onPgx(t)
	odd := []string{`null`, `[]`, `{"n": 5}`, `{"outbox_generation": 5}`, `"text"`}
	for _, metadata := range odd {
		h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, metadata) VALUES ('odd ' || $1, 'bad', $1, '', $1::jsonb)`,
			metadata)
	}
	for _, generation := range []string{``, `7`, `x`} {
		for _, topic := range []string{"good", "bad"} { // due, and failing at once
			h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, metadata, due_at)
				VALUES ($1 || $2, $1, $1 || $2, '', jsonb_build_object('outbox_generation', $2::text), now())`, topic, generation)
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
	eventually(t, func() bool {
		return h.count(t, `SELECT count(*)::int FROM outbox WHERE published_at IS NULL AND dead_at IS NULL`) == 0
	}, "a row is never settled")
	const bad = 5 + 3
	assert.Equal(t, bad, h.count(t, `SELECT count(*)::int FROM outbox WHERE dead_at IS NOT NULL`))
	assert.Equal(t, bad,
		h.count(t, `SELECT count(*)::int FROM outbox WHERE topic = 'letters' AND published_at IS NOT NULL`))
	assert.Equal(t, bad, h.count(t, `SELECT count(DISTINCT metadata->>'uuid_poisoned')::int FROM outbox `+
		`WHERE topic = 'letters'`))
	assert.Equal(t, 3, h.count(t, `SELECT count(*)::int FROM outbox WHERE topic = 'good' AND published_at IS NOT NULL`))
	w.idle(t)
}
