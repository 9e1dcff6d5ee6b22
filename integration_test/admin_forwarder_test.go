package integration_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/observe"
)

// TestBlockedKeysGoOn skips, discards or makes due the first messages of keys; later ones are published without waiting
// for them.
func TestBlockedKeysGoOn(t *testing.T) {
	parallel(t)
	for name, act := range map[string]func(*admin.Admin, context.Context, admin.Action) (admin.Result, error){
		"skip": (*admin.Admin).Skip, "discard": (*admin.Admin).Discard, "retry now": (*admin.Admin).RetryNow,
		"requeue": (*admin.Admin).Requeue,
	} {
		t.Run(name, func(t *testing.T) {
			if name == "discard" || name == "retry now" { // same code paths as skip and requeue
				extended(t)
			}
			h := newPgxHandle(t, newMigratedDatabase(t))
			cfg := quickConfig()
			cfg.CleanInterval = 50 * time.Millisecond // blocked keys are read as often
			cfg.Backoff = outbox.Backoff{Func: func(int) time.Duration { return time.Hour }}
			w := startForwarderOn(t, h, cfg, func(_ string, msg *message.Message) error {
				if strings.HasPrefix(string(msg.Payload), "bad") {
					return errRefused
				}
				return nil
			})
			w.publish(t, "x", "k", "bad", "behind")
			w.publish(t, "x", "", "bad without a key")
			eventually(t, func() bool { return w.states(t, "true")["failing"] == 2 }, "both failed")
			w.answers(nil)
			require.Zero(t, len(w.all()))
			a := newAdmin(t, h)
			list, err := a.List(t.Context(), admin.Filter{States: []admin.State{admin.Failing}, Key: "k"}, admin.Page{})
			require.NoError(t, err)
			require.Len(t, list.Messages, 1)
			r, err := act(a, t.Context(), admin.Action{
				Filter: admin.Filter{Topic: "x", States: []admin.State{admin.Failing}}, Reason: "no",
			})
			require.NoError(t, err)
			switch name {
			case "skip": // a message without a key blocks nothing
				assert.Equal(t, int64(1), r.Touched)
				w.arrives(t, "behind")
				assert.Equal(t, []string{"behind"}, w.payloads())
			case "discard":
				assert.Equal(t, int64(2), r.Touched)
				w.arrives(t, "behind")
				assert.Equal(t, []string{"behind"}, w.payloads())
			default:
				assert.Equal(t, int64(2), r.Touched)
				w.arrives(t, "bad", "behind", "bad without a key")
				assert.Equal(t, []string{"bad", "behind"}, w.payloads("k"), name)
			}
		})
	}
}

// TestReplayedMessagesLeaveOnce replays published messages.
func TestReplayedMessagesLeaveOnce(t *testing.T) {
	h := onPgx(t)
	w := startForwarder(t, h, quickConfig())
	w.publish(t, "x", "k", "1", "2", "3")
	w.publish(t, "y", "", "4")
	eventually(t, func() bool { return w.states(t, "true")["done"] == 4 }, "all are settled")
	r, err := newAdmin(t, h).Replay(t.Context(), admin.Action{Filter: admin.Filter{Key: "k"}})
	require.NoError(t, err)
	assert.Equal(t, int64(3), r.Touched)
	w.wait(t, "three more", func() bool { return len(w.all()) == 7 })
	eventually(t, func() bool { return w.states(t, "true")["done"] == 4 }, "all are settled again")
	var again []string
	for _, m := range w.all()[4:] {
		again = append(again, m.payload)
	}
	assert.ElementsMatch(t, []string{"1", "2", "3"}, again)
	list, err := newAdmin(t, h).List(t.Context(), admin.Filter{Key: "k", States: []admin.State{admin.Done}}, admin.Page{})
	require.NoError(t, err)
	require.Len(t, list.Messages, 3)
	for _, m := range list.Messages {
		assert.Zero(t, m.Attempts, "it never failed")
	}
}

// pauseLog remembers which topics the observer saw paused and resumed.
type pauseLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *pauseLog) TopicPaused(_ context.Context, p observe.TopicPaused) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.ByOperator {
		l.lines = append(l.lines, "paused "+p.Topic)
	}
}

