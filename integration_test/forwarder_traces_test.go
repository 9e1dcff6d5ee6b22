package integration_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// TestPausedTopicIsInTheDatabase while its broker is down, with the reason, and not afterwards.
func TestPausedTopicIsInTheDatabase(t *testing.T) {
	h := onPgx(t)
	w := startForwarderOn(t, h, classifyingConfig(), func(topic string, _ *message.Message) error {
		if topic == "down" {
			return errDown
		}
		return nil
	})
	w.publish(t, "down", "K", "1")
	w.publish(t, "up", "K2", "2")
	const paused = `select t.topic || ': ' || t.reason from outbox_topics t join outbox_forwarders f on f.id = t.forwarder
		where t.failures > 0 and t.paused_at between now() - interval '1 minute' and now()`
	eventually(t, func() bool {
		return assert.ObjectsAreEqual([]string{"down: broker is down"}, column[string](t, h, paused))
	}, "the pause is recorded")
	eventually(t, func() bool { return w.log.count("topic unavailable") == 1 }, "it is logged once a minute")
	w.answers(nil)
	w.arrives(t, "1")
	h.reaches(t, 0, "and so is its end", "select count(*) from outbox_topics")
	w.answers(func(string, *message.Message) error { return errDown })
	w.publish(t, "down", "K", "3")
	h.reaches(t, 1, "it is paused again", "select count(*) from outbox_topics")
	require.NoError(t, w.Forwarder.Close())
	assert.Zero(t, h.count(t, "select count(*) from outbox_topics"))
}

// TestCleanUpHoldsUpNothing: while a forwarder deletes old rows, which may take hours, it records paused topics.
func TestCleanUpHoldsUpNothing(t *testing.T) {
	parallel(t)
	h, gate := newStatementGate(t, newMigratedDatabase(t))
	defer gate.releaseAll()
	cleaning := gate.hold(sqltext.CleanInbox, 0)
	cfg := classifyingConfig()
	cfg.CleanInterval, cfg.QueryTimeout = 20*time.Millisecond, time.Hour
	w := startForwarderOn(t, h, cfg, func(string, *message.Message) error { return errDown })
	gate.arrives(t, "the clean-up", cleaning)
	w.publish(t, "down", "K", "1")
	h.reaches(t, 1, "the pause is recorded", "select count(*) from outbox_topics")
}

// TestAnOperatorsPauseWaitsForNoWrite: a forwarder that waits for a lock while it records its own pauses still notices
// those of operators.
func TestAnOperatorsPauseWaitsForNoWrite(t *testing.T) {
	parallel(t)
	h, gate := newStatementGate(t, newMigratedDatabase(t))
	defer gate.releaseAll()
	writing := gate.hold(sqltext.PauseTopics, 0)
	cfg := classifyingConfig()
	cfg.QueryTimeout = time.Hour
	var seen pauseLog
	w := startForwarderOn(t, h.seenBy(t, &seen), cfg, func(string, *message.Message) error { return errDown })
	w.publish(t, "down", "K", "1")
	gate.arrives(t, "the write of the pause", writing)
	require.NoError(t, newAdmin(t, h).Pause(t.Context(), "closed", ""))
	eventually(t, func() bool {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		return slices.Contains(seen.lines, "paused closed")
	}, "the operator's pause is noticed")
}

