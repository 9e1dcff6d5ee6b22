package integration_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe/prom"
)

// deadInARouter lets messages die in the handler shop/book of topic orders, whose inbox has its own message keys. The
// handler succeeds once mended is true.
func deadInARouter(t testing.TB, h handle, mended *atomic.Bool, msgs ...*message.Message) *feed {
	t.Helper()
	f := newFeed()
	startRouter(t, func(r *message.Router) {
		r.AddMiddleware(stackFor(t, newOutboxPublisher(t, h), middleware.StackConfig{
			Service: "shop", ErrorHandler: middleware.ErrorHandlerConfig{DeadLetterTopic: "dead_letters"},
			Inbox: middleware.InboxConfig{
				Key: func(m *message.Message) (string, error) { return "key " + m.UUID, nil },
			},
		}, nil)...)
		r.AddConsumerHandler("book", "orders", f, func(msg *message.Message) error {
			if !mended.Load() {
				return outbox.Poison(errHandler)
			}
			return write(h, msg)
		})
	})
	for _, msg := range msgs {
		require.True(t, f.deliver(t, msg))
	}
	return f
}

// sentAgain returns the messages that were redriven, oldest first.
func sentAgain(t testing.TB, h handle) (msgs []*message.Message) {
	t.Helper()
	for _, id := range column[int64](t, h, "SELECT id FROM outbox WHERE topic = 'orders' ORDER BY id") {
		m, err := newAdmin(t, h).Get(t.Context(), admin.Outbox, fmt.Sprint(id))
		require.NoError(t, err)
		msg := message.NewMessage(m.UUID, m.Payload)
		msg.Metadata = m.Metadata
		msgs = append(msgs, msg)
	}
	return msgs
}

// TestRedriveOfKeptDeadLetters: a dead message is published again unchanged and handled once, even if its broker
// redelivers it.
func TestRedriveOfKeptDeadLetters(t *testing.T) {
	h := onPgx(t)
	var mended atomic.Bool
	first, second := newMessage("one"), newMessage("two")
	first.Metadata = message.Metadata{
		"trace": "abc", outbox.MetadataAggregateType: "order", outbox.MetadataAggregateID: "7",
	}
	f := deadInARouter(t, h, &mended, first, second)
	a := newAdmin(t, h)
	act := admin.Action{Filter: admin.Filter{In: admin.Inbox, All: true}, Reason: "mended"}
	act.DryRun = true
	tried, err := a.Redrive(t.Context(), act)
	require.NoError(t, err)
	assert.Equal(t, admin.Count{N: 2}, tried.Matched)
	assert.Empty(t, sentAgain(t, h), "a preview changes nothing")
	act.DryRun, act.Preview = false, tried.Preview
	r, err := a.Redrive(t.Context(), act)
	require.NoError(t, err)
	assert.Equal(t, int64(2), r.Touched)

	again := sentAgain(t, h)
	require.Len(t, again, 2)
	assert.Equal(t, first.UUID, again[0].UUID)
	assert.Equal(t, first.Payload, again[0].Payload)
	deadLetter := value[string](t, h, "SELECT uuid FROM outbox WHERE metadata->>'uuid_poisoned' = $1", first.UUID)
	assert.Equal(t, message.Metadata{
		"trace": "abc", outbox.MetadataAggregateType: "order", outbox.MetadataAggregateID: "7",
		outbox.MetadataGeneration: deadLetter + ".0", "outbox_redriven": "1",
	}, again[0].Metadata)
	assert.Equal(t, "order/7",
		value[string](t, h, "SELECT key FROM outbox WHERE topic = 'orders' AND uuid = $1", first.UUID))

	r, err = a.Redrive(t.Context(), act) // again, with the same preview
	require.NoError(t, err)
	assert.Zero(t, r.Touched)
	assert.Len(t, sentAgain(t, h), 2)

	mended.Store(true)
	for range 2 { // delivered by the forwarder and redelivered by the broker
		for _, msg := range again {
			assert.True(t, f.deliver(t, msg.Copy()))
			assert.Equal(t, 1, effects(t, h, msg))
		}
	}
	entries, _, err := a.Audit(t.Context(), admin.Page{Limit: 2})
	require.NoError(t, err)
	assert.Equal(t, "redrive", entries[1].Action)
	assert.Equal(t, int64(2), entries[1].Result.Touched)
}