func (l *pauseLog) TopicResumed(_ context.Context, p observe.TopicResumed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.ByOperator {
		l.lines = append(l.lines, "resumed "+p.Topic)
	}
}

// TestOperatorPausesATopic pauses a topic before a forwarder starts and while it runs.
func TestOperatorPausesATopic(t *testing.T) {
	h := onPgx(t)
	a := newAdmin(t, h)
	require.NoError(t, a.Pause(t.Context(), "closed", "they asked us to"))
	var seen pauseLog
	w := startForwarder(t, h.seenBy(t, &seen), quickConfig())
	w.publish(t, "closed", "k", "1")
	w.publish(t, "open", "k", "2") // behind the first message of its key, in another topic
	w.publish(t, "open", "", "3")
	w.publish(t, "closed", "", "4")
	w.arrives(t, "3")
	s, err := a.Stats(t.Context(), admin.StatsConfig{})
	require.NoError(t, err)
	require.Equal(t, "closed", s.Topics[0].Topic)
	assert.True(t, s.Topics[0].Paused)
	assert.Equal(t, "operator", s.Topics[0].PausedBy[0].By)
	assert.Equal(t, "alice: they asked us to", s.Topics[0].PausedBy[0].Reason)

	require.NoError(t, a.Pause(t.Context(), "open", ""))
	eventually(t, func() bool { seen.mu.Lock(); defer seen.mu.Unlock(); return len(seen.lines) == 2 },
		"both keys are blocked")
	w.publish(t, "open", "", "5")
	w.publish(t, "third", "", "6")
	w.arrives(t, "6")
	assert.Equal(t, []string{"3", "6"}, w.payloads())

	require.NoError(t, a.Resume(t.Context(), "closed", ""))
	w.arrives(t, "1", "4")
	require.NoError(t, a.Resume(t.Context(), "open", "better"))
	w.arrives(t, "2", "5")
	assert.Equal(t, []string{"1", "2"}, w.payloads("k"))
	eventually(t, func() bool { seen.mu.Lock(); defer seen.mu.Unlock(); return len(seen.lines) == 4 },
		"the observer is notified")
	assert.Equal(t, []string{"paused closed", "paused open", "resumed closed", "resumed open"}, seen.lines)
	log, _, err := a.Audit(t.Context(), admin.Page{})
	require.NoError(t, err)
	require.Len(t, log, 4)
	assert.Equal(t, "resume", log[0].Action)
	assert.Equal(t, "open", log[0].Filter.Topic)
	assert.Equal(t, int64(1), log[0].Result.Touched)
}

// TestRequeuedMessageGetsAllAttempts: after a requeue MaxAttempts failures count again, with a key and without.
// An outage costs none of them, nor does the end of the forwarder that found the message.
func TestRequeuedMessageGetsAllAttempts(t *testing.T) {
	h := onPgx(t)
	cfg := classifyingConfig()
	cfg.MaxAttempts, cfg.MinDeadAge = 4, -1
	refused := func(string, *message.Message) error { return errRefused }
	w := startForwarderOn(t, h, cfg, refused)
	w.publish(t, "x", "K", "with a key")
	w.publish(t, "y", "", "without")
	const dead = "select count(*) from outbox where dead_at is not null"
	h.reaches(t, 2, "both are dead", dead)
	assert.Equal(t, []int{4, 4}, []int{w.triedTimes("with a key"), w.triedTimes("without")})

	w.answers(func(string, *message.Message) error { return errDown })
	a := newAdmin(t, h)
	_, err := a.Requeue(t.Context(), admin.Action{Filter: admin.Filter{All: true}})
	require.NoError(t, err)
	for _, payload := range []string{"with a key", "without"} {
		w.wait(t, "an outage", func() bool { return w.triedTimes(payload) >= 6 })
	}
	require.NoError(t, w.Forwarder.Close())
	w.answers(refused)
	before := []int{w.triedTimes("with a key"), w.triedTimes("without")}
	w.join(t, h, cfg)
	h.reaches(t, 2, "both are dead again", dead)
	assert.Equal(t, []int{before[0] + 4, before[1] + 4}, []int{w.triedTimes("with a key"), w.triedTimes("without")})
	for _, id := range column[string](t, h, "select id::text from outbox") {
		events, err := a.Timeline(t.Context(), admin.Outbox, id)
		require.NoError(t, err)
		attempts := []int{}
		for _, e := range events {
			if e.What == "failed" {
				attempts = append(attempts, e.Attempt)
			}
		}
		assert.Equal(t, []int{1, 2, 3, 4, 1, 2, 3, 4}, attempts)
	}
}

