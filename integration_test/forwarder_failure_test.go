package integration_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

var (
	errDown      = errors.New("broker is down")
	errMalformed = errors.New("malformed")
)

func classify(err error) forwarder.Verdict {
	switch {
	case errors.Is(err, errDown):
		return forwarder.Unavailable
	case errors.Is(err, errMalformed):
		return forwarder.Permanent
	}
	return forwarder.Rejected
}

func classifyingConfig() forwarder.Config {
	cfg := quickConfig()
	cfg.Classify = classify
	return cfg
}

// knowingBroker knows its errors.
type knowingBroker struct{ *fakeBroker }

func (knowingBroker) Classify(err error) forwarder.Verdict { return classify(err) }

func TestForwarderAsksThePublisherForVerdicts(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	broker := newFakeBroker()
	broker.answers(func(string, *message.Message) error { return errMalformed })
	var logs []logCapture
	for _, pub := range []message.Publisher{knowingBroker{broker}, broker} {
		log := newLogCapture(t)
		logs = append(logs, log)
		f, err := forwarder.New(h.db, pub, quickConfig(), log)
		require.NoError(t, err)
		h.publish(t, "orders", "", "malformed")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		require.NoError(t, f.Drain(ctx))
		cancel()
		require.NoError(t, f.Close())
	}
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox where dead_at is not null"), "the one whose publisher knows the error")
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox where dead_at is null and attempts > 0"))
	assert.Zero(t, logs[0].count("WARNING"), "%v", *logs[0].lines)
	eventually(t, func() bool { return logs[1].count("WARNING") == 1 }, "the other one warns")
}

func TestUnavailableTopicPauses(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		w := startForwarder(t, h, classifyingConfig())
		var down atomic.Bool
		down.Store(true)
		var tries atomic.Int64
		w.answers(func(topic string, _ *message.Message) error {
			if topic == "down" && down.Load() {
				tries.Add(1)
				return errDown
			}
			return nil
		})
		for i := range 200 {
			w.publish(t, "down", fmt.Sprintf("key-%d", i%20), fmt.Sprintf("d%d", i))
			w.publish(t, "down", "", fmt.Sprintf("u%d", i))
		}
		before := tries.Load()
		begun := time.Now()
		for i := range 100 {
			w.publish(t, "up", fmt.Sprintf("key-up-%d", i%20), fmt.Sprintf("up%d", i))
		}
		w.arrives(t, numbered("up", 0, 99)...)
		eventually(t, func() bool { return tries.Load() >= before+3 }, "the topic is tried again")
		rate := float64(tries.Load()-before) / time.Since(begun).Seconds()
		assert.Less(t, rate, 60.0, "tries a second while the topic is paused")
		assert.Zero(t, h.count(t, "select count(*) from outbox where attempts > 0"))

		down.Store(false)
		w.arrives(t, append(numbered("d", 0, 199), numbered("u", 0, 199)...)...)
		for i := range 20 {
			var want []string
			for j := i; j < 200; j += 20 {
				want = append(want, fmt.Sprintf("d%d", j))
			}
			assert.Equal(t, want, w.payloads(fmt.Sprintf("key-%d", i)))
		}
		assert.Zero(t, h.count(t, "select count(*) from outbox where attempts > 0"))
	})
}

// TestKeyGoesOnWithoutItsFirstMessage: the first message of a key waits for a topic that cannot be reached, until an operator
// skips, deletes or gives it up. Then the rest of the key, on another topic, waits no longer, and keys of the same lane that
// the operator left alone wait on.
func TestKeyGoesOnWithoutItsFirstMessage(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	cfg := classifyingConfig()
	cfg.CleanInterval = 50 * time.Millisecond
	cfg.Concurrency = 2
	w := startForwarder(t, h, cfg)
	goOn := make(chan struct{})
	answer := sync.OnceFunc(func() { close(goOn) })
	defer answer()
	var down atomic.Bool
	down.Store(true)
	w.answers(func(topic string, _ *message.Message) error {
		switch {
		case topic == "down" && down.Load():
			return errDown
		case topic == "hangs":
			<-goOn
		}
		return nil
	})
	for _, first := range []string{"down", "hangs"} {
		keys := sameLane(t, h, first, 6)
		for i, key := range keys {
			w.publish(t, first, key, fmt.Sprint(first, i))
			w.publish(t, "up", key, fmt.Sprint("behind-", first, i))
		}
		w.publish(t, first, "", numbered(first+"-", 1, 5)...)
		w.wait(t, "the topic is tried", func() bool { return tried(w, append(numbered(first, 0, 5), numbered(first+"-", 1, 5)...)) >= 2 })
		for i, act := range []string{"published_at = now()", "dead_at = now()"} {
			h.exec(t, "update outbox set "+act+" where topic = $1 and key = $2", first, keys[i+3])
		}
		h.exec(t, "delete from outbox where topic = $1 and key = $2", first, keys[5])
		w.arrives(t, numbered("behind-"+first, 3, 5)...)
		for i, key := range keys[:3] {
			assert.Empty(t, w.payloads(key), "%d waits on", i)
		}
	}
	down.Store(false)
	answer()
	w.arrives(t, append(numbered("behind-down", 0, 2), numbered("behind-hangs", 0, 2)...)...)
}