// TestRedriveOfWhatDiesAgain: a message that dies after each redrive is redriven each time, under a new generation and
// with a dead letter for each death.
func TestRedriveOfWhatDiesAgain(t *testing.T) {
	h := onPgx(t)
	var mended atomic.Bool
	f := deadInARouter(t, h, &mended, newMessage("one"))
	a := newAdmin(t, h)
	for n := range 3 {
		r, err := a.Redrive(t.Context(), admin.Action{Filter: admin.Filter{In: admin.Inbox, All: true}})
		require.NoError(t, err)
		require.Equal(t, int64(1), r.Touched)
		again := sentAgain(t, h)
		require.Len(t, again, n+1)
		assert.Equal(t, fmt.Sprint(n+1), again[n].Metadata.Get("outbox_redriven"))
		assert.True(t, f.deliver(t, again[n].Copy()))
	}
	assert.Equal(t, 4, h.count(t, "SELECT count(DISTINCT uuid) FROM outbox WHERE topic = 'dead_letters'"))
	assert.Equal(t, 3,
		h.count(t, "SELECT count(DISTINCT metadata->>'outbox_generation') FROM outbox WHERE topic = 'orders'"))
}

// TestGenerationsOfARedrivenMessage: requeues of a redriven message start generations that its earlier requeues did not
// have, because JetStream would take the message for a duplicate.
func TestGenerationsOfARedrivenMessage(t *testing.T) {
	h := onPgx(t)
	var mended atomic.Bool
	deadInARouter(t, h, &mended, newMessage("one"))
	a := newAdmin(t, h)
	_, err := a.Redrive(t.Context(), admin.Action{Filter: admin.Filter{In: admin.Inbox, All: true}})
	require.NoError(t, err)
	deadLetter := value[string](t, h, "SELECT uuid FROM outbox WHERE topic = 'dead_letters'")
	for n := range 3 {
		assert.Equal(t, fmt.Sprint(deadLetter, ".", n), sentAgain(t, h)[0].Metadata.Get(outbox.MetadataGeneration))
		h.exec(t, "UPDATE outbox SET dead_at = now() WHERE topic = 'orders'")
		_, err := a.Requeue(t.Context(), admin.Action{Filter: admin.Filter{In: admin.Outbox, Topic: "orders", All: true}})
		require.NoError(t, err)
	}
}

// TestRedriveIsOneTransaction: a redrive that is killed, or two concurrent ones, send and revive a message together or
// not at all.
func TestRedriveIsOneTransaction(t *testing.T) {
	h := onPgx(t)
	var mended atomic.Bool
	var msgs []*message.Message
	for i := range 40 {
		msgs = append(msgs, newMessage(fmt.Sprint(i)))
	}
	deadInARouter(t, h, &mended, msgs...)
	h.exec(t, `CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(60); RETURN NULL; END $$`)
	a, err := admin.New(h.db, admin.Config{Actor: "alice", BatchSize: 3}, nil)
	require.NoError(t, err)
	act := admin.Action{Filter: admin.Filter{In: admin.Inbox, All: true}}
	for _, table := range []string{"outbox", "inbox", "outbox_audit"} { // fail in each part of the statement
		timing := map[string]string{
			"outbox": "AFTER INSERT", "inbox": "AFTER UPDATE", "outbox_audit": "BEFORE UPDATE OF touched",
		}
		h.exec(t, "CREATE TRIGGER die "+timing[table]+" ON "+table+" FOR EACH ROW EXECUTE FUNCTION die()")
		_, err = a.Redrive(t.Context(), act)
		require.Error(t, err, table)
		h.exec(t, "DROP TRIGGER die ON "+table)
		assert.Empty(t, sentAgain(t, h), table)
		assert.Equal(t, len(msgs), h.count(t, "SELECT count(*) FROM inbox WHERE dead_at IS NOT NULL"), table)
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			_, err := a.Redrive(t.Context(), act)
			assert.NoError(t, err)
		})
	}
	all.Wait()
	_, err = a.Redrive(t.Context(), act)
	require.NoError(t, err)
	assert.Len(t, sentAgain(t, h), len(msgs))
	assert.Equal(t, len(msgs), h.count(t, "SELECT count(DISTINCT uuid) FROM outbox WHERE topic = 'orders'"))
	assert.Equal(t, len(msgs), h.count(t, "SELECT count(*) FROM inbox WHERE dead_at IS NULL AND revived = 1"))
}

// TestRedrivenMeanwhile: messages that another operator redrives between the search and the act lack no dead letter.
func TestRedrivenMeanwhile(t *testing.T) {
	h, gate := newStatementGate(t, newMigratedDatabase(t))
	defer gate.releaseAll()
	var mended atomic.Bool
	deadInARouter(t, h, &mended, newMessage("one"), newMessage("two"))
	act := admin.Action{Filter: admin.Filter{In: admin.Inbox, All: true}}
	show := gate.hold(sqltext.Inbox.Show, 0)
	done := make(chan error)
	var r admin.Result
	go func() {
		var err error
		r, err = newAdmin(t, h).Redrive(t.Context(), act)
		done <- err
	}()
	gate.arrives(t, "the statement before the act", show)
	_, err := newAdmin(t, newPgxHandle(t, h.url)).Redrive(t.Context(), act)
	require.NoError(t, err)
	gate.release(show)
	require.NoError(t, <-done)
	assert.Zero(t, r.NoDeadLetter)
	assert.Len(t, sentAgain(t, h), 2)
}

