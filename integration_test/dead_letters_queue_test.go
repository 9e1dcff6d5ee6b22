package integration_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/middleware"
	"github.com/millrace-go/watermill-outbox/observe"
	"github.com/millrace-go/watermill-outbox/queue"
)

// deathsOf returns how a message died, one entry for each call of the observer.
func (s *seen) deathsOf(id queue.ID) []observe.HandleEnd {
	return slices.DeleteFunc(s.ends(), func(end observe.HandleEnd) bool {
		return end.Outcome != observe.Dead || end.UUID != id.MessageID
	})
}

// watchedStore returns a store whose messages die at their second failure, with its observer.
func watchedStore(t testing.TB, h handle) (*queue.Store, *seen, *lineLogger) {
	t.Helper()
	log, obs := &lineLogger{}, &seen{}
	cfg := quickStore()
	cfg.MaxAttempts = 2
	s, err := queue.NewStore(h.seenBy(t, obs).db, cfg, log)
	require.NoError(t, err)
	return s, obs, log
}

// deathIsReported asserts that a message is dead, with exactly one log line and one call of the observer.
func deathIsReported(t *testing.T, s *queue.Store, obs *seen, log *lineLogger, id queue.ID, cause string) {
	t.Helper()
	untilState(t, s, id, queue.Dead)
	assert.True(t, eventuallyTrue(func() bool {
		return len(obs.deathsOf(id)) > 0
	}), "observers were not notified of the death of %s", id.MessageID)
	assert.True(t, eventuallyTrue(func() bool {
		return log.has("ERROR", "message died", "message_id:"+id.MessageID, cause)
	}),
		"no log line reports the death of %s", id.MessageID)
	if ends := obs.deathsOf(id); assert.Len(t, ends, 1) {
		assert.ErrorContains(t, ends[0].Err, cause)
	}
}

// kill leaves a message as a process does that dies during the last attempt.
func kill(t testing.TB, h handle, id queue.ID) {
	t.Helper()
	h.exec(t, `update inbox_queue set attempts = 1, owner = $1, locked_until = clock_timestamp() - interval '1 minute' `+
		`where message_id = $2`,
		uuid.NewString(), id.MessageID)
}

// TestSubscriberTellsWhatDies: observers are notified of each death of a Subscriber's messages, also without
// ErrorHandler and whether a handler had the message or not.
func TestSubscriberTellsWhatDies(t *testing.T) {
	h := onPgx(t)
	s, obs, log := watchedStore(t, h)
	late, killed := items("late", 1)[0], itemID("killed", 0)
	late.ExpiresAt = h.now(t).Add(-time.Second)
	storeAll(t, s, items("nacked", 1)...)
	storeAll(t, s, items("hanging", 1)...)
	storeAll(t, s, late)
	storeAll(t, s, items("killed", 1)...)
	kill(t, h, killed)
	subscribe := func(topic string, ackTimeout time.Duration) <-chan *message.Message {
		cfg := quickSubscriber()
		cfg.LeaseTTL, cfg.AckTimeout = time.Second, ackTimeout
		sub, err := queue.NewSubscriber(s, cfg, log)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, sub.Close()) })
		msgs, err := sub.Subscribe(t.Context(), topic)
		require.NoError(t, err)
		return msgs
	}
	nacked := subscribe("nacked", 0)
	for range 2 {
		receive(t, nacked).Nack()
	}
	subscribe("late", 0)
	subscribe("killed", 0)
	hanging := subscribe("hanging", 20*time.Millisecond)
	for range 2 {
		<-receive(t, hanging).Context().Done()
	}
	deathIsReported(t, s, obs, log, itemID("nacked", 0), "nacked")
	deathIsReported(t, s, obs, log, itemID("hanging", 0), "SubscriberConfig.AckTimeout")
	deathIsReported(t, s, obs, log, late.ID, "expired")
	deathIsReported(t, s, obs, log, killed, "lease expired")
}

