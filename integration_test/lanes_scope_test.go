package integration_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe/prom"
)

func withTopics(scope string, topics ...string) forwarder.Config {
	cfg := quickConfig()
	cfg.Scope, cfg.Topics = scope, topics
	return cfg
}

// waiting reports whether n live forwarders are waiting for others to leave.
func (h handle) waiting(t testing.TB, n int) bool {
	t.Helper()
	return h.count(t, "select count(*) from outbox_forwarders where expires_at > clock_timestamp() "+
		"and waiting_since is not null") == n
}

// inTurn runs a forwarder that may have to wait for others, until stop is called, which checks that it ended well.
func inTurn(
	t testing.TB, h handle, pub message.Publisher, cfg forwarder.Config, log logCapture,
) (f *forwarder.Forwarder, stop func()) {
	t.Helper()
	f, err := forwarder.New(h.db, pub, cfg, log)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- f.Run(context.Background()) }()
	stop = sync.OnceFunc(func() {
		assert.NoError(t, f.Close())
		assert.NoError(t, within(t, "Run returns", ended))
	})
	t.Cleanup(stop)
	return f, stop
}

func runs(f *forwarder.Forwarder) bool {
	select {
	case <-f.Running():
		return true
	default:
		return false
	}
}

// TestTopicsMayNotOverlap: forwarders whose topics overlap do not work at the same time. The later one waits, as a
// rollout of another set of topics requires, and starts once the other has left.
func TestTopicsMayNotOverlap(t *testing.T) {
	h := onPgx(t)
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
		{"a comma is no border", withTopics("", "a,b"), withTopics("", "a", "b"), false},
		{"the same in another order", withTopics("", "a", "b"), withTopics("", "b", "a", "b"), false},
		{"both all", withTopics(""), withTopics(""), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := newLogCapture(t)
			first, stop := inTurn(t, h, newFakeBroker(), c.first, log)
			within(t, "it runs", first.Running())
			second, _ := inTurn(t, h, newFakeBroker(), c.second, log)
			if !c.overlap {
				within(t, "it runs", second.Running())
				return
			}
			eventually(t, func() bool { return h.waiting(t, 1) }, "the second waits")
			eventually(t, func() bool { return log.count("waiting to start") > 0 }, "it logs that")
			assert.Equal(t, 1, log.count("waiting to start"))
			assert.False(t, runs(second))
			stop()
			within(t, "it runs", second.Running())
			assert.True(t, h.waiting(t, 0))
		})
	}
}

func TestOneOfEightThatOverlapStarts(t *testing.T) {
	extended(t)
	h := onPgx(t)
	var all []*forwarder.Forwarder
	for i := range 8 {
		f, _ := inTurn(t, h, newFakeBroker(), withTopics("", "common", "own-"+itoa(i)), newLogCapture(t))
		all = append(all, f)
	}
	eventually(t, func() bool { return h.waiting(t, 7) }, "seven wait")
	for n := range 8 { // one after another
		var running []*forwarder.Forwarder
		eventually(t, func() bool {
			running = slices.DeleteFunc(slices.Clone(all), func(f *forwarder.Forwarder) bool { return !runs(f) })
			return len(running) > 0
		}, "number %d starts", n)
		require.Len(t, running, 1)
		require.NoError(t, running[0].Close())
		all = slices.DeleteFunc(all, func(f *forwarder.Forwarder) bool { return f == running[0] })
	}
}

// TestTopicsAreHandedOver is a rollout: forwarders of a, then of a and b. All messages are published, those of a key in
// order, and an old forwarder that is restarted in between does not overtake the new ones.
func TestTopicsAreHandedOver(t *testing.T) {
	h := onPgx(t)
	broker, log := newFakeBroker(), newLogCapture(t)
	old1, stop1 := inTurn(t, h, broker, withTopics("", "a"), log)
	old2, stop2 := inTurn(t, h, broker, withTopics("", "a"), log)
	within(t, "it runs", old1.Running())
	within(t, "it runs", old2.Running())
	var want []string
	publish := func() {
		for range 20 {
			want = append(want, itoa(len(want)))
			h.publish(t, "a", "K", want[len(want)-1])
		}
		h.publish(t, "b", "L", "b"+itoa(len(want)))
	}
	publish()
	new1, _ := inTurn(t, h, broker, withTopics("", "a", "b"), log)
	eventually(t, func() bool { return h.waiting(t, 1) }, "the new one waits")
	stop1()
	again, stopAgain := inTurn(t, h, broker, withTopics("", "a"), log) // restart of an old forwarder
	eventually(t, func() bool { return h.waiting(t, 2) }, "it waits behind the new one")
	new2, _ := inTurn(t, h, broker, withTopics("", "a", "b"), log)
	eventually(t, func() bool { return h.waiting(t, 3) }, "the second new one waits")
	publish()
	broker.arrives(t, want...)
	assert.False(t, runs(new1) || runs(new2) || runs(again))
	stop2()
	within(t, "it runs", new1.Running())
	within(t, "it runs", new2.Running()) // although the old one has been waiting for longer
	publish()
	broker.arrives(t, append(want, "b20", "b40", "b60")...)
	assert.Equal(t, want, broker.payloads("K"))
	assert.False(t, runs(again))
	stopAgain()
}

