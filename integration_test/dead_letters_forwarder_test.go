package integration_test

import (
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/middleware"
)

func TestPermanentIsDeadAtOnce(t *testing.T) {
	h := onPgx(t)
	w := startForwarder(t, h, classifyingConfig())
	w.answers(func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "bad" {
			return errMalformed
		}
		return nil
	})
	w.publish(t, "orders", "K", "1", "bad", "2")
	w.publish(t, "orders", "", "bad")
	w.arrives(t, "1", "2")
	h.reaches(t, 2, "both are dead", "select count(*) from outbox where dead_at is not null")
	assert.Equal(t, 2, w.triedTimes("bad"))
	eventually(t, func() bool { return w.log.count("message died") == 2 }, "their deaths are reported")

	w.answers(nil)
	h.exec(t, "update outbox set dead_at = null, due_at = now() where dead_at is not null")
	h.reaches(t, 0, "both are sent after all", "select count(*) from outbox where published_at is null")
}

// TestDeathNeedsAttemptsAndAge: a refused message outlives MaxAttempts until it is as old as MinDeadAge. Then it is
// dead, and its key continues.
func TestDeathNeedsAttemptsAndAge(t *testing.T) {
	h := onPgx(t)
	cfg := quickConfig()
	cfg.MaxAttempts = 3
	w := startForwarder(t, h, cfg)
	w.answers(refuse("bad"))
	w.publish(t, "orders", "K", "bad", "next")
	w.wait(t, "it outlives its attempts", func() bool { return w.triedTimes("bad") >= 6 })
	assert.Zero(t, h.count(t, "select count(*) from outbox where dead_at is not null"))
	h.exec(t, "update outbox set created_at = now() - interval '61 minutes'")
	w.arrives(t, "next")
	assert.GreaterOrEqual(t, h.count(t, "select attempts from outbox where dead_at is not null"), 6)

	cfg.MinDeadAge = -1
	other := startForwarderOn(t, newPgxHandle(t, newMigratedDatabase(t)), cfg, refuse("bad"))
	other.publish(t, "orders", "K", "bad", "next")
	other.arrives(t, "next")
	assert.Equal(t, 3, other.triedTimes("bad"))
}

func TestOperator(t *testing.T) {
	h := onPgx(t)
	cfg := quickConfig()
	cfg.Backoff = outbox.Backoff{Initial: time.Hour, Max: time.Hour}
	w := startForwarderOn(t, h, cfg, refuse("1"))
	w.publish(t, "orders", "K", "1", "2")
	waiting := func() bool { return h.count(t, "select count(*) from outbox where attempts > 0") == 1 }
	eventually(t, waiting, "1 waits")

	h.exec(t, "update outbox set due_at = now() where attempts > 0")
	w.wait(t, "an operator has it tried again", func() bool { return w.triedTimes("1") == 2 })
	h.reaches(t, 2, "it is refused again", "select attempts from outbox where attempts > 0")
	assert.Empty(t, w.payloads("K"))
	w.answers(nil)
	h.exec(t, "update outbox set due_at = now() where attempts > 0")
	w.arrives(t, "1", "2")
	assert.Equal(t, []string{"1", "2"}, w.payloads("K"))

	t.Run("delete a head", func(t *testing.T) {
		h := newPgxHandle(t, newMigratedDatabase(t))
		cfg := quickConfig()
		cfg.Backoff = outbox.Backoff{Initial: 300 * time.Millisecond, Max: 300 * time.Millisecond}
		w := startForwarderOn(t, h, cfg, refuse("1"))
		w.publish(t, "orders", "K", "1", "2")
		h.reaches(t, 1, "1 waits", "select count(*) from outbox where attempts > 0")
		h.exec(t, "delete from outbox where attempts > 0")
		w.arrives(t, "2")
	})
}