// TestExpiredAndAbandonedMessagesAreSaidToDie: observers are notified of deaths when only callers of Claim and
// ReapExpired use the store, and by a Dispatcher without OnDead.
func TestExpiredAndAbandonedMessagesAreSaidToDie(t *testing.T) {
	h := onPgx(t)
	s, obs, log := watchedStore(t, h)
	die := func(topic string, end func()) {
		t.Helper()
		both := items(topic, 2)
		both[0].ExpiresAt = h.now(t).Add(-time.Second)
		storeAll(t, s, both...)
		kill(t, h, both[1].ID)
		end()
		deathIsReported(t, s, obs, log, both[0].ID, "expired")
		deathIsReported(t, s, obs, log, both[1].ID, "lease expired")
	}
	die("called", func() {
		claimed(t, s, queue.NewOwner(), 1)
		_, err := s.ReapExpired(t.Context())
		require.NoError(t, err)
	})
	die("dispatched", func() {
		fails := func(context.Context, *queue.Message) error { return errHandler }
		cfg := quickDispatcher(map[string]queue.Handler{"dispatched": {Handle: fails}})
		cfg.Service = "shop"
		d, err := queue.NewDispatcher(s, cfg, log)
		require.NoError(t, err)
		drain(t, d)
	})
	assert.Equal(t, "shop", obs.deathsOf(itemID("dispatched", 0))[0].Service)
}

// TestStoredMessageOutlivesItsDeadLetter: a message whose dead letter cannot be written does not die.
func TestStoredMessageOutlivesItsDeadLetter(t *testing.T) {
	h := onPgx(t)
	s, obs, _ := watchedStore(t, h)
	h.exec(t, `alter table outbox add constraint no_dead_letters check (topic <> 'dead_letters') not valid`)
	storeAll(t, s, items("orders", 1)...)
	one := itemID("orders", 0)
	startRouter(t, func(r *message.Router) {
		pub := newOutboxPublisher(t, h)
		r.AddMiddleware(stackFor(t, pub, middleware.StackConfig{}, nil)...)
		r.AddHandler("orders", "orders", subscriberOn(t, s, quickSubscriber()), "booked", pub,
			func(*message.Message) ([]*message.Message, error) {
				return nil, errors.New("it never works")
			})
	})
	h.reaches(t, 1, "its dead letter is refused",
		"select count(*) from inbox_queue where owner is null and last_error like '%no_dead_letters%'")
	state, attempts := stateOf(t, s, one)
	assert.Equal(t, queue.Processing, state, "it died without a dead letter")
	assert.Equal(t, 1, attempts)
	assert.Empty(t, obs.deathsOf(one))
	h.exec(t, "alter table outbox drop constraint no_dead_letters")
	h.exec(t, "update inbox_queue set due_at = clock_timestamp()")
	untilState(t, s, one, queue.Dead)
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox where topic = 'dead_letters'"))
}

