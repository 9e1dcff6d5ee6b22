package integration_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

// side is the publisher of one of several forwarders to the same broker.
type side struct {
	*fakeBroker
	answer func(topic string, msg *message.Message) error // nil = the broker's answer
	calls  atomic.Int64
}

func (s *side) Publish(topic string, msgs ...*message.Message) error {
	s.calls.Add(1)
	if s.answer != nil {
		if err := s.answer(topic, msgs[0]); err != nil {
			return err
		}
	}
	return s.fakeBroker.Publish(topic, msgs...)
}

// joinAs runs another forwarder to the same broker with its own answers.
func (w world) joinAs(
	t testing.TB, h handle, cfg forwarder.Config, answer func(string, *message.Message) error,
) (*forwarder.Forwarder, *side) {
	t.Helper()
	s := &side{fakeBroker: w.fakeBroker, answer: answer}
	return runForwarder(t, h, s, cfg, w.log), s
}

// sameLane returns n keys in the same lane as key.
func sameLane(t testing.TB, h handle, key string, n int) []string {
	t.Helper()
	return column[string](t, h, `select 'same-' || i from generate_series(1, 100000) i
		where hashtext('same-' || i) & 63 = hashtext($1) & 63 order by i limit $2`, key, n)
}

func numbered(prefix string, from, to int) []string {
	var list []string
	for i := from; i <= to; i++ {
		list = append(list, fmt.Sprintf("%s%d", prefix, i))
	}
	return list
}

func refuse(payload string) func(string, *message.Message) error {
	return func(_ string, msg *message.Message) error {
		if string(msg.Payload) == payload {
			return errRefused
		}
		return nil
	}
}