func TestBlockKeyOnDead(t *testing.T) {
	h := onPgx(t)
	cfg := classifyingConfig()
	cfg.BlockKeyOnDead = true
	w := world{handle: h, fakeBroker: newFakeBroker(), log: newLogCapture(t)}
	w.answers(func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "1" {
			return errMalformed
		}
		return nil
	})
	first, err := forwarder.New(h.db, w.fakeBroker, cfg, w.log)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- first.Run(t.Context()) }()
	w.publish(t, "orders", "K", "1", "2")
	w.publish(t, "orders", "L", "other")
	h.reaches(t, 1, "1 is dead", "select count(*) from outbox where dead_at is not null")
	w.publish(t, "orders", "K", "3")
	w.arrives(t, "other")
	require.NoError(t, first.Close())
	require.NoError(t, <-ended)

	w.Forwarder = w.join(t, h, cfg) // the next forwarder blocks the key too
	w.publish(t, "orders", "K", "4")
	w.idle(t)
	assert.Empty(t, w.payloads("K"))
	w.answers(nil)
	h.exec(t, "update outbox set dead_at = null, due_at = now() where dead_at is not null")
	w.arrives(t, "4")
	assert.Equal(t, []string{"1", "2", "3", "4"}, w.payloads("K"))
}

// TestBlockKeyOnDeadThatAnOperatorGaveUp: a message is declared dead while it waits behind another.
func TestBlockKeyOnDeadThatAnOperatorGaveUp(t *testing.T) {
	h := onPgx(t)
	cfg := quickConfig()
	cfg.BlockKeyOnDead = true
	w := startForwarderOn(t, h, cfg, refuse("1"))
	w.publish(t, "orders", "K", "1", "2", "3")
	w.wait(t, "1 is refused", func() bool { return w.triedTimes("1") >= 2 })
	h.exec(t, "update outbox set dead_at = now() where convert_from(payload, 'UTF8') = '2'")
	w.answers(nil)
	w.publish(t, "orders", "L", "other")
	w.arrives(t, "1", "other")
	w.idle(t)
	assert.Equal(t, []string{"1"}, w.payloads("K"))
	h.exec(t, "update outbox set dead_at = null, due_at = now(), attempts = 1 where dead_at is not null")
	w.arrives(t, "3")
	assert.Equal(t, []string{"1", "2", "3"}, w.payloads("K"))
}

// TestDeathIsRemembered: a death whose reply was lost is recorded again, and the message is dead again; otherwise its
// key would be released although BlockKeyOnDead holds it.
func TestDeathIsRemembered(t *testing.T) {
	h := onPgx(t)
	h.publish(t, "orders", "K", "1")
	const owner = "00000000-0000-0000-0000-000000000001"
	h.exec(t, "insert into outbox_lanes (scope, lane, owner, epoch) select 's', lane, $1::text::uuid, 1 from outbox",
		owner)
	for range 2 {
		var outcome string
		require.NoError(t, drive.Collect(t.Context(), (*core.DB)(h.db), func(rows drive.Rows) error {
			return rows.Scan(nil, &outcome)
		},
			sqltext.Tables{}.Render(sqltext.SettleFailed),
			"s", owner, []int64{1}, []string{value[string](t, h, "select uuid from outbox")},
			[]int64{int64(value[int](t, h, "select lane::int from outbox"))}, []int64{1}, []int64{1},
			[]float64{1}, []string{"malformed"}, []float64{0}))
		assert.Equal(t, "dead", outcome)
	}
}