// TestLateReturnMayNotOverlap: a forwarder whose lease expired returns after another one with an overlapping set of
// topics has started under another scope.
func TestLateReturnMayNotOverlap(t *testing.T) {
	h := onPgx(t)
	proxy := newProxy(t, h.url)
	w := world{handle: h, fakeBroker: newFakeBroker(), log: newLogCapture(t)}
	_, first := w.joinAs(t, newPgxHandle(t, proxy.url), shortLease(quickConfig()), nil)
	w.publish(t, "a", "K", "1")
	w.arrives(t, "1")
	calls := first.calls.Load()
	proxy.freeze()
	h.reaches(t, 0, "the lease runs out", "select count(*) from outbox_forwarders where expires_at > clock_timestamp()")
	cfg := withTopics("", "a")
	second, stop := inTurn(t, h, w.fakeBroker, cfg, w.log)
	within(t, "it runs", second.Running())

	proxy.thaw()
	eventually(t, func() bool { return h.waiting(t, 1) }, "the first waits")
	payloads := numbered("", 2, 50)
	for _, p := range payloads {
		w.publish(t, "a", "K", p)
	}
	w.arrives(t, payloads...)
	assert.Equal(t, calls, first.calls.Load(), "the first forwarder published although it must wait")
	stop()
	w.publish(t, "a", "K", "51") // now the first forwarder may run again
	w.arrives(t, "51")
}

// TestLanesOfAForwarderThatWaits: a forwarder whose lease expired must wait to join again, and could not release its
// lanes. It renews its row while it waits; another forwarder of its scope, which has joined, takes the lanes.
func TestLanesOfAForwarderThatWaits(t *testing.T) {
	h := onPgx(t)
	const late = "00000000-0000-0000-0000-00000000000a"
	h.exec(t, sqltext.Tables{}.Render(sqltext.CreateLanes), "default")
	h.exec(t, sqltext.Tables{}.Render(sqltext.AnnounceForwarder), late, "default", []string{}, "late", 3600.0, "{}",
		0.0)
	require.True(t, h.waiting(t, 1))
	h.exec(t, "update outbox_lanes set owner = '"+late+"' where lane < 48")
	s, err := newAdmin(t, h).Stats(t.Context(), admin.StatsConfig{})
	require.NoError(t, err)
	assert.Equal(t, map[string]int{"default": 64}, s.UnownedLanes)
	leased, ok := scraped(t, newCollector(t, h, prom.CollectorConfig{}))["leased_lanes{scope=default}"]
	assert.True(t, ok)
	assert.Zero(t, leased)

	all := numbered("m", 1, 200) // in all lanes
	for _, payload := range all {
		h.publish(t, "orders", payload, payload)
	}
	w := startForwarder(t, h, quickConfig())
	w.arrives(t, all...)
	assert.True(t, h.waiting(t, 1))
}

// TestTheServerLosesThatAForwarderJoined: a failover lost the commit, so the table still has the forwarder as waiting.
// Others would take its lanes, so it joins again.
func TestTheServerLosesThatAForwarderJoined(t *testing.T) {
	h := onPgx(t)
	w := startForwarder(t, h, quickConfig())
	w.publish(t, "orders", "", "1")
	w.arrives(t, "1")
	h.exec(t, "update outbox_forwarders set waiting_since = clock_timestamp()")
	h.reaches(t, 0, "it joins again", "select count(*) from outbox_forwarders where waiting_since is not null")
	w.publish(t, "orders", "", "2")
	w.arrives(t, "1", "2")
}

// TestLateReturnWithoutAnAnswer: the reply to joining again, which would have made it wait, is lost. The forwarder must
// not continue as before.
func TestLateReturnWithoutAnAnswer(t *testing.T) {
	h := onPgx(t)
	proxy := newProxy(t, h.url)
	cfg := shortLease(quickConfig())
	cfg.DisableListen = true
	w := startForwarder(t, newPgxHandle(t, proxy.url), cfg)
	h.publish(t, "a", "K", "1")
	w.arrives(t, "1")
	proxy.freeze()
	h.reaches(t, 0, "the lease runs out", "select count(*) from outbox_forwarders where expires_at > clock_timestamp()")
	h.exec(t, `insert into outbox_forwarders (id, scope, topics, name, expires_at) values (gen_random_uuid(), 'other', `+
		`'{a}', 'another', now() + interval '1 hour')`)
	proxy.cutAtCommitted.Store(true)
	proxy.thaw()
	eventually(t, func() bool { return proxy.cuts.Load() == 1 }, "the reply is lost")
	h.publish(t, "a", "K", "2")
	eventually(t, func() bool { return w.log.count("waiting to start") > 0 }, "it waits")
	assert.Equal(t, []string{"1"}, w.payloads())
	h.exec(t, "delete from outbox_forwarders where scope = 'other'")
	w.arrives(t, "2")
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
		runForwarder(t, h, other, withTopics("", "c"), nil)
		other.arrives(t, "c", "c-unkeyed")
	})
}

