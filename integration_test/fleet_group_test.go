package integration_test

import (
	"context"
	"errors"
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
	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/forwarder"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// A database wakes for messages of other processes and of its own, for due messages and for retries, and sleeps again:
// then no forwarder is registered, and nothing is lost in that time.
func TestFleetGroupWakesAndSleeps(t *testing.T) {
	parallel(t)
	all := append(newTenants(t, "alone", 0), newTenants(t, "shared", 3)...)
	broker := newFakeBroker()
	all[1].publish(t, "events", "", "before it runs")
	f := runFleet(t, newRegistry(targetsOf(all...)...).Discover, fleet.Config{MaxConns: 6}, nil)
	runGroup(t, f, broker, quickGroup(), nil)
	broker.arrives(t, "before it runs")
	sleeps := func(who tenant) {
		t.Helper()
		eventually(t, func() bool { return who.asleep(t) && who.pendingIn(t) == 0 }, "%s sleeps", who.Key)
	}
	for _, who := range []tenant{all[0], all[2]} {
		sleeps(who)
		who.publish(t, "events", "", "of another process to "+who.Key)
		broker.arrives(t, "of another process to "+who.Key)
		sleeps(who)

		db, err := f.Get(who.Key)
		require.NoError(t, err)
		mine := who.handle
		mine.db = db
		mine.publish(t, "events", "", "of this process to "+who.Key)
		broker.arrives(t, "of this process to "+who.Key)
		sleeps(who)

		late := newMessage("due soon at " + who.Key)
		outbox.SetDelay(late, 700*time.Millisecond)
		pub, err := outbox.NewPublisher(who.db, outbox.PublisherConfig{WithoutTx: outbox.OwnTx}, nil)
		require.NoError(t, err)
		require.NoError(t, pub.Publish("events", late))
		broker.arrives(t, "due soon at "+who.Key)
		sleeps(who)

		// It takes its id, and becomes visible only after the forwarder that it wakes has ended.
		tx, err := who.pool.Begin(t.Context())
		require.NoError(t, err)
		defer tx.Rollback(context.Background())
		ctx, err := outbox.WithPgxTx(t.Context(), who.db, tx)
		require.NoError(t, err)
		require.NoError(t, pub.PublishContext(ctx, "events", newMessage("late at "+who.Key)))
		who.publish(t, "events", "", "after the late one at "+who.Key)
		broker.arrives(t, "after the late one at "+who.Key)
		eventually(t, func() bool { return who.asleep(t) }, "it sleeps although a transaction is open")
		who.isPolled(t)
		require.NoError(t, tx.Commit(t.Context()))
		broker.arrives(t, "late at "+who.Key)
		sleeps(who)
	}
}

// A failed message is retried when it is due although its forwarder has ended by then, and a restarted sequence hides
// no messages from polls.
func TestFleetGroupTriesAgain(t *testing.T) {
	parallel(t)
	who := newTenants(t, "one", 0)[0]
	broker := newFakeBroker()
	var failures atomic.Int32
	var slept atomic.Bool
	broker.answers(func(string, *message.Message) error {
		if !slept.Load() {
			failures.Add(1)
			return errors.New("not now")
		}
		return nil
	})
	f := runFleet(t, fleet.Static(who.Target), fleet.Config{}, nil)
	cfg := quickGroup()
	cfg.Forwarder.Backoff = outbox.Backoff{Initial: time.Second, Max: time.Second}
	runGroup(t, f, broker, cfg, nil)
	who.publish(t, "events", "key", "fails at first")
	eventually(t, func() bool { return failures.Load() > 0 && who.asleep(t) }, "it sleeps until the next attempt")
	slept.Store(true)
	broker.arrives(t, "fails at first")
	who.publish(t, "events", "", "another", "and another")
	broker.arrives(t, "another", "and another")
	eventually(t, func() bool { return who.asleep(t) }, "it sleeps")
	who.isPolled(t)
	who.exec(t, "TRUNCATE outbox RESTART IDENTITY")
	// Two messages, as the remembered number is 1 or 3, and an equal one is noticed only by the next full read.
	who.publish(t, "events", "", "the first of a new sequence", "the second")
	broker.arrives(t, "the first of a new sequence", "the second")
}

// Messages that operators send again in an idle database are found by the next poll, not only by the full read once a
// minute.
func TestFleetGroupSeesWhatIsSentAgain(t *testing.T) {
	parallel(t)
	who := newTenants(t, "one", 0)[0]
	broker := newFakeBroker()
	f := runFleet(t, fleet.Static(who.Target), fleet.Config{}, nil)
	runGroup(t, f, broker, quickGroup(), nil)
	sent := 0
	sees := func(act func(context.Context, admin.Action) (admin.Result, error)) {
		t.Helper()
		eventually(t, func() bool { return who.asleep(t) }, "it sleeps")
		who.isPolled(t)
		r, err := act(t.Context(), admin.Action{Filter: admin.Filter{IDs: []string{"1"}}})
		require.NoError(t, err)
		require.Equal(t, int64(1), r.Touched)
		sent++
		eventually(t, func() bool { return broker.triedTimes("a") == sent }, "it is sent again")
	}
	who.publish(t, "events", "", "a")
	broker.arrives(t, "a")
	sent++
	sees(newAdmin(t, who.handle).Replay)
	eventually(t, func() bool { return who.asleep(t) && who.pendingIn(t) == 0 }, "it sleeps")
	who.exec(t, "UPDATE outbox SET dead_at = now(), published_at = NULL")
	sees(newAdmin(t, who.handle).Requeue)
	eventually(t, func() bool { return who.asleep(t) && who.pendingIn(t) == 0 }, "it sleeps")
	who.exec(t, "UPDATE outbox SET due_at = now() + interval '1 hour', attempts = 1, last_error = 'e', published_at = NULL")
	sees(newAdmin(t, who.handle).RetryNow)
}

// A tenant whose table is locked does not hold up the others that share its connections.
func TestALockedTenantHoldsUpNoOther(t *testing.T) {
	parallel(t)
	all := newTenants(t, "shared", 3)
	broker := newFakeBroker()
	f := runFleet(t, fleet.Static(targetsOf(all...)...), fleet.Config{MaxConns: 3}, nil)
	cfg := quickGroup()
	cfg.Forwarder.QueryTimeout = time.Second
	log := newLogCapture(t)
	runGroup(t, f, broker, cfg, log)
	for _, who := range all {
		who.isPolled(t)
	}
	render := (*core.DB)(all[0].db).Render
	tx, err := all[0].pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background())
	_, err = tx.Exec(t.Context(), render("SELECT nextval('{outbox_id_seq}')"))
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), render("LOCK TABLE {outbox}"))
	require.NoError(t, err)
	skipped := func() bool { return log.count("skipped, for longer each time") > 0 }
	eventually(t, skipped, "the locked tenant is skipped")
	for _, who := range all[1:] {
		who.publish(t, "events", "", "beside the lock in "+who.Key)
		broker.arrives(t, "beside the lock in "+who.Key)
	}
	require.NoError(t, tx.Rollback(t.Context()))
	all[0].publish(t, "events", "", "after the lock")
	broker.arrives(t, "after the lock")
}