// TestOnDeadThatKillsProcessesIsGivenUp: otherwise a message without attempts left, or a poison message without a limit
// of attempts, would end one process after another, each time its lease expires.
func TestOnDeadThatKillsProcessesIsGivenUp(t *testing.T) {
	for name, c := range map[string]struct {
		limit, crashes int
		fails          error
	}{"two attempts": {2, 4, errHandler}, "no limit": {-1, 12, outbox.Poison(errHandler)}} {
		t.Run(name, func(t *testing.T) {
			h := onPgx(t)
			log, obs, called := &lineLogger{}, &seen{}, make(chan string, 10)
			store := quickStore()
			store.MaxAttempts = c.limit
			s, err := queue.NewStore(h.seenBy(t, obs).db, store, log)
			require.NoError(t, err)
			storeAll(t, s, items("orders", 2)...)
			h.exec(t, `update inbox_queue set attempts = $1, crashes = $1 where message_id = 'orders-0'`, c.crashes)
			h.exec(t, `update inbox_queue set attempts = $1, crashes = $1 where message_id = 'orders-1'`, c.crashes+1)
			cfg := quickDispatcher(map[string]queue.Handler{"orders": {Handle: func(context.Context, *queue.Message) error {
				return c.fails
			}}})
			cfg.OnDead = func(_ context.Context, msg *queue.Message, _ error) error { called <- msg.MessageID; return nil }
			d, err := queue.NewDispatcher(s, cfg, log)
			require.NoError(t, err)
			drain(t, d)
			if c.limit > 0 {
				deathIsReported(t, s, obs, log, itemID("orders", 0), "no attempt is left")
				deathIsReported(t, s, obs, log, itemID("orders", 1), "no attempt is left")
			}
			close(called)
			assert.Equal(t, "orders-0", <-called)
			assert.Empty(t, called)
			assert.True(t, log.has("ERROR", "gave up on OnDead", "message_id:orders-1"))
			assert.Equal(t, 2, h.count(t, "select count(*) from inbox_queue where state = 'dead'"))
		})
	}
}

// TestOnDeadEndsWithTheHandlers: OnDead is stopped after CloseTimeout, and its message is released.
func TestOnDeadEndsWithTheHandlers(t *testing.T) {
	h := onPgx(t)
	s, _, log := watchedStore(t, h)
	called, ended := make(chan bool, 1), make(chan error, 1)
	storeAll(t, s, items("orders", 1)...)
	h.exec(t, `update inbox_queue set attempts = 2`)
	cfg := quickDispatcher(map[string]queue.Handler{"orders": {Handle: func(context.Context, *queue.Message) error {
		return errHandler
	}}})
	cfg.CloseTimeout = time.Millisecond
	cfg.OnDead = func(ctx context.Context, _ *queue.Message, _ error) error {
		called <- true
		<-ctx.Done()
		ended <- ctx.Err()
		return ctx.Err()
	}
	d, err := queue.NewDispatcher(s, cfg, log)
	require.NoError(t, err)
	run := make(chan error, 1)
	go func() { run <- d.Run(context.Background()) }()
	within(t, "OnDead is called", called)
	require.NoError(t, d.Close())
	require.NoError(t, within(t, "the dispatcher ends", run))
	require.ErrorIs(t, within(t, "OnDead ends", ended), context.Canceled, "and not through its own deadline")
	h.reaches(t, 1, "its message is released",
		"select count(*) from inbox_queue where owner is null and state = 'processing' "+
			"and due_at <= clock_timestamp()")
}

// TestDeadRetention: a message that has been dead for longer is discarded as if by an operator: with its reason and an
// entry in the audit log. The messages that it blocked continue in order. Then it is deleted like any other discarded
// message.
func TestDeadRetention(t *testing.T) {
	h := onPgx(t)
	died := func(uuid, key, ago string) {
		h.exec(t, `insert into outbox (uuid, topic, key, payload, attempts, dead_at, last_error)
			values ($1, 'orders', $2, '', 3, now() - $3::text::interval, 'why')`, uuid, key, ago)
	}
	died("old", "K", "2 hours")
	died("young", "L", "1 minute")
	h.publish(t, "orders", "K", "1", "2")
	h.publish(t, "orders", "L", "waits")
	cfg := quickConfig()
	cfg.CleanInterval, cfg.BlockKeyOnDead, cfg.DeadRetention = 20*time.Millisecond, true, time.Hour
	w := startForwarder(t, h, cfg)
	w.arrives(t, "1", "2")
	assert.Equal(t, []string{"1", "2"}, w.payloads())

	a := newAdmin(t, h)
	list, err := a.List(t.Context(), admin.Filter{States: []admin.State{admin.Discarded}}, admin.Page{})
	require.NoError(t, err)
	require.Len(t, list.Messages, 1)
	assert.Equal(t, "old", list.Messages[0].UUID)
	assert.Equal(t, "discarded by DeadRetention: dead for longer than 1h0m0s; before: why", list.Messages[0].LastError)
	assertDiscardedOnce(t, a, admin.Outbox)

	h.exec(t, `update outbox set created_at = now() - interval '8 days', published_at = now() - interval '8 days'
		where uuid = 'old'`)
	h.reaches(t, 0, "it is deleted", "select count(*) from outbox where uuid = 'old'")
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox where dead_at is not null"), "the recent one stays")
}

