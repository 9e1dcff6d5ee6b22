package integration_test

import (
	"context"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/middleware"
)

// TestDeadLetterTopic: a message that dies leaves a letter, whose names Watermill's poison queue uses too.
func TestDeadLetterTopic(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		cfg := classifyingConfig()
		cfg.DeadLetterTopic, cfg.BlockKeyOnDead = "dead_letters", true
		var mu sync.Mutex
		var letters []*message.Message
		refuseLetters := false
		w := startForwarderOn(t, h, cfg, func(topic string, msg *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if topic == "dead_letters" && !refuseLetters {
				letters = append(letters, msg)
				return nil
			}
			if string(msg.Payload) == "\x00bad" {
				return errMalformed
			}
			return nil
		})
		received := func() []*message.Message {
			mu.Lock()
			defer mu.Unlock()
			return letters
		}
		pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
		require.NoError(t, err)
		bad := newMessage("\x00bad")
		bad.Metadata = message.Metadata{"a": "b", outbox.MetadataKey: "K", outbox.MetadataGeneration: "3"}
		outbox.SetDelay(bad, time.Millisecond)
		require.NoError(t, pub.Publish("orders", bad))
		eventually(t, func() bool { return len(received()) == 1 }, "the letter is sent, though its key is blocked")
		letter := received()[0]
		assert.Equal(t, bad.Payload, letter.Payload)
		assert.NotEqual(t, bad.UUID, letter.UUID)
		metadata := maps.Clone(letter.Metadata)
		assert.NotEmpty(t, metadata[middleware.MetadataHandler])
		delete(metadata, middleware.MetadataHandler)
		assert.Equal(t, message.Metadata{
			"a": "b", outbox.MetadataKey: "K",
			middleware.MetadataUUID: bad.UUID, wmiddleware.PoisonedTopicKey: "orders",
			wmiddleware.ReasonForPoisonedKey: errMalformed.Error(),
			middleware.MetadataService:       "default", wmiddleware.PoisonedSubscriberKey: "outbox",
		}, metadata)
		assert.Equal(t, 1, h.count(t, "select count(*) from outbox where dead_at is not null and topic = 'orders'"))

		// A letter that dies has no letter, or there would be no end.
		mu.Lock()
		refuseLetters = true
		mu.Unlock()
		require.NoError(t, pub.Publish("orders", newMessage("\x00bad")))
		eventually(t, func() bool { return h.count(t, "select count(*) from outbox where dead_at is not null") == 3 },
			"message and letter are dead")
		w.idle(t)
		assert.Equal(t, 4, h.count(t, "select count(*) from outbox"))
	})
}

// TestNoDeathWithoutItsLetter: where the letter cannot be written, the message is not dead.
func TestNoDeathWithoutItsLetter(t *testing.T) {
	h := onPgx(t)
	h.publish(t, "orders", "K", "1")
	h.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin raise 'refused'; end $$`)
	h.exec(t, `create trigger refuse before insert on outbox for each row execute function refuse()`)
	cfg := classifyingConfig()
	cfg.DeadLetterTopic = "dead_letters"
	w := startForwarderOn(t, h, cfg, func(string, *message.Message) error { return errMalformed })
	eventually(t, func() bool { return w.log.count("refused") > 0 }, "the letter is refused")
	assert.Zero(t, h.count(t, "select count(*) from outbox where dead_at is not null"))
	h.exec(t, `drop function refuse cascade`)
	eventually(t, func() bool { return h.count(t, "select count(*) from outbox where topic = 'dead_letters'") == 1 },
		"it is written after all")
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox where dead_at is not null and topic = 'orders'"))
}

// TestDeadLettersNeedARoleThatWrites: the forwarder says so when it starts, and not at the first death.
func TestDeadLettersNeedARoleThatWrites(t *testing.T) {
	t.Parallel()
	owner := newPgxHandle(t, newMigratedDatabase(t))
	role := "letters_" + owner.pool.Config().ConnConfig.Database
	owner.exec(t, `create role `+pgx.Identifier{role}.Sanitize()+` nologin`)
	t.Cleanup(func() {
		_, err := owner.pool.Exec(context.Background(), `drop owned by `+pgx.Identifier{role}.Sanitize()+
			`; drop role `+pgx.Identifier{role}.Sanitize())
		require.NoError(t, err)
	})
	grantAll := `grant select, update, delete on all tables in schema public to `
	owner.exec(t, grantAll+pgx.Identifier{role}.Sanitize())
	owner.exec(t, `grant insert on outbox_lanes, outbox_forwarders, outbox_topics, outbox_life to `+
		pgx.Identifier{role}.Sanitize())
	owner.exec(t, `grant select on all sequences in schema public to `+pgx.Identifier{role}.Sanitize())
	h := pgxHandle(t, "role", owner.url, func(cfg *pgxpool.Config) { cfg.ConnConfig.RuntimeParams["role"] = role })
	f, err := forwarder.New(h.db, newFakeBroker(), forwarder.Config{DeadLetterTopic: "dead_letters"}, nil)
	require.NoError(t, err)
	require.ErrorContains(t, f.Run(t.Context()), "DeadLetterTopic is set and the role may not insert")
}