// TestDeadLetterTopic: a message that dies leaves a dead letter with the metadata names of Watermill's poison queue.
func TestDeadLetterTopic(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		cfg := classifyingConfig()
		cfg.DeadLetterTopic, cfg.BlockKeyOnDead = "dead_letters", true
		var mu sync.Mutex
		var deadLetters []*message.Message
		refuseDeadLetters := false
		w := startForwarderOn(t, h, cfg, func(topic string, msg *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if topic == "dead_letters" && !refuseDeadLetters {
				deadLetters = append(deadLetters, msg)
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
			return deadLetters
		}
		pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
		require.NoError(t, err)
		bad := newMessage("\x00bad")
		bad.Metadata = message.Metadata{"a": "b", outbox.MetadataKey: "K", outbox.MetadataGeneration: "3"}
		outbox.SetDelay(bad, time.Millisecond)
		require.NoError(t, pub.Publish("orders", bad))
		eventually(t, func() bool { return len(received()) == 1 }, "the dead letter is published although its key is blocked")
		deadLetter := received()[0]
		assert.Equal(t, bad.Payload, deadLetter.Payload)
		assert.NotEqual(t, bad.UUID, deadLetter.UUID)
		metadata := maps.Clone(deadLetter.Metadata)
		assert.NotEmpty(t, metadata[wmiddleware.PoisonedHandlerKey])
		delete(metadata, wmiddleware.PoisonedHandlerKey)
		assert.Equal(t, message.Metadata{
			"a": "b", outbox.MetadataKey: "K",
			"uuid_poisoned": bad.UUID, wmiddleware.PoisonedTopicKey: "orders",
			wmiddleware.ReasonForPoisonedKey: errMalformed.Error(),
			"service_poisoned":               "default", wmiddleware.PoisonedSubscriberKey: "outbox",
		}, metadata)
		assert.Equal(t, 1, h.count(t, "select count(*) from outbox where dead_at is not null and topic = 'orders'"))

		// A dead letter that dies gets no dead letter, or this would never end.
		mu.Lock()
		refuseDeadLetters = true
		mu.Unlock()
		require.NoError(t, pub.Publish("orders", newMessage("\x00bad")))
		h.reaches(t, 3, "message and dead letter are dead", "select count(*) from outbox where dead_at is not null")
		w.idle(t)
		assert.Equal(t, 4, h.count(t, "select count(*) from outbox"))
	})
}