// TestABrokenTenantHoldsUpNoOther: the role of the service may not use the schema of one tenant, and another has no
// tables. Both are skipped, with log lines that name the cure.
func TestABrokenTenantHoldsUpNoOther(t *testing.T) {
	parallel(t)
	all := newTenants(t, "schemas", 3)
	role := newRole(t, all[0].handle)
	for i := range all {
		if schema := all[i].Tables.Schema; i > 0 {
			all[i].exec(t, "GRANT USAGE ON SCHEMA "+schema+" TO "+role)
			all[i].exec(t, "GRANT ALL ON ALL TABLES IN SCHEMA "+schema+" TO "+role)
			all[i].exec(t, "GRANT ALL ON ALL SEQUENCES IN SCHEMA "+schema+" TO "+role)
		}
		all[i].DSN += "&role=" + role
	}
	broker := newFakeBroker()
	log := newLogCapture(t)
	f := runFleet(t, fleet.Static(append(targetsOf(all...), fleet.Target{Key: "new", DSN: newDatabase(t)})...),
		fleet.Config{MaxConns: 3}, nil)
	runGroup(t, f, broker, quickGroup(), log)
	for _, line := range []string{
		"permission denied for schema",
		"draining the outbox failed: the database is skipped, for longer each time: poll " +
			"the outbox: ERROR: relation \"outbox_id_seq\" does not exist (SQLSTATE 42P01) (run schema.Migrate ",
	} {
		eventually(t, func() bool { return log.count(line) > 0 }, "the log has: %s", line)
	}
	for _, who := range all[1:] {
		who.publish(t, "events", "", "in "+who.Key)
		broker.arrives(t, "in "+who.Key)
	}
}