// TestUnavailableAfterRejection: the only message left on a topic waits for another attempt when the broker goes away.
func TestUnavailableAfterRejection(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	cfg := classifyingConfig()
	cfg.PauseBackoff = outbox.Backoff{Initial: 50 * time.Millisecond, Max: 2 * time.Second}
	w := startForwarder(t, h, cfg)
	w.answers(func(string, *message.Message) error { return errRefused })
	w.publish(t, "orders", "K", "1")
	w.wait(t, "it is refused", func() bool { return w.triedTimes("1") == 1 })
	w.answers(func(string, *message.Message) error { return errDown })
	eventually(t, func() bool { return w.triedTimes("1") >= 6 }, "it is tried while the broker is down")
	assert.LessOrEqual(t, w.log.count("Topic is unavailable and paused"), 1, "%v", *w.log.lines)
	assert.Zero(t, w.log.count("Topic is available again"))
	w.answers(nil)
	w.arrives(t, "1")
	assert.Equal(t, 1, h.count(t, "select attempts from outbox"))
}

func TestRejectedMessageIsTriedAgain(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		w := startForwarder(t, h, quickConfig())
		w.answers(func(_ string, msg *message.Message) error {
			if n := w.triedTimes("1"); string(msg.Payload) == "1" && n < 4 {
				return fmt.Errorf("attempt %d: \x00 %w", n, errRefused)
			}
			return nil
		})
		w.publish(t, "orders", "K", "1", "2", "3")
		w.publish(t, "orders", "L", "4")
		w.arrives(t, "3", "4")
		assert.Equal(t, 4, w.triedTimes("1"))
		assert.Equal(t, []string{"1", "2", "3"}, w.payloads("K"))
		eventually(t, func() bool {
			return h.count(t, "select count(*) from outbox where published_at is not null") == 4
		}, "all are settled")
		assert.Equal(t, 3, h.count(t, "select sum(attempts)::int from outbox"))
		assert.Equal(t, "attempt 3: ? refused", value[string](t, h, "select last_error from outbox where attempts > 0"))
	})
}

// TestUnkeyedBackoff: a message without a key waits as long as its backoff says, however it is found.
func TestUnkeyedBackoff(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	cfg := quickConfig()
	cfg.PollInterval = 5 * time.Millisecond
	cfg.Backoff = outbox.Backoff{Initial: 100 * time.Millisecond, Max: 100 * time.Millisecond}
	w := startForwarder(t, h, cfg)
	w.answers(func(string, *message.Message) error { return errRefused })
	begun := time.Now()
	w.publish(t, "orders", "", numbered("m", 1, 50)...)
	eventually(t, func() bool { return time.Since(begun) > 2*time.Second }, "two seconds pass")
	tries := 0
	for _, m := range numbered("m", 1, 50) {
		tries += w.triedTimes(m)
	}
	most := 50 * int(1+time.Since(begun)/(80*time.Millisecond))
	assert.LessOrEqual(t, tries, most)
	assert.GreaterOrEqual(t, tries, 100)
}

func TestPermanentIsDeadAtOnce(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
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
		eventually(t, func() bool { return h.count(t, "select count(*) from outbox where dead_at is not null") == 2 }, "both are dead")
		assert.Equal(t, 2, w.triedTimes("bad"))
		eventually(t, func() bool { return w.log.count("Message is dead") == 2 }, "their deaths are reported")

		w.answers(nil)
		h.exec(t, "update outbox set dead_at = null, due_at = now() where dead_at is not null")
		eventually(t, func() bool { return h.count(t, "select count(*) from outbox where published_at is null") == 0 }, "both are sent after all")
	})
}