// assertDiscardedOnce checks the entry in the audit log and the findings of Doctor.
func assertDiscardedOnce(t *testing.T, a *admin.Admin, in admin.Table) {
	t.Helper()
	var entries []admin.AuditEntry
	eventually(t, func() (ended bool) {
		var err error
		entries, _, err = a.Audit(t.Context(), admin.Page{})
		require.NoError(t, err)
		return len(entries) > 0 && !entries[0].EndedAt.IsZero()
	}, "the entry ends")
	require.Len(t, entries, 1)
	e := entries[0]
	assert.Equal(t, "discard by DeadRetention: dead for longer than 1h0m0s", e.Action+" by "+e.Actor+": "+e.Reason)
	assert.Equal(t, admin.Filter{In: in, States: []admin.State{admin.Dead}}, e.Filter)
	assert.EqualValues(t, 1, e.Result.Touched)
	found, err := a.Doctor(t.Context())
	require.NoError(t, err)
	var said []string
	for _, f := range found {
		if f.Check == "dead_discarded" {
			said = append(said, f.Evidence)
		}
	}
	assert.Equal(t, []string{"1 message of the " + in.String() + " discarded by DeadRetention in the last 24 hours"}, said)
}

// TestDeadRetentionOfTheInbox: a redelivered message counts as handled, as after an operator's discard.
func TestDeadRetentionOfTheInbox(t *testing.T) {
	extended(t)
	h := onPgx(t)
	h.exec(t, `insert into inbox (consumer, message_id, attempts, dead_at, last_error)
		values ('s/h', 'old', 3, now() - interval '2 hours', 'why'), ('s/h', 'young', 3, now() - interval '1 minute', 'why')`)
	cfg := quickConfig()
	cfg.CleanInterval, cfg.DeadRetention = 20*time.Millisecond, time.Hour
	startForwarder(t, h, cfg)
	a := newAdmin(t, h)
	eventually(t, func() bool {
		list, err := a.List(t.Context(), admin.Filter{In: admin.Inbox, States: []admin.State{admin.Discarded}}, admin.Page{})
		require.NoError(t, err)
		return len(list.Messages) == 1 && list.Messages[0].UUID == "old"
	}, "the old one is discarded")
	assertDiscardedOnce(t, a, admin.Inbox)
	assert.Equal(t, 1, h.count(t, "select count(*) from inbox where processed_at is null and message_id = 'young'"))
	h.exec(t, "update inbox set processed_at = now() - interval '31 days' where message_id = 'old'")
	h.reaches(t, 1, "it is deleted", "select count(*) from inbox")
}

