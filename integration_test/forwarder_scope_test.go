package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/forwarder"
)

func withTopics(scope string, topics ...string) forwarder.Config {
	cfg := quickConfig()
	cfg.Scope, cfg.Topics = scope, topics
	return cfg
}

func TestTopicsMayNotOverlap(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		for _, c := range []struct {
			name          string
			first, second forwarder.Config
			overlap       bool
		}{
			{"all and some", withTopics(""), withTopics("", "a"), true},
			{"some and all", withTopics("", "a"), withTopics(""), true},
			{"two sets with one in common", withTopics("", "a", "b"), withTopics("", "b", "c"), true},
			{"one scope with two sets", withTopics("s", "a"), withTopics("s", "b"), true},
			{"two scopes with one set", withTopics("s", "a"), withTopics("r", "a"), true},
			{"two scopes with all", withTopics("s"), withTopics("r"), true},
			{"apart", withTopics("", "a"), withTopics("", "b"), false},
			{"the same in another order", withTopics("", "a", "b"), withTopics("", "b", "a", "b"), false},
			{"both all", withTopics(""), withTopics(""), false},
		} {
			t.Run(c.name, func(t *testing.T) {
				startForwarder(t, h, c.first)
				second, err := forwarder.New(h.db, newFakeBroker(), c.second, nil)
				require.NoError(t, err)
				if c.overlap {
					require.ErrorIs(t, second.Run(t.Context()), forwarder.ErrTopicsOverlap)
					return
				}
				runInBackground(t, second)
			})
		}
	})
}

func TestOneOfEightThatOverlapStarts(t *testing.T) {
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errs := make(chan error, 8)
	for i := range 8 {
		f, err := forwarder.New(h.db, newFakeBroker(), withTopics("", "common", "own-"+itoa(i)), nil)
		require.NoError(t, err)
		go func() { errs <- f.Run(ctx) }()
	}
	for range 7 {
		require.ErrorIs(t, <-errs, forwarder.ErrTopicsOverlap)
	}
	cancel()
	require.NoError(t, <-errs)
}

// TestLateReturnMayNotOverlap: a forwarder whose lease ran out comes back, and another that reads its topics under
// another scope has started meanwhile.
func TestLateReturnMayNotOverlap(t *testing.T) {
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	gated, gate := newGatedHandle(t, h)
	w := world{handle: h, fakeBroker: newFakeBroker(), log: newLogCapture(t)}
	_, first := w.joinAs(t, gated, quickConfig(), nil)
	w.publish(t, "a", "K", "1")
	w.arrives(t, "1")
	calls := first.calls.Load()
	gate.shut()

	second, err := forwarder.New(h.db, w.fakeBroker, withTopics("", "a"), w.log)
	require.NoError(t, err)
	eventually(t, func() bool {
		return h.count(t, "select count(*) from outbox_forwarders where expires_at > clock_timestamp()") == 0
	}, "the lease runs out")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- second.Run(ctx) }()
	<-second.Running()

	gate.reopen()
	eventually(t, func() bool { return w.log.count(forwarder.ErrTopicsOverlap.Error()) > 0 }, "the first is refused")
	payloads := numbered("", 2, 50)
	for _, p := range payloads {
		w.publish(t, "a", "K", p)
	}
	w.arrives(t, payloads...)
	assert.Equal(t, calls, first.calls.Load(), "the first published although it may not")
	cancel()
	require.NoError(t, <-ended)
	w.publish(t, "a", "K", "51") // now the first may again
	w.arrives(t, "51")
}

func TestTopicsAndRoutes(t *testing.T) {
	noLeaks(t)
	forEachHandle(t, func(t *testing.T, h handle) {
		routed := newFakeBroker()
		cfg := withTopics("", "a", "b")
		cfg.Routes = map[string]message.Publisher{"b": routed}
		w := startForwarder(t, h, cfg)
		for _, topic := range []string{"a", "b", "c"} {
			w.publish(t, topic, "key", topic)
			w.publish(t, topic, "", topic+"-unkeyed")
		}
		w.arrives(t, "a", "a-unkeyed")
		routed.arrives(t, "b", "b-unkeyed")
		w.idle(t)
		assert.Len(t, w.all(), 2)
		assert.Len(t, routed.all(), 2)
		assert.Equal(t, 2, h.count(t, "select count(*) from outbox where published_at is null and attempts = 0"))

		other := newFakeBroker()
		f, err := forwarder.New(h.db, other, withTopics("", "c"), nil)
		require.NoError(t, err)
		runInBackground(t, f)
		other.arrives(t, "c", "c-unkeyed")
	})
}

// TestShareOfLanes: lanes are spread over the forwarders of a scope, and come back when one leaves.
func TestShareOfLanes(t *testing.T) {
	noLeaks(t)
	h := newPgxHandle(t, newMigratedDatabase(t))
	w := startForwarder(t, h, quickConfig())
	shares := func() []int {
		return column[int](t, h, "select count(*)::int from outbox_lanes where owner is not null group by owner order by 1")
	}
	w.join(t, h, quickConfig())
	third, err := forwarder.New(h.db, w.fakeBroker, quickConfig(), nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- third.Run(ctx) }()
	want := func(counts ...int) {
		t.Helper()
		eventually(t, func() bool { return assert.ObjectsAreEqual(counts, shares()) }, "shares are %v", counts)
	}
	want(21, 21, 22)
	cancel()
	require.NoError(t, <-ended)
	want(32, 32)
}

// TestSurplusLanesAreGivenBackOneByOne: a publish that takes long keeps its own lane and no other from being given
// back, and waiting for it costs next to nothing.
func TestSurplusLanesAreGivenBackOneByOne(t *testing.T) {
	noLeaks(t)
	url := newMigratedDatabase(t)
	counter := &statementCounter{text: "outbox_lanes"}
	first := pgxHandle(t, "counted", url, counter.on)
	h := newPgxHandle(t, url)
	w := world{handle: h, fakeBroker: newFakeBroker(), log: newLogCapture(t)}
	goOn := make(chan struct{})
	w.joinAs(t, first, quickConfig(), func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "slow" {
			<-goOn
		}
		return nil
	})
	// All lanes are busy, so that whichever are surplus must wait.
	for lane := range 64 {
		w.publish(t, "a", value[string](t, h, "select 'k' || i from generate_series(1, 10000) i where hashtext('k' || i) & 63 = $1 limit 1", lane), "slow")
	}
	w.wait(t, "publishes wait", func() bool { return w.triedTimes("slow") == 0 && counter.n.Load() > 0 })
	eventually(t, func() bool { return h.count(t, "select count(*) from outbox where published_at is null") == 64 }, "written")
	w.join(t, h, quickConfig())
	before := counter.n.Load()
	begun := time.Now()
	eventually(t, func() bool { return time.Since(begun) > time.Second }, "a second passes")
	assert.Less(t, counter.n.Load()-before, int64(40), "statements about lanes in a second")
	close(goOn)
	eventually(t, func() bool {
		return assert.ObjectsAreEqual([]int{32, 32}, column[int](t, h,
			"select count(*)::int from outbox_lanes where owner is not null group by owner"))
	}, "half of the lanes are given back")
}