// More databases than slots: they take turns, even if none of them ever runs out of work.
func TestFleetGroupTakesTurns(t *testing.T) {
	parallel(t)
	all := newTenants(t, "busy", 4)
	broker := newFakeBroker()
	f := runFleet(t, fleet.Static(targetsOf(all...)...), fleet.Config{MaxConns: 3}, nil)
	cfg := quickGroup()
	cfg.MaxActive, cfg.IdleAfter = 1, time.Hour
	g := runGroup(t, f, broker, cfg, nil)
	for _, who := range all {
		who.publish(t, "events", "", "one of "+who.Key, "two of "+who.Key)
	}
	for _, who := range all {
		broker.arrives(t, "one of "+who.Key, "two of "+who.Key)
	}
	all[3].publish(t, "events", "", "drained")
	require.NoError(t, g.Drain(t.Context()))
	assert.Zero(t, all[3].pendingIn(t))
}

// Drain empties all reachable databases and names the others.
func TestFleetGroupDrain(t *testing.T) {
	parallel(t)
	all := newTenants(t, "one", 3)
	all[1].exec(t, "DROP TABLE s001.outbox CASCADE")
	away := fleet.Target{Key: "away", DSN: "postgres://localhost:1/nowhere"}
	broker := newFakeBroker()
	f := runFleet(t, fleet.Static(append(targetsOf(all...), away)...), fleet.Config{}, nil)
	all[0].publish(t, "events", "", "a", "b")
	all[2].publish(t, "events", "", "c")
	g, err := forwarder.NewGroup(f, broker, quickGroup(), nil)
	require.NoError(t, err)
	err = g.Drain(t.Context())
	require.ErrorContains(t, err, `database "one-001"`)
	require.ErrorContains(t, err, "run schema.Migrate with the same Tables")
	require.ErrorContains(t, err, `database "away"`)
	assert.NotContains(t, err.Error(), `"one-000"`)
	assert.Len(t, broker.all(), 3)
	assert.ErrorIs(t, g.Drain(t.Context()), outbox.ErrClosed)
	assert.ErrorIs(t, g.Run(t.Context()), outbox.ErrRunning)
}

// Each database may have its own configuration and publisher; one that cannot be configured is left alone, and the log
// names it.
func TestFleetGroupConfigure(t *testing.T) {
	parallel(t)
	all := newTenants(t, "one", 3)
	brokers := map[string]*fakeBroker{all[0].Key: newFakeBroker(), all[2].Key: newFakeBroker()}
	cfg := quickGroup()
	cfg.Configure = func(_ context.Context, key string, cfg *forwarder.Config, pub *message.Publisher) error {
		if key == all[1].Key {
			panic("no broker for it")
		}
		cfg.Retention = -1
		*pub = brokers[key]
		return nil
	}
	log := newLogCapture(t)
	f := runFleet(t, fleet.Static(targetsOf(all...)...), fleet.Config{}, nil)
	runGroup(t, f, nil, cfg, log)
	for _, who := range all {
		who.publish(t, "events", "", "to "+who.Key)
	}
	brokers[all[0].Key].arrives(t, "to "+all[0].Key)
	brokers[all[2].Key].arrives(t, "to "+all[2].Key)
	eventually(t, func() bool { return all[0].count(t, "SELECT count(*) FROM s000.outbox") == 0 },
		"its state is discarded")
	eventually(t, func() bool { return log.count("no broker for it") == 1 }, "it is logged")
	assert.Equal(t, 1, all[1].pendingIn(t))
}