// TestRedriveWithoutADeadLetter reports the messages whose dead letter is gone, and the next step.
func TestRedriveWithoutADeadLetter(t *testing.T) {
	h := onPgx(t)
	var mended atomic.Bool
	kept, gone := newMessage("kept"), newMessage("gone")
	deadInARouter(t, h, &mended, kept, gone)
	h.exec(t, "DELETE FROM outbox WHERE metadata->>'uuid_poisoned' = $1", gone.UUID)
	c := ctl{t: t, url: h.url}
	r := c.run("inbox", "redrive", "shop/book:key "+gone.UUID, "--yes")
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.err, "the dead letters are no longer in the outbox")
	r = c.run("inbox", "redrive", "--all", "--yes")
	assert.Zero(t, r.code, r.err)
	assert.Contains(t, r.out, "Redriven 1 message")
	assert.Contains(t, r.err, "1 message has no dead letter in the outbox any more")
	again := sentAgain(t, h)
	require.Len(t, again, 1)
	assert.Equal(t, kept.UUID, again[0].UUID)
	assert.Equal(t, 1, h.count(t, "SELECT count(*) FROM inbox WHERE dead_at IS NOT NULL"), "the other stays dead")
	_, err := newAdmin(t, h).Redrive(t.Context(), admin.Action{Filter: admin.Filter{In: admin.Inbox, All: true}})
	require.ErrorIs(t, err, admin.ErrNoDeadLetter)
}

// TestRedriveByRoles: the operators' role may redrive, the readers' may not, and the page offers it to users who may
// act.
func TestRedriveByRoles(t *testing.T) {
	t.Parallel()
	owner, as := newRoles(t)
	var mended atomic.Bool
	deadInARouter(t, owner, &mended, newMessage("one"), newMessage("two"))
	act := admin.Action{Filter: admin.Filter{In: admin.Inbox, All: true}, Limit: 1}
	reader := as("reader")
	_, err := newAdmin(t, reader).Redrive(t.Context(), act)
	require.Error(t, err)
	operator := as("admin")
	r, err := newAdmin(t, operator).Redrive(t.Context(), act)
	require.NoError(t, err)
	assert.Equal(t, int64(1), r.Touched)

	s := newSite(t, operator, ui.Access{Actor: "alice", Act: true})
	s.get("messages?in=inbox&state=dead").says(t, "the list", "Redrive")
	assert.NotContains(t, newSite(t, operator, ui.Access{}).get("messages?in=inbox&state=dead").body, "Redrive")
}

// TestNothingIsRedrivenToAPattern: a subscriber of another package records the pattern that it subscribed to, which
// cannot be published to.
func TestNothingIsRedrivenToAPattern(t *testing.T) {
	h := onPgx(t)
	var mended atomic.Bool
	deadInARouter(t, h, &mended, newMessage("one"))
	h.exec(t, `update outbox set metadata = metadata || '{"topic_poisoned": "orders.*.created"}'`)
	a := newAdmin(t, h)
	redrive := admin.Action{Filter: admin.Filter{In: admin.Inbox, All: true}, Reason: "mended"}
	for _, redrive.DryRun = range []bool{true, false} {
		_, err := a.Redrive(t.Context(), redrive)
		require.ErrorIs(t, err, admin.ErrInvalid)
		require.ErrorContains(t, err, `"orders.*.created"`)
	}
	assert.Equal(t, 1, h.count(t, `select count(*) from inbox where dead_at is not null`))
	assert.Equal(t, 1, h.count(t, `select count(*) from outbox`))

	// An earlier version wrote such messages. Messages that its own publisher sent are ignored.
	h.exec(t, `insert into outbox (uuid, topic, metadata, attempts, dead_at) values
		('1', 'orders.>', '{"outbox_redriven": "1"}', 1, now()), ('2', 'orders.>', '{}', 1, now())`)
	for _, id := range []struct {
		uuid    string
		refused bool
	}{{"1", true}, {"2", false}} {
		requeue := admin.Action{Reason: "mended", Filter: admin.Filter{
			IDs: column[string](t, h, `select id::text from outbox where uuid = $1`, id.uuid),
		}}
		for _, requeue.DryRun = range []bool{true, false} {
			_, err := a.Requeue(t.Context(), requeue)
			if !id.refused {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, admin.ErrInvalid)
			require.ErrorContains(t, err, `"orders.>"`)
		}
	}
	assert.Equal(t, []string{"1"}, column[string](t, h, `select uuid from outbox where dead_at is not null`))
}