// TestNoDeathWithoutItsDeadLetter: if the dead letter cannot be written, the message is not dead.
func TestNoDeathWithoutItsDeadLetter(t *testing.T) {
	h := onPgx(t)
	h.publish(t, "orders", "K", "1")
	h.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin raise 'refused'; end $$`)
	h.exec(t, `create trigger refuse before insert on outbox for each row execute function refuse()`)
	cfg := classifyingConfig()
	cfg.DeadLetterTopic = "dead_letters"
	w := startForwarderOn(t, h, cfg, func(string, *message.Message) error { return errMalformed })
	eventually(t, func() bool { return w.log.count("refused") > 0 }, "the dead letter is refused")
	assert.Zero(t, h.count(t, "select count(*) from outbox where dead_at is not null"))
	h.exec(t, `drop function refuse cascade`)
	h.reaches(t, 1, "the dead letter is written after all", "select count(*) from outbox where topic = 'dead_letters'")
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox where dead_at is not null and topic = 'orders'"))
}

// TestDeadLettersNeedARoleThatWrites: the forwarder returns the error at start, not at the first death.
func TestDeadLettersNeedARoleThatWrites(t *testing.T) {
	t.Parallel()
	owner := newPgxHandle(t, newMigratedDatabase(t))
	role := newRole(t, owner)
	owner.exec(t, `grant select, update, delete on all tables in schema public to `+role)
	owner.exec(t, `grant insert on outbox_lanes, outbox_forwarders, outbox_topics, outbox_life to `+role)
	owner.exec(t, `grant select on all sequences in schema public to `+role)
	h := newPgxHandle(t, owner.url+"&role="+role)
	f, err := forwarder.New(h.db, newFakeBroker(), forwarder.Config{DeadLetterTopic: "dead_letters"}, nil)
	require.NoError(t, err)
	require.ErrorContains(t, f.Run(t.Context()), "DeadLetterTopic is set and the role may not insert")
}

// TestDeathBehindAnOutbox: a Subscriber's message dies at the Subscriber's limits, with its dead letter. While that
// cannot be written, it stays alive.
func TestDeathBehindAnOutbox(t *testing.T) {
	h := onPgx(t)
	cfg := subscribing(quickConfig())
	cfg.Forwarder.MaxAttempts, cfg.Forwarder.CleanInterval = 3, 50*time.Millisecond
	h.exec(t, `alter table outbox add constraint no_dead_letters check (topic <> 'dead_letters') not valid`)
	h.exec(t, `insert into outbox (uuid, topic, key, payload, created_at)
		values ('old', 'orders', 'K', '', now() - interval '2 hours')`)
	log := newLogCapture(t)
	startRouter(t, func(r *message.Router) {
		r.AddMiddleware(stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{}, log)...)
		r.AddConsumerHandler("h", "orders", startSubscriber(t, h, cfg), func(*message.Message) error { return errHandler })
	})
	eventually(t, func() bool {
		return h.count(t, `select count(*) from outbox where attempts = 2 and dead_at is null
			and last_error like '%no_dead_letters%'`) == 1
	}, "its dead letter is refused")
	h.exec(t, "alter table outbox drop constraint no_dead_letters")
	h.exec(t, "update outbox set due_at = now()")
	eventually(t, func() bool {
		return h.count(t, "select count(*) from outbox where uuid = 'old' and published_at is not null") == 1
	}, "it is settled")
	assert.Equal(t, 1, h.count(t, `select count(*) from outbox where topic = 'dead_letters'
		and metadata->>'uuid_poisoned' = 'old' and metadata->>'reason_poisoned' = $1`, errHandler.Error()))
	assert.Equal(t, 1, h.count(t, "select count(*) from inbox where message_id = 'old' and dead_at is not null"))
	assert.Equal(t, 1, log.count("message died: dead letter written"))
}

// TestLimitsBehindAnOutbox: a Subscriber's message lives until MinDeadAge, whatever the limits of ErrorHandler. Without
// ErrorHandler it dies without a dead letter.
func TestLimitsBehindAnOutbox(t *testing.T) {
	h := onPgx(t)
	cfg := subscribing(quickConfig())
	cfg.Forwarder.MaxAttempts = 2
	sub, bare := startSubscriber(t, h, cfg), startSubscriber(t, h, cfg)
	startRouter(t, func(r *message.Router) {
		r.AddConsumerHandler("h", "orders", sub, func(*message.Message) error { return errHandler }).
			AddMiddleware(stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{ErrorHandler: mortal}, nil)...)
		r.AddConsumerHandler("bare", "bare", bare, func(*message.Message) error { return errHandler })
	})
	h.publish(t, "orders", "", "young")
	h.publish(t, "bare", "", "old")
	h.exec(t, "update outbox set created_at = now() - interval '2 hours' where topic = 'bare'")
	eventually(t, func() bool { return h.count(t, "select count(*) from outbox where attempts > 4") == 1 },
		"it outlives its attempts")
	eventually(t, func() bool {
		return h.count(t, "select count(*) from outbox where topic = 'bare' and dead_at is not null") == 1
	}, "the other dies")
	assert.Zero(t, h.count(t, "select count(*) from outbox where topic <> 'bare' and dead_at is not null"))
	assert.Zero(t, h.count(t, "select count(*) from outbox where topic = 'dead_letters'"))
}

// TestCauseBehindAnOutbox: the row has the error of a Subscriber's handler, and Tx alone passes on a wait.
func TestCauseBehindAnOutbox(t *testing.T) {
	h := onPgx(t)
	cfg := subscribing(quickConfig())
	cfg.Forwarder.Backoff = outbox.Backoff{Initial: time.Hour, Max: time.Hour}
	stack := stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{}, nil)
	tx := newTx(t, h, middleware.TxConfig{})
	mortalCfg := cfg
	mortalCfg.Forwarder.MaxAttempts, mortalCfg.Forwarder.MinDeadAge = 1, -1
	startRouter(t, func(r *message.Router) {
		for topic, mws := range map[string][]message.HandlerMiddleware{"stack": stack, "tx": {tx}} {
			r.AddConsumerHandler(topic, topic, startSubscriber(t, h, cfg), func(*message.Message) error { return errHandler }).
				AddMiddleware(mws...)
			h.publish(t, topic, "", topic)
		}
		r.AddConsumerHandler("later", "later", startSubscriber(t, h, mortalCfg), func(*message.Message) error {
			return outbox.RetryAfter(errHandler, 2*time.Hour)
		}).AddMiddleware(tx)
		h.publish(t, "later", "", "later")
	})
	eventually(t, func() bool { return h.count(t, "select count(*) from outbox where attempts = 1") == 3 }, "all failed")
	assert.Equal(t, []string{"retry after 2h0m0s: " + errHandler.Error(), errHandler.Error(), errHandler.Error()},
		column[string](t, h, "select last_error from outbox order by topic"))
	assert.Equal(t, 1, h.count(t, `select count(*) from outbox where topic = 'later' and dead_at is null
		and due_at > now() + interval '110 minutes'`))
}