// Configure may give a database topics that GroupConfig.Forwarder does not have: messages of any topic wake the
// database until its forwarder has started once, and only messages of its own topics do afterwards.
func TestFleetGroupConfigureTopics(t *testing.T) {
	parallel(t)
	who := newTenants(t, "one", 0)[0]
	broker := newFakeBroker()
	var starts atomic.Int32
	cfg := quickGroup()
	cfg.Forwarder.Topics = []string{"events"}
	cfg.Configure = func(_ context.Context, _ string, cfg *forwarder.Config, _ *message.Publisher) error {
		starts.Add(1)
		cfg.Topics = []string{"orders"}
		return nil
	}
	g := runGroup(t, runFleet(t, fleet.Static(who.Target), fleet.Config{}, nil), broker, cfg, nil)
	who.publish(t, "orders", "", "first")
	require.NoError(t, g.Drain(t.Context()))
	assert.Zero(t, who.pendingIn(t))
	eventually(t, func() bool { return who.asleep(t) }, "it sleeps")
	who.publish(t, "orders", "", "second")
	broker.arrives(t, "second")
	eventually(t, func() bool { return who.asleep(t) }, "it sleeps again")
	before := starts.Load()
	who.publish(t, "events", "", "of a topic that it does not read")
	require.NoError(t, g.Drain(t.Context()))
	assert.Equal(t, before, starts.Load(), "starts of its forwarder")
	assert.Equal(t, 1, who.pendingIn(t))
}

// A target is removed while its messages are in flight: they are settled before its pool is closed, and its other
// messages wait until it returns.
func TestFleetTargetGoesWhileItIsDrained(t *testing.T) {
	parallel(t)
	all := newTenants(t, "one", 2)
	r := newRegistry(targetsOf(all...)...)
	broker := newFakeBroker()
	entered, leave := make(chan struct{}), make(chan struct{})
	broker.answers(func(_ string, msg *message.Message) error {
		if string(msg.Payload) == "under way" {
			close(entered)
			<-leave
		}
		return nil
	})
	f := runFleet(t, r.Discover, fleet.Config{RefreshInterval: 20 * time.Millisecond}, nil)
	runGroup(t, f, broker, quickGroup(), nil)
	who := all[0]
	who.publish(t, "events", "", "under way")
	<-entered
	r.remove(who.Key)
	eventually(t, func() bool { _, err := f.Get(who.Key); return errors.Is(err, fleet.ErrUnknownDatabase) },
		"the target is removed")
	all[1].publish(t, "events", "", "of the other")
	broker.arrives(t, "of the other")
	close(leave)
	eventually(t, func() bool {
		return who.pendingIn(t) == 0 && who.asleep(t)
	}, "it is settled, and the forwarder has left")
	who.publish(t, "events", "", "no forwarder is running")
	r.add(who.Target)
	broker.arrives(t, "no forwarder is running")
	assert.Equal(t, 1, broker.triedTimes("under way"))
}

// Old published messages and old rows of the inbox are also deleted in idle databases.
func TestFleetGroupCleansUp(t *testing.T) {
	parallel(t)
	who := newTenants(t, "one", 0)[0]
	broker := newFakeBroker()
	who.publish(t, "events", "", "old")
	f := runFleet(t, fleet.Static(who.Target), fleet.Config{}, nil)
	cfg := quickGroup()
	cfg.Forwarder.Retention, cfg.Forwarder.CleanInterval = time.Millisecond, 10*time.Millisecond
	runGroup(t, f, broker, cfg, nil)
	who.reaches(t, 0, "it is deleted", "SELECT count(*) FROM outbox")
}

// publishing counts the databases whose messages are being published, and fails the test as soon as there are too many.
type publishing struct {
	t    testing.TB
	most int

	mu  sync.Mutex
	now map[string]int
}

func (p *publishing) enter(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now[key]++; len(p.now) > p.most {
		p.t.Errorf("messages of %d databases are published concurrently, the limit is %d", len(p.now), p.most)
	}
}

func (p *publishing) leave(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now[key]--; p.now[key] == 0 {
		delete(p.now, key)
	}
}

