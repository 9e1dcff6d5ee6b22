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

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/meter"
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

// healthy publishes messages of the given keys, one after another, until stop is called, and at least enough of them
// for a percentile. stop returns how long each took from commit to broker.
func (w world) healthy(t testing.TB, h handle, topic string, keys []string) (stop func() []time.Duration) {
	t.Helper()
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	sent := map[string]time.Time{}
	var writer sync.WaitGroup
	writer.Go(func() {
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for i := 0; ctx.Err() == nil || i < enoughHealthy; i++ {
			msg := newMessage(fmt.Sprintf("healthy-%s-%d-%d", topic, time.Now().UnixNano(), i))
			outbox.SetKey(msg, keys[i%len(keys)])
			if !assert.NoError(t, pub.Publish(topic, msg)) {
				return
			}
			sent[string(msg.Payload)] = time.Now()
			select {
			case <-ticker.C:
			case <-ctx.Done():
			}
		}
	})
	return func() []time.Duration {
		cancel()
		writer.Wait()
		var all []string
		for payload := range sent {
			all = append(all, payload)
		}
		w.arrives(t, all...)
		var took []time.Duration
		for _, m := range w.all() {
			if at, ok := sent[m.payload]; ok {
				took = append(took, m.at.Sub(at))
				delete(sent, m.payload)
			}
		}
		slices.Sort(took)
		return took
	}
}

const enoughHealthy = 30