// TestRequeuedBeforeItsPayloadIsRead: an operator requeues a failing message together with a dead one of its key, after
// the forwarder has read it for its next attempt and before it reads its payload, which is large. The dead one goes
// first, and the failing one gets all attempts.
func TestRequeuedBeforeItsPayloadIsRead(t *testing.T) {
	parallel(t)
	for range 5 { // a read may or may not look for due messages as well
		t.Run("", func(t *testing.T) {
			h, gate := newStatementGate(t, newMigratedDatabase(t))
			a := newAdmin(t, h)
			large := strings.Repeat("x", 300_000)
			h.publish(t, "x", "K", "dead", large)
			h.exec(t, "UPDATE outbox SET dead_at = now(), attempts = 1, last_error = 'refused' WHERE payload = 'dead'")
			var reads atomic.Int64
			gate.onRun(sqltext.FetchPayloads, func() {
				if reads.Add(1) == 2 {
					both := admin.Filter{Topic: "x", States: []admin.State{admin.Dead, admin.Failing}}
					r, err := a.Requeue(context.Background(), admin.Action{Filter: both})
					assert.NoError(t, err)
					assert.EqualValues(t, 2, r.Touched)
				}
			})
			cfg := classifyingConfig()
			cfg.MaxAttempts, cfg.MinDeadAge = 3, -1
			var tries atomic.Int64
			before := make(chan int64, 1)
			startForwarderOn(t, h, cfg, func(_ string, msg *message.Message) error {
				if string(msg.Payload) == large {
					tries.Add(1)
					return errRefused
				}
				before <- tries.Load()
				return nil
			})
			h.reaches(t, 1, "the large message is dead",
				"SELECT count(*) FROM outbox WHERE dead_at IS NOT NULL AND payload <> 'dead'")
			assert.EqualValues(t, 1, within(t, "the dead one is published", before))
			assert.EqualValues(t, 1+3, tries.Load())
		})
	}
}