// TestShareOfLanes: lanes are spread over the forwarders of a scope, and redistributed when one leaves.
func TestShareOfLanes(t *testing.T) {
	h := onPgx(t)
	cfg := sharing(quickConfig())
	w := startForwarder(t, h, cfg)
	shares := func() []int {
		return column[int](t, h, "select count(*)::int from outbox_lanes where owner is not null group by owner order by 1")
	}
	w.join(t, h, cfg)
	third, err := forwarder.New(h.db, w.fakeBroker, cfg, nil)
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
	require.NoError(t, within(t, "Run returns", ended))
	want(32, 32)
}

// TestFactsThatCannotBeWritten: a forwarder that cannot write its facts still shares its lanes.
func TestFactsThatCannotBeWritten(t *testing.T) {
	parallel(t)
	url := newMigratedDatabase(t)
	h := newPgxHandle(t, url)
	w := startForwarder(t, h, sharing(quickConfig()))
	h.exec(t, "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no facts'; end $$")
	// but not when it joins again
	h.exec(t, "create trigger refuse before update of facts on outbox_forwarders for each row "+
		"when (new.expires_at = old.expires_at) execute function refuse()")
	handle := chain(func(*message.Message) ([]*message.Message, error) { return nil, nil },
		newTx(t, h, middleware.TxConfig{}), newInbox(t, h, middleware.InboxConfig{Service: "shop", Consumer: "book"}))
	_, err := handle(newMessage("order")) // a consumer not yet in its facts
	require.NoError(t, err)
	eventually(t, func() bool { return w.log.count("no facts") > 0 }, "they cannot be written")
	w.join(t, newPgxHandle(t, url), quickConfig())
	eventually(t, func() bool {
		return assert.ObjectsAreEqual([]int{32, 32}, column[int](t, h,
			"select count(*)::int from outbox_lanes where owner is not null group by owner"))
	}, "half of the lanes are released")
	h.exec(t, "drop trigger refuse on outbox_forwarders")
	h.reaches(t, 1, "it logs that finally",
		"select count(*) from outbox_forwarders where facts->'consumers' ? 'shop/book'")
	assert.Zero(t, w.log.count("renewing the lease"), "the rest of its row is unaffected")
}

// TestTopicThatNobodyTakes: without a warning, a misspelled topic in Config.Topics would wait silently.
func TestTopicThatNobodyTakes(t *testing.T) {
	h := onPgx(t)
	for _, topic := range []string{"orders", "invoices", "young"} {
		h.publish(t, topic, "K", topic+"-1", topic+"-2")
	}
	h.exec(t, "update outbox set created_at = now() - interval '5 minutes' where topic <> 'young'")
	w := startForwarder(t, h, withTopics("", "invoices"))
	cfg := withTopics("", "ordres")
	cfg.CleanInterval = 20 * time.Millisecond
	begun := time.Now()
	w.join(t, h, cfg)
	eventually(t, func() bool { return w.log.count("no forwarder publishes this topic") > 0 }, "it logs that")
	w.publish(t, "ordres", "", "taken")
	w.arrives(t, "taken", "invoices-2")
	assert.LessOrEqual(t, w.log.count("no forwarder publishes this topic"), 1+int(time.Since(begun)/time.Minute),
		"once a minute: %v", *w.log.lines)
	assert.Zero(t,
		h.count(t, "select count(*) from outbox where topic in ('orders', 'young') and published_at is not null"))
}

// TestALeaseThatRanOutOnASlowDatabaseIsTakenAgain: joining takes about as many round trips as fit into the lease. It
// gets the time that it needs and starts with a full lease.
func TestALeaseThatRanOutOnASlowDatabaseIsTakenAgain(t *testing.T) {
	extended(t)
	parallel(t)
	url := newMigratedDatabase(t)
	h := newPgxHandle(t, url)
	proxy := newProxy(t, url)
	cfg := shortLease(quickConfig())
	cfg.CleanInterval = 100 * time.Millisecond
	w := startForwarder(t, newPgxHandle(t, proxy.url), cfg)
	before := numbered("before", 1, 20)
	h.publish(t, "orders", "", before...)
	w.arrives(t, before...)
	proxy.delay.Store(int64(150 * time.Millisecond))
	defer proxy.delay.Store(0)
	h.exec(t, "update outbox_forwarders set expires_at = clock_timestamp()")
	h.reaches(t, 1, "it has joined again",
		"select count(*) from outbox_forwarders where expires_at > clock_timestamp()")
	after := numbered("after", 1, 20)
	h.publish(t, "orders", "", after...)
	h.exec(t, "update outbox set published_at = null where published_at is not null")
	w.arrives(t, after...)
	h.reaches(t, 0, "all is settled", "select count(*) from outbox where published_at is null")
}