func assertP99(t testing.TB, took []time.Duration) {
	t.Helper()
	require.GreaterOrEqual(t, len(took), enoughHealthy)
	p99 := took[len(took)*99/100]
	t.Logf("%d messages: median %s, p99 %s, slowest %s", len(took), took[len(took)/2], p99, took[len(took)-1])
	assert.Less(t, p99, patience) // a bug that delays healthy keys delays them many times longer
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

// TestBlockedKeyOutlivesItsOwner: the owner of a blocked key vanishes and another forwarder takes over. No message of
// the key is published, and other keys of its lane are not delayed.
func TestBlockedKeyOutlivesItsOwner(t *testing.T) {
	h := onPgx(t)
	gated, gate := newGatedHandle(t, h)
	w := world{handle: h, fakeBroker: newFakeBroker(), log: newLogCapture(t)}
	w.answers(refuse("K-1"))
	cfg := shortLease(quickConfig())
	cfg.QueryTimeout = 5 * time.Second
	w.join(t, gated, cfg)
	others := sameLane(t, h, "K", 5)

	w.publish(t, "orders", "K", "K-1", "K-2")
	w.wait(t, "K-1 is tried twice", func() bool { return w.triedTimes("K-1") >= 2 })
	stop := w.healthy(t, h, "orders", others)
	for i := 3; i <= 20; i++ {
		w.publish(t, "orders", "K", fmt.Sprintf("K-%d", i))
	}
	tried := w.triedTimes("K-1")
	w.wait(t, "K-1 is tried further", func() bool { return w.triedTimes("K-1") >= tried+5 })
	assertP99(t, stop())

	gate.shut()
	h.reaches(t, 0, "its lease runs out", "select count(*) from outbox_forwarders where expires_at > clock_timestamp()")
	tried = w.triedTimes("K-1")
	// so the next owner cannot read it
	h.exec(t, "update outbox set due_at = now() + interval '1 hour' where attempts > 0")
	w.join(t, h, shortLease(quickConfig()))
	w.publish(t, "orders", "K", "K-21")
	w.publish(t, "orders", others[0], "others of the same lane")
	w.arrives(t, "others of the same lane")
	assert.Empty(t, w.payloads("K"), "the next owner published past the blocked K")
	h.exec(t, "update outbox set due_at = now() where attempts > 0")
	w.wait(t, "the next owner tries K-1", func() bool { return w.triedTimes("K-1") >= tried+3 })
	stop = w.healthy(t, h, "orders", others)
	w.publish(t, "orders", "K", "K-22")
	w.wait(t, "the next owner goes on trying", func() bool { return w.triedTimes("K-1") >= tried+8 })
	assertP99(t, stop())
	assert.Empty(t, w.payloads("K"))

	gate.reopen() // the first owner is back and has lost its lanes
	tried = w.triedTimes("K-1")
	w.wait(t, "K-1 is tried further", func() bool { return w.triedTimes("K-1") >= tried+5 })
	assert.Empty(t, w.payloads("K"))
	w.answers(nil)
	w.arrives(t, "K-22")
	assert.Equal(t, numbered("K-", 1, 22), w.payloads("K"))
}

// failuresSettled is an observer that receives a value for each settled batch of failures.
type failuresSettled struct {
	deaf
	news chan struct{}
}

func (s failuresSettled) SettleEnd(_ context.Context, end meter.SettleEnd) {
	if end.Err == nil && end.Failed > 0 {
		select {
		case s.news <- struct{}{}:
		default:
		}
	}
}

// TestStaleOwner stops an owner while it publishes or reads, lets another take its lanes, and resumes it.
func TestStaleOwner(t *testing.T) {
	h := onPgx(t)
	type scene struct {
		world
		settled failuresSettled // results that the stale owner recorded
		gate    *gate
		stale   *side
		fails   func(error) // result of the stale owner's publish of K-1
		next    *side
		accept  func() // from now on the next owner's publisher accepts K-1
	}
	// Both publish K-1: the stale owner's call hangs, the next owner's returns an error until accept.
	begin := func(t *testing.T, next forwarder.Config, nextRefuses bool) scene {
		gated, g := newGatedHandle(t, h)
		h.exec(t, "truncate outbox, outbox_lanes, outbox_forwarders")
		s := scene{world: world{handle: h, fakeBroker: newFakeBroker(), log: newLogCapture(t)}, gate: g}
		answer := make(chan error, 1)
		s.fails = func(err error) { answer <- err }
		publishing := make(chan struct{})
		var once sync.Once
		cfg := shortLease(quickConfig())
		cfg.QueryTimeout = time.Minute // the interrupted statement completes after the owner resumes
		s.settled = failuresSettled{news: make(chan struct{}, 10)}
		_, s.stale = s.joinAs(t, gated.seenBy(t, s.settled), cfg, func(_ string, msg *message.Message) error {
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
		g.shut()
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
		s.gate.reopen()
		// Either the stale owner records the failure and is fenced, or a read first shows it that it lost the lane, and
		// it ignores the failure. TestEpochs tests the fence.
		eventually(t, func() bool {
			select {
			case <-s.settled.news:
				return true
			default:
				return s.count(t, "select count(*) from outbox_forwarders where expires_at > now()") == 2
			}
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
		s.gate.reopen()
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
		s.gate.reopen()
		s.arrives(t, "K-2", "K-3") // although the next owner's broker never accepts K-1
		assert.Equal(t, numbered("K-", 1, 3), s.payloads("K"))
		s.publish(t, "orders", "K", "K-4")
		s.arrives(t, "K-4")
	})
	t.Run("succeeds after the next owner published", func(t *testing.T) {
		s := begin(t, quickConfig(), false)
		s.arrives(t, "K-1", "K-2", "K-3")
		s.fails(nil)
		s.gate.reopen()
		s.publish(t, "orders", "K", "K-4")
		s.arrives(t, "K-4")
		assert.Equal(t, numbered("K-", 1, 4), s.payloads("K"))
	})
	t.Run("fails and reacquires the lane", func(t *testing.T) {
		s := begin(t, shortLease(quickConfig()), true)
		tried(s, 3)
		s.fails(errRefused)
		s.gate.reopen()
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
		gated, g := newGatedHandle(t, h)
		h.exec(t, "truncate outbox, outbox_lanes, outbox_forwarders")
		w := world{handle: h, fakeBroker: newFakeBroker(), log: newLogCapture(t)}
		cfg := shortLease(quickConfig())
		cfg.QueryTimeout = time.Minute
		first, stale := w.joinAs(t, gated, cfg, nil)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		require.NoError(t, first.Drain(ctx))
		g.shut() // a read is in flight, or will be sent when the gate opens
		w.publish(t, "orders", "K", "K-1", "K-2")
		_, next := w.joinAs(t, h, quickConfig(), refuse("K-1"))
		eventually(t, func() bool { return next.calls.Load() >= 3 }, "the next owner tries K-1")
		g.reopen()
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