// TestRequeuedLargeMessagesWaitForTheirBackoff: reads of due messages return requeued messages while they are in
// flight, and leave out large payloads. The messages were not requeued again, so their failures are followed by the
// backoff.
func TestRequeuedLargeMessagesWaitForTheirBackoff(t *testing.T) {
	h := onPgx(t)
	const n = 10
	payload := strings.Repeat("x", 300_000)
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, attempts, due_at, metadata)
		SELECT i, 'x', 'K' || i, $1, 1, now(), '{"outbox_generation": "1"}' FROM generate_series(1, $2::int) i`,
		[]byte(payload), n)
	cfg := quickConfig()
	cfg.Backoff = outbox.Backoff{Initial: time.Hour, Max: time.Hour}
	inFlight, refuse := make(chan struct{}, n), make(chan struct{})
	var tries atomic.Int64
	w := startForwarderOn(t, h, cfg, func(_ string, msg *message.Message) error {
		if len(msg.Payload) < len(payload) {
			return nil
		}
		if tries.Add(1) <= n {
			inFlight <- struct{}{}
			<-refuse
		}
		return errRefused
	})
	for range n {
		within(t, "the large messages are in flight", inFlight)
	}
	poll := func(name string) {
		h.exec(t, "INSERT INTO outbox (uuid, topic, key, payload, due_at) VALUES ($1, 'x', $1, $2, now())",
			name, []byte(name))
		w.arrives(t, name)
	}
	poll("read while they are in flight")
	for i := range n {
		refuse <- struct{}{}
		h.reaches(t, i+1, "a failure is recorded", "SELECT count(*) FROM outbox WHERE last_error IS NOT NULL")
	}
	poll("the next read")
	poll("and another")
	assert.EqualValues(t, n, tries.Load())
}

// TestRequeuedWhileTheTopicIsClosed: an operator requeues the dead messages of a topic that is paused or unreachable.
// Messages written to it in the meantime follow them.
func TestRequeuedWhileTheTopicIsClosed(t *testing.T) {
	const keys = 100
	for _, paused := range []bool{true, false} {
		t.Run(fmt.Sprint("by an operator ", paused), func(t *testing.T) {
			h := onPgx(t)
			a := newAdmin(t, h)
			for k := range keys {
				h.publish(t, "x", fmt.Sprint("K", k), fmt.Sprintf("%d/1", k), fmt.Sprintf("%d/2", k))
			}
			h.exec(t, "UPDATE outbox SET dead_at = now(), attempts = 1, last_error = 'refused'")
			cfg := quickConfig()
			cfg.PollInterval = time.Second // the default: due messages are polled this often
			var down atomic.Bool
			w := startForwarderOn(t, h, cfg, func(string, *message.Message) error {
				if down.Load() {
					return &forwarder.PublishError{Verdict: forwarder.Unavailable, Err: errDown}
				}
				return nil
			})
			if paused {
				require.NoError(t, a.Pause(t.Context(), "x", "requeue"))
			} else {
				down.Store(true)
				h.publish(t, "x", "", "closes it")
			}
			eventually(t, func() bool { return strings.Contains(w.State(), "topics not published to") }, "it is paused")
			filter := admin.Filter{Topic: "x", States: []admin.State{admin.Dead}}
			r, err := a.Requeue(t.Context(), admin.Action{Filter: filter})
			require.NoError(t, err)
			require.EqualValues(t, 2*keys, r.Touched)
			for k := range keys {
				h.publish(t, "x", fmt.Sprint("K", k), fmt.Sprintf("%d/3", k), fmt.Sprintf("%d/4", k))
			}
			if down.Store(false); paused {
				require.NoError(t, a.Resume(t.Context(), "x", "requeue"))
			}
			h.reaches(t, 0, "all are published", "SELECT count(*) FROM outbox WHERE published_at IS NULL")
			overtaken := 0
			for k := range keys {
				if !slices.Equal(numbered(fmt.Sprint(k, "/"), 1, 4), w.payloads(fmt.Sprint("K", k))) {
					overtaken++
				}
			}
			assert.Zero(t, overtaken, "keys whose requeued messages were overtaken by later ones")
		})
	}
}

// TestDrainOfATopicThatAnOperatorPaused: Drain publishes the rest and names the paused topic instead of waiting for the
// operator.
func TestDrainOfATopicThatAnOperatorPaused(t *testing.T) {
	h := onPgx(t)
	a := newAdmin(t, h)
	require.NoError(t, a.Pause(t.Context(), "resting", "no"))
	require.NoError(t, a.Pause(t.Context(), "late", "no"))
	h.publish(t, "resting", "K", "1", "2")
	h.publish(t, "resting", "", "3")
	h.publish(t, "open", "", "4")
	h.publish(t, "open", "L", "5")
	pub, err := outbox.NewPublisher(h.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
	require.NoError(t, err)
	due := newMessage("6")
	outbox.SetDelay(due, time.Millisecond)
	require.NoError(t, pub.Publish("late", due))
	broker := newFakeBroker()
	anew := func() *forwarder.Forwarder {
		f, err := forwarder.New(h.db, broker, quickConfig(), newLogCapture(t))
		require.NoError(t, err)
		return f
	}
	drain := func(f *forwarder.Forwarder) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		return f.Drain(ctx)
	}
	require.ErrorContains(t, drain(anew()), `topics paused by an operator: ["late" "resting"]`)
	assert.ElementsMatch(t, []string{"4", "5"}, broker.payloads())
	running := anew()
	runInBackground(t, running)
	require.ErrorContains(t, drain(running), `topics paused by an operator: ["late" "resting"]`)
	require.NoError(t, a.Resume(t.Context(), "resting", "no"))
	require.NoError(t, a.Resume(t.Context(), "late", "no"))
	require.NoError(t, running.Close())
	require.NoError(t, drain(anew()))
	assert.Len(t, broker.all(), 6)
}