func TestDeathNeedsAttemptsAndAge(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
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
	t.Parallel()
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		cfg := quickConfig()
		cfg.Backoff = outbox.Backoff{Initial: time.Hour, Max: time.Hour}
		w := startForwarderOn(t, h, cfg, refuse("1"))
		w.publish(t, "orders", "K", "1", "2")
		waiting := func() bool { return h.count(t, "select count(*) from outbox where attempts > 0") == 1 }
		eventually(t, waiting, "1 waits")

		h.exec(t, "update outbox set due_at = now() where attempts > 0")
		w.wait(t, "an operator has it tried again", func() bool { return w.triedTimes("1") == 2 })
		eventually(t, func() bool { return h.count(t, "select attempts from outbox where attempts > 0") == 2 }, "it is refused again")
		assert.Empty(t, w.payloads("K"))
		w.answers(nil)
		h.exec(t, "update outbox set due_at = now() where attempts > 0")
		w.arrives(t, "1", "2")
		assert.Equal(t, []string{"1", "2"}, w.payloads("K"))
	})

	t.Run("delete a head", func(t *testing.T) {
		h := newPgxHandle(t, newMigratedDatabase(t))
		cfg := quickConfig()
		cfg.Backoff = outbox.Backoff{Initial: 300 * time.Millisecond, Max: 300 * time.Millisecond}
		w := startForwarderOn(t, h, cfg, refuse("1"))
		w.publish(t, "orders", "K", "1", "2")
		eventually(t, func() bool { return h.count(t, "select count(*) from outbox where attempts > 0") == 1 }, "1 waits")
		h.exec(t, "delete from outbox where attempts > 0")
		w.arrives(t, "2")
	})
}

func TestHoldDead(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	cfg := classifyingConfig()
	cfg.HoldDead = true
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
	eventually(t, func() bool { return h.count(t, "select count(*) from outbox where dead_at is not null") == 1 }, "1 is dead")
	w.publish(t, "orders", "K", "3")
	w.arrives(t, "other")
	require.NoError(t, first.Close())
	require.NoError(t, <-ended)

	w.Forwarder = w.join(t, h, cfg) // and the next one holds it as well
	w.publish(t, "orders", "K", "4")
	w.idle(t)
	assert.Empty(t, w.payloads("K"))
	w.answers(nil)
	h.exec(t, "update outbox set dead_at = null, due_at = now() where dead_at is not null")
	w.arrives(t, "4")
	assert.Equal(t, []string{"1", "2", "3", "4"}, w.payloads("K"))
}

// TestHoldDeadThatAnOperatorGaveUp: a message is declared dead while it waits behind another.
func TestHoldDeadThatAnOperatorGaveUp(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	cfg := quickConfig()
	cfg.HoldDead = true
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
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	h.exec(t, `insert into outbox (uuid, topic, key, payload, due_at)
		select gen_random_uuid(), 'orders', 'K', convert_to(n::text, 'UTF8'), now() from generate_series(1, 20000) n`)
	w := startForwarder(t, h, quickConfig())
	w.arrives(t, numbered("", 1, 20000)...)
}

func TestPublishTimeout(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	cfg := quickConfig()
	cfg.PublishTimeout = 100 * time.Millisecond
	cfg.Concurrency = 4
	goOn := make(chan struct{})
	var attempts atomic.Int32
	w := startForwarderOn(t, h, cfg, func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "hangs" && attempts.Add(1) == 1 {
			<-goOn
			return errRefused // late, and of no interest
		}
		return nil
	})
	w.publish(t, "orders", "K", "hangs", "next")
	w.publish(t, "orders", "", numbered("u", 1, 100)...)
	w.arrives(t, append(numbered("u", 1, 100), "hangs", "next")...)
	assert.Equal(t, []string{"hangs", "next"}, w.payloads("K"))
	assert.Equal(t, forwarder.ErrPublishTimeout.Error()+" after 100ms", value[string](t, h, "select last_error from outbox where attempts = 1"))
	close(goOn)
	w.publish(t, "orders", "K", "last")
	w.arrives(t, "last")
	assert.Equal(t, 1, h.count(t, "select sum(attempts)::int from outbox"))
}