// TestAHungPublisherTakesNoTurnsFromOthers: the publisher of one database hangs while only one forwarder may run. The
// others are published nevertheless, and so are the hung messages when that is over.
func TestAHungPublisherTakesNoTurnsFromOthers(t *testing.T) {
	parallel(t)
	all := newTenants(t, "one", 3)
	broker := newFakeBroker()
	hangs, goOn := make(chan struct{}, 100), make(chan struct{})
	broker.answers(func(topic string, _ *message.Message) error {
		if topic == "hangs" {
			hangs <- struct{}{}
			<-goOn
		}
		return nil
	})
	var once sync.Once
	release := func() { once.Do(func() { close(goOn) }) }
	defer release()
	cfg := quickGroup()
	cfg.MaxActive, cfg.IdleAfter, cfg.Forwarder.CloseTimeout = 1, time.Hour, time.Minute
	runGroup(t, runFleet(t, fleet.Static(targetsOf(all...)...), fleet.Config{}, nil), broker, cfg, nil)
	all[0].publish(t, "hangs", "K", "hung-1", "hung-2")
	<-hangs
	for round := range 2 {
		for _, who := range all[1:] {
			payload := fmt.Sprint(who.Key, " in round ", round)
			who.publish(t, "events", "", payload)
			broker.arrives(t, payload)
		}
	}
	assert.Zero(t, broker.triedTimes("hung-2"), "calls for messages behind the hung one")
	release()
	broker.arrives(t, "hung-1", "hung-2")
	eventually(t, func() bool { return all[0].pendingIn(t) == 0 }, "all is settled")
	assert.Equal(t, []string{"hung-1", "hung-2"}, broker.payloads("K"))
}

// TestAGroupBeyondItsLimitsLosesNothing: more databases than forwarders may run receive messages all the time. One of
// them refuses the Group's writes for a while, and messages of two hang for longer than others wait. All are published,
// each key in order.
func TestAGroupBeyondItsLimitsLosesNothing(t *testing.T) {
	extended(t)
	parallel(t)
	const maxActive, stuck = 2, 4
	all := append(newTenants(t, "shared", 8), newTenants(t, "alone", 0)...)
	broken := all[3]
	at := publishing{t: t, most: stuck * maxActive, now: map[string]int{}}
	broker := newFakeBroker()
	slow := make(chan struct{})
	var once sync.Once
	release := func() { once.Do(func() { close(slow) }) }
	defer release()
	var hung atomic.Int32
	broker.answers(func(_ string, msg *message.Message) error {
		key := msg.Metadata[outbox.MetadataKey]
		at.enter(key)
		defer at.leave(key)
		if (key == all[1].Key || key == all[8].Key) && hung.Add(1) <= 2 {
			<-slow
		}
		return nil
	})
	cfg := quickGroup()
	cfg.MaxActive, cfg.Forwarder.LeaseTTL = maxActive, 5*time.Second
	f := runFleet(t, fleet.Static(targetsOf(all...)...), fleet.Config{MaxConnsPerDSN: 4}, nil)
	log := newLogCapture(t)
	runGroup(t, f, broker, cfg, log)
	broken.exec(t, `CREATE FUNCTION s003.refuse() RETURNS trigger LANGUAGE plpgsql AS
		'BEGIN RAISE EXCEPTION ''not now''; END'`)
	broken.exec(t, `CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON s003.outbox_forwarders
		FOR EACH ROW EXECUTE FUNCTION s003.refuse()`)
	const rounds = 6
	var payloads []string
	for round := range rounds {
		for _, who := range all {
			some := []string{fmt.Sprint(who.Key, " ", round, " a"), fmt.Sprint(who.Key, " ", round, " b")}
			payloads = append(payloads, some...)
			if round%2 == 0 {
				who.publish(t, "events", who.Key, some...) // like another process
				continue
			}
			db, err := f.Get(who.Key)
			require.NoError(t, err)
			mine := who.handle
			mine.db = db
			mine.publish(t, "events", who.Key, some...)
		}
		switch round {
		case 0: // not left alone for long after this
			eventually(t, func() bool { return log.count("draining the outbox failed") > 0 }, "one refuses")
			broken.exec(t, "DROP TRIGGER refuse ON s003.outbox_forwarders")
		case 2:
			healthy := slices.DeleteFunc(slices.Clone(payloads), func(p string) bool {
				return slices.ContainsFunc([]tenant{all[1], all[3], all[8]}, func(who tenant) bool {
					return strings.HasPrefix(p, who.Key+" ")
				})
			})
			broker.arrives(t, healthy...)
		case 4:
			release()
		}
	}
	broker.arrives(t, payloads...)
	for _, who := range all {
		eventually(t, func() bool { return who.pendingIn(t) == 0 && who.asleep(t) }, "%s sleeps, all settled", who.Key)
		want := slices.DeleteFunc(slices.Clone(payloads), func(p string) bool { return !strings.HasPrefix(p, who.Key+" ") })
		assert.Equal(t, want, broker.payloads(who.Key), who.Key)
	}
}