// TestDeadRetentionOfTheQueue: retention counts from the death, however old the message is. The role needs an admin's
// grants; without them done messages are still deleted.
func TestDeadRetentionOfTheQueue(t *testing.T) {
	extended(t)
	t.Parallel()
	owner, as := newRoles(t)
	h := as("worker")
	store := storeOn(t, h, queue.StoreConfig{DeadRetention: time.Hour, MaxAttempts: 1})
	for _, id := range []string{"old", "young", "done"} {
		_, err := store.Enqueue(t.Context(), item("shop", id))
		require.NoError(t, err)
	}
	me := queue.NewOwner()
	require.Len(t, claimed(t, store, me, 3), 3)
	for _, id := range []string{"old", "young"} {
		_, err := store.Fail(t.Context(), me, "why", queue.ID{Source: "shop", MessageID: id})
		require.NoError(t, err)
	}
	_, err := store.Ack(t.Context(), me, queue.ID{Source: "shop", MessageID: "done"})
	require.NoError(t, err)
	owner.exec(t, "update inbox_queue set first_seen_at = now() - interval '1 year', last_seen_at = now() - interval '1 year'")
	owner.exec(t, "update inbox_queue set done_at = now() - interval '1 year' where message_id = 'done'")
	owner.exec(t, `update inbox_queue set history = jsonb_set(history, '{-1,died}', to_jsonb(now() - interval '2 hours'))
		where message_id = 'old'`)

	n, err := store.Clean(t.Context())
	require.ErrorContains(t, err, "an admin, or leave DeadRetention at 0")
	assert.EqualValues(t, 1, n)
	owner.exec(t, `GRANT "`+role(owner)+`admin" TO "`+role(owner)+`worker"`)
	n, err = store.Clean(t.Context())
	require.NoError(t, err)
	assert.Zero(t, n, "it tries again in an hour")
	store = storeOn(t, h, queue.StoreConfig{DeadRetention: time.Hour})
	require.ErrorIs(t, outbox.InTx(t.Context(), h.db, func(ctx context.Context) error {
		if _, err := store.Clean(ctx); err != nil {
			return err
		}
		return outbox.SetRollbackOnly(ctx)
	}), outbox.ErrRolledBack)
	assertDiscardedOnce(t, newAdmin(t, owner), admin.Queue)
	msg := got(t, store, queue.ID{Source: "shop", MessageID: "old"})
	assert.Equal(t, queue.Done, msg.State)
	assert.Equal(t, "discarded by DeadRetention: dead for longer than 1h0m0s; before: why", msg.LastError)
	assert.Equal(t, queue.Dead, got(t, store, queue.ID{Source: "shop", MessageID: "young"}).State)

	owner.exec(t, "update inbox_queue set done_at = now() - interval '31 days' where message_id = 'old'")
	n, err = store.Clean(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 1, n)
}

// TestDeadRetentionAndRefusedRows: rows that a trigger refuses to change, with an error or silently, stay. The messages
// around them are discarded, once an hour, and the entry in the audit log ends with the error.
func TestDeadRetentionAndRefusedRows(t *testing.T) {
	extended(t)
	h := onPgx(t)
	h.exec(t, `insert into outbox (uuid, topic, key, payload, attempts, dead_at)
		select u, 'orders', '', '', 3, now() - interval '2 hours'
		  from unnest(array(select 'ignored' from generate_series(1, 1000)) || array['a', 'refused', 'b'])
		       with ordinality as w(u, n) order by n`)
	h.exec(t, `create function refuse() returns trigger language plpgsql as $$ begin
		if new.uuid = 'refused' then raise exception 'it is needed'; end if;
		if new.uuid = 'ignored' then return null; end if;
		return new; end $$`)
	h.exec(t, `create trigger refuse before update on outbox for each row execute function refuse()`)
	cfg := quickConfig()
	cfg.CleanInterval, cfg.DeadRetention = 20*time.Millisecond, time.Hour
	w := startForwarder(t, h, cfg)
	h.reaches(t, 2, "the others are discarded", "select count(*) from outbox where published_at is not null")
	eventually(t, func() bool { return w.log.count("discarding dead messages past DeadRetention failed") > 0 },
		"it is logged")
	for range 2 { // rounds of other work
		h.exec(t, `insert into inbox (consumer, message_id, received_at, processed_at)
			values ('s/h', 'old', now() - interval '31 days', now() - interval '31 days')`)
		h.reaches(t, 0, "other rows are cleaned up", "select count(*) from inbox")
	}
	assert.Equal(t, 1, h.count(t, "select count(*) from outbox_audit"))
	assert.Equal(t, 1, h.count(t, `select count(*) from outbox_audit where ended_at is not null and touched = 2
		and outcome like '%it is needed%'`))
}