// TestLateSuccess: the publish that timed out has worked after all, while its message waits for the next attempt.
func TestLateSuccess(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	cfg := quickConfig()
	cfg.PublishTimeout = 50 * time.Millisecond
	cfg.Backoff = outbox.Backoff{Initial: time.Hour, Max: time.Hour}
	goOn := make(chan struct{})
	w := startForwarderOn(t, h, cfg, func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "late" {
			<-goOn
		}
		return nil
	})
	w.publish(t, "orders", "K", "late", "next")
	eventually(t, func() bool { return h.count(t, "select count(*) from outbox where attempts = 1") == 1 }, "it timed out")
	close(goOn)
	w.arrives(t, "next")
	assert.Equal(t, []string{"late", "next"}, w.payloads("K"))
	eventually(t, func() bool { return h.count(t, "select count(*) from outbox where published_at is null") == 0 }, "both are settled")
}

func TestPublisherThatPanics(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	var attempts atomic.Int32
	w := startForwarderOn(t, h, quickConfig(), func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "1" && attempts.Add(1) < 3 {
			panic("no")
		}
		return nil
	})
	w.publish(t, "orders", "K", "1", "2")
	w.arrives(t, "2")
	assert.Equal(t, []string{"1", "2"}, w.payloads("K"))
	assert.Equal(t, forwarder.ErrPublishPanic.Error()+": no", value[string](t, h, "select last_error from outbox where attempts > 0"))
	eventually(t, func() bool { return w.log.count("Publisher panicked") == 2 }, "the panics are reported")
}

// TestRowsWrittenByHand: what the write side would have refused stops nothing else.
func TestRowsWrittenByHand(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		for i, metadata := range []string{`null`, `[]`, `{"a": 1}`, `"text"`} {
			h.exec(t, "insert into outbox (uuid, topic, key, payload, metadata) values ($1, 'orders', $2, $3, $4::text::jsonb)",
				itoa(i), "K"+itoa(i), []byte("bad"+itoa(i)), metadata)
		}
		w := startForwarder(t, h, quickConfig())
		w.publish(t, "orders", "K1", "good")
		w.arrives(t, "bad0", "good")
		eventually(t, func() bool {
			return h.count(t, "select count(*) from outbox where dead_at is not null and last_error like '%metadata is not%'") == 3
		}, "the others are dead, and say why")
		assert.ElementsMatch(t, []string{"bad0", "good"}, w.payloads())
	})
}

// TestLockedRow: somebody's open transaction on one message keeps no other from being settled.
func TestLockedRow(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	h.publish(t, "orders", "", numbered("", 1, 50)...)
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(t.Context(), "select from outbox where id = 17 for update")
	require.NoError(t, err)
	cfg := quickConfig()
	cfg.QueryTimeout = time.Second
	startForwarder(t, h, cfg)
	const pending = "select count(*) from outbox where published_at is null"
	eventually(t, func() bool { return h.count(t, pending) == 1 }, "all but one are settled")
	require.NoError(t, tx.Rollback(t.Context()))
	eventually(t, func() bool { return h.count(t, pending) == 0 }, "and that one too")
}

// TestDeathIsRemembered: recording a death again, because the answer was lost, calls the message dead again, or its
// key would be let go though it is to be held.
func TestDeathIsRemembered(t *testing.T) {
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	h.publish(t, "orders", "K", "1")
	const owner = "00000000-0000-0000-0000-000000000001"
	h.exec(t, "insert into outbox_lanes (scope, lane, owner, epoch) select 's', lane, $1::text::uuid, 1 from outbox", owner)
	for range 2 {
		var outcome string
		require.NoError(t, drive.Collect(t.Context(), (*core.DB)(h.db), func(rows drive.Rows) error { return rows.Scan(nil, &outcome) },
			sqltext.Tables{}.Render(sqltext.SettleFailed),
			"s", owner, []int64{1}, []int64{int64(value[int](t, h, "select lane::int from outbox"))}, []int64{1}, []int64{1},
			[]float64{1}, []string{"malformed"}, []bool{true}, 10, 0.0, []string{value[string](t, h, "select uuid from outbox")}))
		assert.Equal(t, "dead", outcome)
	}
}