// TestTracesOfForwardersThatAreGone are deleted, and so are the lanes of unused scopes. Epochs never restart.
func TestTracesOfForwardersThatAreGone(t *testing.T) {
	h := onPgx(t)
	other := withTopics("abandoned", "b")
	_, stop := inTurn(t, h, newFakeBroker(), other, newLogCapture(t))
	const epochs = "select coalesce(max(epoch), 0) from outbox_lanes where scope = 'abandoned'"
	h.reaches(t, 64, "it has lanes", "select count(*) from outbox_lanes where owner is not null")
	before := value[int64](t, h, epochs)
	stop()
	h.exec(t, `insert into outbox_forwarders (id, scope, topics, name, expires_at) values
		('00000000-0000-0000-0000-000000000001', 'long gone', '{x}', 'x', now() - interval '2 hours'),
		('00000000-0000-0000-0000-000000000002', 'gone', '{y}', 'y', now() - interval '1 minute')`)
	h.exec(t, `insert into outbox_lanes (scope, lane) select s, n from unnest('{long gone,gone}'::text[]) s, `+
		`generate_series(0, 63) n`)
	h.exec(t, `insert into outbox_topics (topic, forwarder, paused_at) values ('x', '00000000-0000-0000-0000-000000000001', now()),
		('y', '00000000-0000-0000-0000-000000000002', now()), ('z', '00000000-0000-0000-0000-000000000000', now())`)
	cfg := withTopics("", "a")
	cfg.CleanInterval = 20 * time.Millisecond
	startForwarder(t, h, cfg)
	eventually(t, func() bool {
		return fmt.Sprint(column[string](t, h, "select distinct scope from outbox_lanes order by 1")) == `[["a"] gone]`
	}, "lanes of abandoned scopes are deleted")
	assert.Equal(t, []string{"y", "z"}, column[string](t, h, "select topic from outbox_topics order by 1"))
	_, _ = inTurn(t, h, newFakeBroker(), other, newLogCapture(t))
	eventually(t, func() bool { return value[int64](t, h, epochs) > 0 }, "its lanes exist again")
	assert.Greater(t, value[int64](t, h, epochs), before)
}

// TestSettledAgainAfterReplay: the reply to a settling was lost, an operator replays the messages, and then the
// settling is repeated. It must not settle messages that have not been sent again.
func TestSettledAgainAfterReplay(t *testing.T) {
	parallel(t)
	for name, n := range map[string]int{"one by one": 3, "as a range": 100} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := newMigratedDatabase(t)
			h, gate := newStatementGate(t, url)
			defer gate.releaseAll()
			held := gate.holdSettling()
			w := startForwarder(t, h, quickConfig())
			w.publish(t, "x", "", numbered("", 1, n)...)
			w.arrives(t, numbered("", 1, n)...)
			gate.arrives(t, "settling", held...)
			other := newPgxHandle(t, url)
			eventually(t, func() bool { return len(w.all()) == n }, "all are published")
			other.exec(t, "update outbox set published_at = now()") // like the settling whose reply was lost
			replayed, err := newAdmin(t, other).Replay(t.Context(), admin.Action{
				Filter: admin.Filter{Topic: "x"}, Reason: "no answer",
			})
			require.NoError(t, err)
			require.EqualValues(t, n, replayed.Touched)
			gate.release(held...)
			w.wait(t, "all are sent again", func() bool { return len(w.all()) >= 2*n })
			other.reaches(t, 0, "and settled", "select count(*) from outbox where published_at is null")
		})
	}
}

// TestFailedAgainAfterRequeue: the same with the failure of a message that was dead by then. It keeps its place in the
// order of its key.
func TestFailedAgainAfterRequeue(t *testing.T) {
	parallel(t)
	url := newMigratedDatabase(t)
	h, gate := newStatementGate(t, url)
	defer gate.releaseAll()
	cfg := quickConfig()
	cfg.Classify = func(error) forwarder.Verdict { return forwarder.Permanent }
	held := gate.hold(sqltext.SettleFailed, 0)
	w := startForwarderOn(t, h, cfg, func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "1" && msg.Metadata[outbox.MetadataGeneration] == "" {
			return errRefused
		}
		return nil
	})
	w.publish(t, "x", "K", "1", "2")
	gate.arrives(t, "settling", held)
	other := newPgxHandle(t, url)
	other.exec(t,
		"update outbox set attempts = 1, dead_at = now(), due_at = now() where id = (select min(id) from outbox)")
	requeued, err := newAdmin(t, other).Requeue(t.Context(), admin.Action{
		Filter: admin.Filter{Topic: "x", States: []admin.State{admin.Dead}}, Reason: "no answer",
	})
	require.NoError(t, err)
	require.EqualValues(t, 1, requeued.Touched)
	gate.release(held)
	w.arrives(t, "1", "2")
	require.True(t, slices.IsSorted(w.payloads("K")), "%v", w.payloads("K"))
}