// TestStaleOwner stops an owner while it publishes or reads, lets another take its lanes, and resumes it.
func TestStaleOwner(t *testing.T) {
	h := onPgx(t)
	type scene struct {
		world
		settled *settledCounter // results that the stale owner recorded
		line    *proxy          // between the stale owner and the database
		stale   *side
		fails   func(error) // result of the stale owner's publish of K-1
		next    *side
		accept  func() // from now on the next owner's publisher accepts K-1
	}
	// Both publish K-1: the stale owner's call hangs, the next owner's returns an error until accept.
	begin := func(t *testing.T, next forwarder.Config, nextRefuses bool) scene {
		h.exec(t, "truncate outbox, outbox_lanes, outbox_forwarders")
		s := scene{
			world:   world{handle: h, fakeBroker: newFakeBroker(), log: newLogCapture(t)},
			settled: &settledCounter{}, line: newProxy(t, h.url),
		}
		answer := make(chan error, 1)
		s.fails = func(err error) { answer <- err }
		publishing := make(chan struct{})
		var once sync.Once
		cfg := shortLease(quickConfig())
		cfg.QueryTimeout = time.Minute // the interrupted statement completes after the owner resumes
		far := newPgxHandle(t, s.line.url).seenBy(t, s.settled)
		_, s.stale = s.joinAs(t, far, cfg, func(_ string, msg *message.Message) error {
			if string(msg.Payload) != "K-1" {
				return nil
			}
			first := false
			once.Do(func() { first = true })
			if !first {
				return nil
			}
			close(publishing)
			return <-answer
		})
		s.publish(t, "orders", "K", "K-1", "K-2")
		<-publishing
		s.line.freeze()
		s.publish(t, "orders", "K", "K-3")
		var accepts atomic.Bool
		accepts.Store(!nextRefuses)
		s.accept = func() { accepts.Store(true) }
		_, s.next = s.joinAs(t, h, next, func(_ string, msg *message.Message) error {
			if string(msg.Payload) == "K-1" && !accepts.Load() {
				return errRefused
			}
			return nil
		})
		return s
	}
	tried := func(s scene, n int64) {
		eventually(t, func() bool { return s.next.calls.Load() >= n }, "the next owner tries K-1")
	}

	t.Run("fails while the next owner blocks the key", func(t *testing.T) {
		s := begin(t, quickConfig(), true)
		tried(s, 3)
		s.fails(errors.New("stale"))
		s.line.thaw()
		// Either the stale owner records the failure and is fenced, or a read first shows it that it lost the lane, and
		// it ignores the failure. TestEpochs tests the fence.
		eventually(t, func() bool {
			return s.settled.failed.Load() > 0 ||
				s.count(t, "select count(*) from outbox_forwarders where expires_at > now()") == 2
		}, "the stale owner is back")
		tried(s, s.next.calls.Load()+5)
		assert.Zero(t, h.count(t, "select count(*) from outbox where last_error = 'stale'"),
			"the stale owner's failure was recorded")
		assert.Empty(t, s.payloads("K"))
		s.accept()
		s.arrives(t, "K-3")
		assert.Equal(t, numbered("K-", 1, 3), s.payloads("K"))
	})
	t.Run("fails after the next owner published", func(t *testing.T) {
		s := begin(t, quickConfig(), false)
		s.arrives(t, "K-1", "K-2", "K-3")
		s.fails(errRefused)
		s.line.thaw()
		s.publish(t, "orders", "K", "K-4")
		s.arrives(t, "K-4")
		assert.Equal(t, numbered("K-", 1, 4), s.payloads("K"))
		s.reaches(t, 0, "everything is settled and nothing was charged",
			"select count(*) from outbox where published_at is null or attempts > 0")
	})
	t.Run("succeeds while the next owner blocks the key", func(t *testing.T) {
		s := begin(t, quickConfig(), true)
		tried(s, 3)
		s.fails(nil)
		s.line.thaw()
		s.arrives(t, "K-2", "K-3") // although the next owner's broker never accepts K-1
		assert.Equal(t, numbered("K-", 1, 3), s.payloads("K"))
		s.publish(t, "orders", "K", "K-4")
		s.arrives(t, "K-4")
	})
	t.Run("succeeds after the next owner published", func(t *testing.T) {
		s := begin(t, quickConfig(), false)
		s.arrives(t, "K-1", "K-2", "K-3")
		s.fails(nil)
		s.line.thaw()
		s.publish(t, "orders", "K", "K-4")
		s.arrives(t, "K-4")
		assert.Equal(t, numbered("K-", 1, 4), s.payloads("K"))
	})
	t.Run("fails and reacquires the lane", func(t *testing.T) {
		s := begin(t, shortLease(quickConfig()), true)
		tried(s, 3)
		s.fails(errRefused)
		s.line.thaw()
		// Both share the lanes now; K stays blocked and in order, whichever gets it.
		others := sameLane(t, s.handle, "K", 2)
		for i := 4; i <= 30; i++ {
			s.publish(t, "orders", "K", fmt.Sprintf("K-%d", i))
			for _, other := range others {
				s.publish(t, "orders", other, fmt.Sprintf("%s-%d", other, i))
			}
		}
		s.accept()
		s.arrives(t, "K-30")
		assert.Equal(t, numbered("K-", 1, 30), s.payloads("K"))
	})
	t.Run("reads", func(t *testing.T) {
		line := newProxy(t, h.url)
		h.exec(t, "truncate outbox, outbox_lanes, outbox_forwarders")
		w := world{handle: h, fakeBroker: newFakeBroker(), log: newLogCapture(t)}
		cfg := shortLease(quickConfig())
		cfg.QueryTimeout = time.Minute
		first, stale := w.joinAs(t, newPgxHandle(t, line.url), cfg, nil)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		require.NoError(t, first.Drain(ctx))
		line.freeze() // a read is in flight, or will be sent after that
		w.publish(t, "orders", "K", "K-1", "K-2")
		_, next := w.joinAs(t, h, quickConfig(), refuse("K-1"))
		eventually(t, func() bool { return next.calls.Load() >= 3 }, "the next owner tries K-1")
		line.thaw()
		calls := next.calls.Load()
		eventually(t, func() bool { return next.calls.Load()+stale.calls.Load() >= calls+5 }, "K-1 is tried again")
		assert.Empty(t, slices.DeleteFunc(w.payloads("K"), func(p string) bool { return p == "K-1" }),
			"K-2 was published before K-1")
	})
}

// TestWhatFellDueOfADeadTopic: more due messages of a paused topic than one read of a lane returns. Messages of another
// topic that fell due later are published nevertheless.
func TestWhatFellDueOfADeadTopic(t *testing.T) {
	h := onPgx(t)
	const insert = `insert into outbox (uuid, topic, payload, due_at) select u, $1, 'm', now() - $2 * interval '1 second'
  from (select $1 || g as u from generate_series(1, 64 * $3) g) c where hashtext(u) & 63 = 0 limit $3`
	h.exec(t, insert, "down", 3600, 9000)
	h.exec(t, insert, "up", 1, 5)
	w := startForwarderOn(t, h, classifyingConfig(), func(topic string, _ *message.Message) error {
		if topic == "down" {
			return errDown
		}
		return nil
	})
	w.wait(t, "due messages of the other topic are published", func() bool {
		return h.count(t, "select count(*) from outbox where topic = 'up' and published_at is null") == 0
	})
	assert.Equal(t, h.count(t, "select count(*) from outbox where topic = 'down'"),
		h.count(t, "select count(*) from outbox where published_at is null and attempts = 0"))
}