// TestDeadRetentionReadsEachMessageOnce, even while an open transaction keeps discarded messages in the index.
func TestDeadRetentionReadsEachMessageOnce(t *testing.T) {
	extended(t)
	t.Parallel()
	url := newMigratedDatabase(t)
	h, worker := newPgxHandle(t, url), newPgxHandle(t, url)
	h.exec(t, `insert into inbox_queue (source, message_id, topic, payload, state, history)
		select 'shop', i::text, 'orders', '', 'dead',
		       jsonb_build_array(jsonb_build_object('died', now() - case when i % 2 = 0 then interval '2 hours' else '0' end))
		  from generate_series(1, 6000) i`)
	h.exec(t, "analyze inbox_queue")
	old, err := h.pool.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { _ = old.Rollback(context.Background()) }()
	_, err = old.Exec(t.Context(), "select 1")
	require.NoError(t, err)

	_, err = storeOn(t, worker, queue.StoreConfig{DeadRetention: time.Hour}).Clean(t.Context())
	require.NoError(t, err)
	worker.pool.Close() // closing makes its sessions report their statistics
	assert.Equal(t, 3000, h.count(t, "select count(*) from inbox_queue where state = 'done'"))
	read := func() int {
		return h.count(t, "select sum(idx_tup_read) from pg_stat_user_indexes where indexrelname like 'inbox_queue%dead%'")
	}
	eventually(t, func() bool { return read() >= 6000 }, "it is read with the index")
	assert.Less(t, read(), 9000, "reading from the start for each page takes far more; a page that fails is read again")
}

// TestDeadRetentionOfAMessageThatDiedAgain: a message that is requeued and dies again while dead messages are discarded
// stays, because its death is recent.
func TestDeadRetentionOfAMessageThatDiedAgain(t *testing.T) {
	extended(t)
	t.Parallel()
	url := newMigratedDatabase(t)
	h := newPgxHandle(t, url)
	h.exec(t, `insert into inbox_queue (source, message_id, topic, payload, state, history)
		select 'shop', id, 'orders', '', 'dead', jsonb_build_array(jsonb_build_object('died', now() - interval '2 hours'))
		  from unnest(array['again', 'old']) id`)
	again := &statementCounter{text: `INSERT INTO "outbox_audit"`, first: func(context.Context) {
		h.exec(t, `update inbox_queue set history = jsonb_build_array(jsonb_build_object('died', now()))
			where message_id = 'again'`)
	}}
	traced := pgxHandle(t, "traced", url, again.on)
	_, err := storeOn(t, traced, queue.StoreConfig{DeadRetention: time.Hour}).Clean(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"again dead", "old done"},
		column[string](t, h, "select message_id || ' ' || state from inbox_queue order by 1"))
}

// TestDeadRetentionLeavesTheInboxAlone: InboxRetention -1 is for a role without rights on it.
func TestDeadRetentionLeavesTheInboxAlone(t *testing.T) {
	extended(t)
	h := onPgx(t)
	h.exec(t, `insert into inbox (consumer, message_id, attempts, dead_at)
		values ('s/h', 'old', 3, now() - interval '2 hours')`)
	h.exec(t, `insert into outbox (uuid, topic, key, payload, attempts, dead_at)
		values ('old', 'orders', '', '', 3, now() - interval '2 hours')`)
	h.exec(t, `insert into outbox (uuid, topic, key, payload, published_at, created_at)
		values ('published', 'orders', '', '', now() - interval '8 days', now() - interval '8 days')`)
	cfg := quickConfig()
	cfg.CleanInterval, cfg.DeadRetention, cfg.InboxRetention = 20*time.Millisecond, time.Hour, -1
	startForwarder(t, h, cfg)
	h.reaches(t, 0, "the outbox was cleaned",
		"select count(*) from outbox where uuid = 'published' or published_at is null")
	assert.Equal(t, 1, h.count(t, "select count(*) from inbox where processed_at is null"))
}