// TestWhatIsSentAgainIsNotFailing: a requeued or replayed message is ready until it fails again, in lists, counts,
// error groups, metrics, doctor and the page.
func TestWhatIsSentAgainIsNotFailing(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload, due_at, attempts, last_error, published_at, dead_at, created_at)
		SELECT i::text, 'orders', '', now(), CASE WHEN i < 6 THEN 9 ELSE 0 END, CASE WHEN i < 6 THEN 'broken' END,
		       CASE WHEN i > 5 THEN now() END, CASE WHEN i < 6 THEN now() END, now() - interval '5 hours'
		  FROM generate_series(1, 10) i`)
	h.exec(t, `INSERT INTO inbox (consumer, message_id, received_at, attempts, last_error, dead_at)
		SELECT 'shop/book', i::text, now() - interval '5 hours', 9, 'broken', now() FROM generate_series(1, 5) i`)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, attempts, last_error, first_seen_at)
		SELECT 'shop', i::text, 'orders', 'dead', 9, 'broken', now() - interval '5 hours' FROM generate_series(1, 5) i`)
	a := newAdmin(t, h)
	for in, n := range map[admin.Table]int64{admin.Outbox: 5, admin.Inbox: 5, admin.Queue: 5} {
		r, err := a.Requeue(t.Context(), admin.Action{Filter: admin.Filter{In: in, All: true}})
		require.NoError(t, err)
		require.Equal(t, n, r.Touched)
	}
	r, err := a.Replay(t.Context(), admin.Action{Filter: admin.Filter{All: true}})
	require.NoError(t, err)
	require.Equal(t, int64(5), r.Touched)

	for in, n := range map[admin.Table]int{admin.Outbox: 10, admin.Inbox: 5, admin.Queue: 5} {
		for state, want := range map[admin.State]int{admin.Ready: n, admin.Failing: 0} {
			l, err := a.List(t.Context(), admin.Filter{In: in, States: []admin.State{state}}, admin.Page{Limit: 3})
			got := 0
			for ; err == nil && l.Next != ""; l, err = a.List(t.Context(),
				admin.Filter{In: in, States: []admin.State{state}}, admin.Page{Limit: 3, After: l.Next}) {
				got += len(l.Messages)
			}
			require.NoError(t, err)
			assert.Equal(t, want, got+len(l.Messages), "%s messages of the %s", state, in)
		}
		groups, err := a.ErrorGroups(t.Context(), admin.Filter{In: in})
		require.NoError(t, err)
		assert.Empty(t, groups, in)
	}
	for _, exact := range []bool{false, true} {
		s, err := a.Stats(t.Context(), admin.StatsConfig{Exact: exact})
		require.NoError(t, err)
		require.Len(t, s.Topics, 1)
		assert.Equal(t, [2]admin.Count{{N: 10}, {}}, [2]admin.Count{s.Topics[0].Ready, s.Topics[0].Failing})
		require.Len(t, s.Queue, 1)
		assert.Equal(t, [2]admin.Count{{N: 5}, {}}, [2]admin.Count{s.Queue[0].Ready, s.Queue[0].Failing})
		assert.Empty(t, s.Inbox)
	}
	findings, err := a.Doctor(t.Context())
	require.NoError(t, err)
	for _, f := range findings {
		assert.NotEqual(t, "failing", f.Check, f.Evidence)
	}
	found := scraped(t, newCollector(t, h, prom.CollectorConfig{}))
	assert.InDelta(t, 10, found["messages{state=ready,topic=orders}"], 0)
	assert.InDelta(t, 5, found["queue_messages{state=ready,topic=orders}"], 0)
	for _, series := range []string{
		"messages{state=failing,topic=orders}", "queue_messages{state=failing,topic=orders}",
		"inbox_messages{consumer=shop/book,state=failing}",
	} {
		assert.Zero(t, found[series], series)
	}
	page := newSite(t, h, ui.Access{}).get("messages?state=ready")
	assert.NotContains(t, page.body, "broken")

	// A message that fails again is failing.
	h.exec(t, `UPDATE outbox SET attempts = attempts + 1, last_error = 'again' WHERE id = 1`)
	h.exec(t, `UPDATE inbox SET attempts = attempts + 1, last_error = 'again' WHERE message_id = '1'`)
	s, err := a.Stats(t.Context(), admin.StatsConfig{})
	require.NoError(t, err)
	assert.Equal(t, admin.Count{N: 1}, s.Topics[0].Failing)
	require.Len(t, s.Inbox, 1)
	assert.Equal(t, admin.Count{N: 1}, s.Inbox[0].Failing)
}
