package integration_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// states counts the rows of the outbox by state.
func (h handle) states(t testing.TB, where string) map[string]int {
	t.Helper()
	m := map[string]int{}
	for _, s := range column[string](t, h, "SELECT "+sqltext.OutboxState+" FROM outbox o WHERE "+where) {
		m[s]++
	}
	return m
}

// revived requeues a dead message of the inbox and reports whether it did.
func revived(t testing.TB, h handle, consumer, uuid string) bool {
	t.Helper()
	r, err := newAdmin(t, h).Requeue(t.Context(), admin.Action{
		Filter: admin.Filter{In: admin.Inbox, IDs: []string{consumer + ":" + uuid}},
	})
	require.NoError(t, err)
	return r.Touched == 1
}

func TestActs(t *testing.T) {
	h := onPgx(t)
	a, err := admin.New(h.db, admin.Config{Actor: "alice", BatchSize: 7}, nil)
	require.NoError(t, err)
	const all = 100 // rows of each state in a fresh table
	lately := time.Now().Add(-5 * time.Minute).Truncate(time.Second)
	of := func(f admin.Filter) admin.Action { return admin.Action{Filter: f, Reason: "it's \"why\""} }
	type do func(context.Context, admin.Action) (admin.Result, error)
	for name, c := range map[string]struct {
		do      do
		act     admin.Action
		which   string // condition for the rows that it changes, before the act
		changed string // condition that they meet after it
		want    int
	}{
		"requeue": {a.Requeue, of(admin.Filter{All: true}), "s = 'dead'",
			"s = 'ready' AND attempts = 1 AND due_at <= now() AND metadata = '{\"n\": \"1\", \"outbox_generation\": \"1\"}' " +
				"AND last_error IS NULL", all},
		"requeue dead or failing messages": {
			a.Requeue, of(admin.Filter{All: true, States: []admin.State{admin.Dead, admin.Failing}}), "s IN ('dead', 'failing')",
			"s = 'ready' AND attempts = 1 AND due_at <= now()", 2 * all,
		},
		"requeue discarded messages": {
			a.Requeue, of(admin.Filter{All: true, States: []admin.State{admin.Discarded}}), "s = 'discarded'",
			"s = 'ready' AND attempts = 1 AND due_at <= now()", all,
		},
		"discard": {a.Discard, of(admin.Filter{All: true}), "s = 'dead'",
			"s = 'discarded' AND last_error LIKE 'discarded by alice: it''s \"why\"; before: %'", all},
		"discard ready messages": {
			a.Discard, of(admin.Filter{Key: "key-6", States: []admin.State{admin.Ready}}), "s = 'ready' AND key = 'key-6'",
			"s = 'discarded' AND last_error = 'discarded by alice: it''s \"why\"'", 0,
		},
		"skip heads": {
			a.Skip, of(admin.Filter{All: true}), "s = 'failing' AND key <> '' AND id = (SELECT min(id) FROM outbox p " +
				"WHERE p.key = o.key AND p.attempts > 0 AND p.dead_at IS NULL)",
			"s = 'discarded' AND last_error LIKE 'skipped by alice: %'", 0,
		},
		"skip heads that are dead": {
			a.Skip, of(admin.Filter{ErrorContains: "ORDER 1", States: []admin.State{admin.Dead}}),
			"s = 'dead' AND key <> '' AND last_error LIKE 'order 1%' AND id = (SELECT min(id) FROM outbox p " +
				"WHERE p.key = o.key AND p.attempts > 0 AND p.published_at IS NULL)", "s = 'discarded'", 0,
		},
		"replay": {a.Replay, of(admin.Filter{All: true}), "s = 'done'",
			"s = 'ready' AND attempts = 1 AND due_at <= now() AND metadata->>'outbox_generation' = '1' " +
				"AND published_at IS NULL", all},
		"replay by time": {
			a.Replay, of(admin.Filter{After: lately}),
			"s = 'done' AND created_at >= '" + lately.UTC().Format(time.RFC3339) + "'", "s = 'ready'", 0,
		},
		"retry now": {
			a.RetryNow, of(admin.Filter{All: true}), "s = 'failing'", "s = 'failing' AND due_at <= now() AND attempts > 0", all,
		},
		"retry delayed messages now": {
			a.RetryNow, of(admin.Filter{Topic: "topic-1", States: []admin.State{admin.Delayed}}),
			"s = 'delayed' AND topic = 'topic-1'",
			"s = 'ready' AND due_at <= now() AND attempts = 0", 15,
		},
		"a limit": {
			a.Requeue, admin.Action{Filter: admin.Filter{All: true}, Limit: 10},
			"id IN (SELECT id FROM outbox p WHERE p.dead_at IS NOT NULL AND p.published_at IS NULL ORDER BY id LIMIT 10)",
			"s = 'ready'", 10,
		},
	} {
		t.Run(name, func(t *testing.T) {
			h.exec(t, "TRUNCATE outbox RESTART IDENTITY")
			fillOutbox(t, h, 6*all)
			h.exec(t, "DROP TABLE IF EXISTS before")
			h.exec(t, "CREATE TABLE before AS SELECT o.*, "+sqltext.OutboxState+" AS s FROM outbox o")
			chosen := column[int64](t, h, "SELECT id FROM before o WHERE "+c.which+" ORDER BY id")
			require.NotEmpty(t, chosen)
			if c.want > 0 {
				require.Len(t, chosen, c.want)
			}

			dry := c.act
			dry.DryRun = true
			r, err := c.do(t.Context(), dry)
			require.NoError(t, err)
			assert.Equal(t, int64(len(chosen)), r.Matched.N)
			assert.Zero(t, r.Touched+r.AuditID)
			changed := "SELECT b.id FROM before b JOIN outbox o USING (id) WHERE (o.due_at, o.published_at, o.dead_at, " +
				"o.attempts, o.last_error, o.metadata) IS DISTINCT FROM (b.due_at, b.published_at, b.dead_at, b.attempts, " +
				"b.last_error, b.metadata) ORDER BY id"
			require.Empty(t, column[int64](t, h, changed))

			var seen []admin.Result
			c.act.Progress = func(_ context.Context, r admin.Result) { seen = append(seen, r) }
			r, err = c.do(t.Context(), c.act)
			require.NoError(t, err)
			assert.Equal(t, int64(len(chosen)), r.Touched)
			assert.Equal(t, admin.Count{N: int64(len(chosen))}, r.Matched)
			assert.Zero(t, r.Skipped)
			require.NotEmpty(t, seen)
			assert.Equal(t, r, seen[len(seen)-1])
			assert.GreaterOrEqual(t, len(seen), len(chosen)/7)
			assert.Equal(t, chosen, column[int64](t, h, changed))
			assert.Equal(t, chosen, column[int64](t, h, "SELECT o.id FROM (SELECT o.*, "+sqltext.OutboxState+
				" AS s FROM outbox o) o WHERE "+c.changed+" AND id = ANY($1) ORDER BY id", chosen))

			log, _, err := a.Audit(t.Context(), admin.Page{Limit: 1})
			require.NoError(t, err)
			require.Len(t, log, 1)
			assert.Equal(t, r.AuditID, log[0].ID)
			assert.Equal(t, "alice", log[0].Actor)
			assert.Equal(t, c.act.Reason, log[0].Reason)
			assert.Equal(t, r.Touched, log[0].Result.Touched)
			assert.Equal(t, r.Matched, log[0].Result.Matched)
			assert.Equal(t, c.act.Filter.All, log[0].Filter.All)
			assert.Equal(t, c.act.Filter.Topic, log[0].Filter.Topic)
			assert.False(t, log[0].EndedAt.IsZero())
		})
	}
}

// TestHeads: a filter does not decide which message is the first of its key.
func TestHeads(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, due_at, attempts, last_error, dead_at)
		SELECT i, topic, key, '', now(), 1, 'away', CASE state WHEN 'dead' THEN now() END
		  FROM (VALUES (1, 'x', 'A', 'failing'), (2, 'y', 'A', 'failing'), (3, 'y', 'B', 'failing'), (4, 'x', 'B', 'dead'), (5, 'x', 'C', 'dead'),
		               (6, 'y', 'C', 'dead'), (7, 'y', 'C', 'failing'), (8, 'x', '', 'failing'), (9, 'x', 'D', 'dead')) AS v(i, topic, key, state)`)
	a := newAdmin(t, h)
	for name, c := range map[string]struct {
		filter admin.Filter
		want   []string
	}{
		"failing":            {admin.Filter{}, []string{"1", "3", "7"}},
		"of a topic":         {admin.Filter{Topic: "y"}, []string{"3", "7"}},
		"of a key":           {admin.Filter{Key: "A"}, []string{"1"}},
		"of both":            {admin.Filter{Key: "A", Topic: "y"}, nil},
		"by id":              {admin.Filter{IDs: []string{"2", "3"}}, []string{"3"}},
		"dead":               {admin.Filter{States: []admin.State{admin.Dead}}, []string{"5", "9"}},
		"dead, of a topic":   {admin.Filter{States: []admin.State{admin.Dead}, Topic: "y"}, nil},
		"one behind another": {admin.Filter{States: []admin.State{admin.Dead}, Key: "B"}, nil},
	} {
		list, more, err := a.BlockedKeys(t.Context(), c.filter, 10)
		require.NoError(t, err, name)
		var ids []string
		for _, m := range list {
			ids = append(ids, m.ID)
		}
		assert.Equal(t, c.want, ids, name)
		assert.False(t, more)
		c.filter.All = true
		r, err := a.Skip(t.Context(), admin.Action{Filter: c.filter, DryRun: true})
		require.NoError(t, err, name)
		assert.Equal(t, admin.Count{N: int64(len(c.want))}, r.Matched, name)
	}
	list, more, err := a.BlockedKeys(t.Context(), admin.Filter{}, 2)
	require.NoError(t, err)
	assert.Len(t, list, 2)
	assert.True(t, more)
	_, _, err = a.BlockedKeys(t.Context(), admin.Filter{States: []admin.State{admin.Dead, admin.Failing}}, 2)
	require.ErrorIs(t, err, admin.ErrInvalid)
	_, _, err = a.BlockedKeys(t.Context(), admin.Filter{}, 0)
	require.ErrorIs(t, err, admin.ErrInvalid)
	r, err := a.Skip(t.Context(), admin.Action{Filter: admin.Filter{Topic: "y", Key: "A"}, Reason: "no"})
	require.NoError(t, err)
	assert.Zero(t, r.Touched, "the key's first message has another topic")
}

// TestActsPassByLocks: acts skip rows that another transaction has locked.
func TestActsPassByLocks(t *testing.T) {
	h := onPgx(t)
	fillOutbox(t, h, 60)
	tx, err := h.pool.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), "SELECT FROM outbox WHERE id IN (3, 9) FOR UPDATE")
	require.NoError(t, err)
	a := newAdmin(t, h)
	r, err := a.Requeue(t.Context(), admin.Action{Filter: admin.Filter{All: true}})
	require.NoError(t, err)
	log, _, err := a.Audit(t.Context(), admin.Page{})
	require.NoError(t, err)
	assert.Equal(t, r, log[0].Result)
	assert.Equal(t, int64(10), r.Matched.N)
	assert.Equal(t, int64(8), r.Touched)
	assert.Equal(t, int64(2), r.Skipped)
}

// TestActIsCutOff ends an act between two batches: the result and the log count the changes made so far.
func TestActIsCutOff(t *testing.T) {
	h := onPgx(t)
	fillOutbox(t, h, 300)
	a, err := admin.New(h.db, admin.Config{BatchSize: 10}, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := a.As("bob").Requeue(ctx, admin.Action{
		Filter: admin.Filter{All: true}, Progress: func(context.Context, admin.Result) { cancel() },
	})
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, int64(10), r.Touched)
	assert.Equal(t, map[string]int{"ready": 10, "dead": 40}, h.states(t, "id % 6 = 3"))
	log, next, err := a.Audit(t.Context(), admin.Page{})
	require.NoError(t, err)
	require.Empty(t, next)
	require.Len(t, log, 1)
	assert.Equal(t, int64(10), log[0].Result.Touched)
	assert.False(t, log[0].EndedAt.IsZero())
	assert.Equal(t, "interrupted: context canceled", log[0].Outcome)

	h.exec(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not on my watch'; END $$`)
	h.exec(t, `CREATE TRIGGER refuse BEFORE UPDATE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse()`)
	_, err = a.As("bob").Requeue(t.Context(), admin.Action{Filter: admin.Filter{All: true}})
	require.ErrorContains(t, err, "not on my watch")
	log, _, err = a.Audit(t.Context(), admin.Page{Limit: 1})
	require.NoError(t, err)
	assert.False(t, log[0].EndedAt.IsZero())
	assert.Contains(t, log[0].Outcome, "not on my watch")
	assert.Zero(t, log[0].Result.Touched)
}

func TestActsThatAreRefused(t *testing.T) {
	h := onPgx(t)
	fillOutbox(t, h, 60)
	a, nobody := newAdmin(t, h), func() *admin.Admin {
		a, err := admin.New(h.db, admin.Config{}, nil)
		require.NoError(t, err)
		return a
	}()
	everything := admin.Filter{All: true}
	for name, c := range map[string]struct {
		do   func(context.Context, admin.Action) (admin.Result, error)
		act  admin.Action
		says string
	}{
		"no bound": {a.Requeue, admin.Action{}, "the filter selects nothing"},
		"states are no bound": {
			a.Requeue, admin.Action{Filter: admin.Filter{States: []admin.State{admin.Dead}}}, "the filter selects nothing",
		},
		"nobody":            {nobody.Requeue, admin.Action{Filter: everything}, "no actor"},
		"nobody, a dry run": {nobody.Requeue, admin.Action{Filter: everything, DryRun: true}, "no actor"},
		"no reason":         {a.Discard, admin.Action{Filter: everything}, "Reason is missing"},
		"wrong state": {
			a.Replay, admin.Action{Filter: admin.Filter{All: true, States: []admin.State{admin.Ready}}}, "one of [done]",
		},
		"unknown state": {
			a.Requeue, admin.Action{Filter: admin.Filter{All: true, States: []admin.State{"dead' OR true --"}}}, "is one of",
		},
		"wrong table": {
			a.Replay, admin.Action{Filter: admin.Filter{All: true, In: admin.Inbox}}, "does not apply to the inbox",
		},
		"no such table":      {a.Replay, admin.Action{Filter: admin.Filter{All: true, In: 7}}, "no table 7"},
		"negative limit":     {a.Requeue, admin.Action{Filter: everything, Limit: -1}, "Limit is -1"},
		"NUL in a topic":     {a.Requeue, admin.Action{Filter: admin.Filter{Topic: "a\x00b"}}, "Filter.Topic"},
		"bad UTF-8 in a key": {a.Requeue, admin.Action{Filter: admin.Filter{Key: "a\xff"}}, "Filter.Key"},
		"NUL in the error":   {a.Requeue, admin.Action{Filter: admin.Filter{ErrorContains: "\x00"}}, "Filter.ErrorContains"},
		"NUL in an id":       {a.Requeue, admin.Action{Filter: admin.Filter{IDs: []string{"3\x00"}}}, "UTF-8 without NUL"},
		"SQL in an id":       {a.Requeue, admin.Action{Filter: admin.Filter{IDs: []string{"3) OR true --"}}}, "not an id"},
		"NUL in the reason":  {a.Discard, admin.Action{Filter: everything, Reason: "\x00"}, "Reason"},
		"a long reason":      {a.Discard, admin.Action{Filter: everything, Reason: strings.Repeat("x", 2000)}, "Reason"},
		"NUL in the actor":   {a.As("\x00").Requeue, admin.Action{Filter: everything}, "actor"},
		"topic in the inbox": {a.Requeue, admin.Action{Filter: admin.Filter{In: admin.Inbox, Topic: "x"}}, "have a consumer"},
		"year 10000": {
			a.Requeue, admin.Action{Filter: admin.Filter{After: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}}, "year 10000",
		},
	} {
		r, err := c.do(t.Context(), c.act)
		require.ErrorContains(t, err, c.says, name)
		own := errors.Is(err, admin.ErrEmptyFilter) || errors.Is(err, admin.ErrNoActor)
		assert.NotEqual(t, own, errors.Is(err, admin.ErrInvalid), name)
		assert.Zero(t, r, name)
	}
	for name, f := range map[string]admin.Filter{
		"quotes in a topic":   {Topic: `x' OR '1'='1`},
		"quotes in a key":     {Key: `"; DROP TABLE outbox; --`},
		"a pattern":           {ErrorContains: "%"},
		"backslashes":         {ErrorContains: `\'`},
		"a dollar quote":      {Key: "$$", Topic: "$1"},
		"a group":             {ErrorGroup: "' OR true"},
		"an odd consumer":     {In: admin.Inbox, Consumer: "x' OR '1'='1"},
		"an odd inbox id":     {In: admin.Inbox, IDs: []string{"a'b:c\"d"}},
		"a placeholder":       {Topic: "{outbox}"},
		"escapes":             {Topic: "\x1b[2J\r\n"},
		"the end of the text": {Key: "\u202e\u0085"},
	} {
		r, err := a.Requeue(t.Context(), admin.Action{Filter: f})
		require.NoError(t, err, name)
		assert.Zero(t, r.Touched, name)
		l, err := a.List(t.Context(), f, admin.Page{})
		require.NoError(t, err, name)
		assert.Empty(t, l.Messages, name)
		_, err = a.ErrorGroups(t.Context(), f)
		require.NoError(t, err, name)
	}
	require.ErrorIs(t, a.Pause(t.Context(), "", ""), admin.ErrInvalid)
	for _, after := range []string{"x", "e30x", "eyJwIjp7Im8iOiJcdTAwMDAifX0", "eyJzIjotMX0"} {
		_, err := a.List(t.Context(), admin.Filter{}, admin.Page{After: after})
		require.ErrorContains(t, err, "Page.After", after)
	}
	_, _, err := a.Audit(t.Context(), admin.Page{After: "1; DROP TABLE outbox"})
	require.ErrorContains(t, err, "Page.After")
	require.ErrorContains(t, a.Pause(t.Context(), "\xff", ""), "the topic")
	require.ErrorIs(t, a.Pause(t.Context(), "\xff", ""), admin.ErrInvalid)
	require.ErrorIs(t, nobody.Pause(t.Context(), "x", ""), admin.ErrNoActor)
	require.NoError(t, a.Pause(t.Context(), `o'brien"; --`, `'"`))
	s, err := a.Stats(t.Context(), admin.StatsConfig{})
	require.NoError(t, err)
	assert.Equal(t, `o'brien"; --`, s.Topics[0].Topic)
	assert.Equal(t, `alice: '"`, s.Topics[0].PausedBy[0].Reason)
	assert.Equal(t, 60, h.count(t, "SELECT count(*) FROM outbox"))
}

func TestInboxActs(t *testing.T) {
	forEachHandle(t, func(t *testing.T, h handle) {
		fill := func() {
			h.exec(t, "TRUNCATE inbox")
			h.exec(t, `INSERT INTO inbox (consumer, message_id, attempts, last_error, processed_at, dead_at) VALUES
				('shop/a', 'done', 0, NULL, now(), NULL), ('shop/a', 'failing', 2, 'bad 1', NULL, NULL),
				('shop/a', 'dead', 10, 'bad 2', NULL, now()), ('shop/b', 'dead', 10, 'bad 3', NULL, now())`)
		}
		a := newAdmin(t, h)
		fill()
		r, err := a.Requeue(t.Context(), admin.Action{
			Filter: admin.Filter{In: admin.Inbox, IDs: []string{"shop/a:dead", "shop/a:done"}},
		})
		require.NoError(t, err)
		assert.Equal(t, int64(1), r.Touched)
		assert.Equal(t, 1, h.count(t, "SELECT count(*) FROM inbox WHERE consumer = 'shop/a' AND message_id = 'dead' "+
			"AND dead_at IS NULL AND processed_at IS NULL AND attempts = 0 AND revived = 1"))
		assert.Equal(t, 1, h.count(t, "SELECT count(*) FROM inbox WHERE dead_at IS NOT NULL"))

		fill()
		r, err = a.Discard(t.Context(), admin.Action{
			Reason: "no", Filter: admin.Filter{
				In: admin.Inbox, Consumer: "shop/a", States: []admin.State{admin.Dead, admin.Failing},
			},
		})
		require.NoError(t, err)
		assert.Equal(t, int64(2), r.Touched)
		assert.Equal(t, []string{"discarded by alice: no; before: bad 1", "discarded by alice: no; before: bad 2"},
			column[string](t, h,
				"SELECT last_error FROM inbox WHERE processed_at IS NOT NULL AND dead_at IS NOT NULL ORDER BY 1"))
		r, err = a.Requeue(t.Context(), admin.Action{
			Filter: admin.Filter{In: admin.Inbox, Consumer: "shop/a", States: []admin.State{admin.Discarded}},
		})
		require.NoError(t, err)
		assert.Equal(t, int64(2), r.Touched)
	})
}

func TestAdminClean(t *testing.T) {
	h := onPgx(t)
	fillOutbox(t, h, 6000)
	h.exec(t, "UPDATE outbox SET created_at = now() - interval '10 days', published_at = published_at - interval "+
		"'9 days' WHERE id <= 3000")
	h.exec(t, "INSERT INTO inbox (consumer, message_id, processed_at) SELECT 'c', i, now() - i * interval '1 day' "+
		"FROM generate_series(1, 10) i")
	h.exec(t, "INSERT INTO inbox (consumer, message_id, received_at, attempts) SELECT 'failing', i, now() - i * "+
		"interval '4 days', 1 FROM generate_series(1, 2) i")
	fillQueue(t, h, 600)
	h.exec(t, "UPDATE inbox_queue SET done_at = now() - interval '1 day' WHERE state = 'done' AND topic = 'topic-0'")
	a := newAdmin(t, h)
	cfg := admin.CleanConfig{
		OutboxRetention: 7 * 24 * time.Hour, InboxRetention: 5 * 24 * time.Hour, QueueRetention: time.Hour, Reason: "room",
		DryRun: true,
	}
	before := tableStates(t, h)
	dry, err := a.Clean(t.Context(), cfg)
	require.NoError(t, err)
	require.Equal(t, before, tableStates(t, h))
	require.Zero(t, h.count(t, "SELECT count(*) FROM outbox_audit"))
	h.exec(t, "CREATE TABLE counted (touched bigint, filter json)")
	h.exec(t, "CREATE FUNCTION counted() RETURNS trigger LANGUAGE plpgsql AS "+
		"'BEGIN INSERT INTO counted VALUES (new.touched, new.filter); RETURN new; END'")
	h.exec(t, "CREATE TRIGGER counted BEFORE UPDATE OF touched ON outbox_audit FOR EACH ROW EXECUTE FUNCTION counted()")
	cfg.DryRun, cfg.At = false, dry.At
	r, err := a.Clean(t.Context(), cfg)
	assert.Equal(t, r, dry)
	assert.Greater(t, h.count(t, "SELECT count(*) FROM counted WHERE filter ->> 'in' = 'outbox'"), 1,
		"each batch is counted when it ends, because the process may end before the next one")
	require.NoError(t, err)
	assert.Equal(t, admin.CleanResult{
		At: dry.At, Outbox: admin.Count{N: 1000}, Inbox: admin.Count{N: 7}, Queue: admin.Count{N: 50},
	}, r)
	assert.Equal(t, 1, h.count(t, "SELECT count(*) FROM inbox WHERE consumer = 'failing'"), "newer than MinAge")
	assert.Equal(t, map[string]int{
		"ready": 1000, "delayed": 1000, "failing": 1000, "dead": 1000, "done": 500, "discarded": 500,
	}, h.states(t, "true"))
	log, _, err := a.Audit(t.Context(), admin.Page{})
	require.NoError(t, err)
	require.Len(t, log, 3, "one of each table")
	for i, of := range []struct {
		in     admin.Table
		states []admin.State
		kept   time.Duration
		n      int64
	}{
		{admin.Queue, []admin.State{admin.Done}, cfg.QueueRetention, 50},
		{admin.Inbox, []admin.State{admin.Done, admin.Discarded, admin.Failing}, cfg.InboxRetention, 7},
		{admin.Outbox, []admin.State{admin.Done, admin.Discarded}, cfg.OutboxRetention, 1000},
	} {
		assert.Equal(t, "clean", log[i].Action)
		assert.Equal(t, "room", log[i].Reason)
		assert.Equal(t, admin.Result{Matched: admin.Count{N: of.n}, Touched: of.n, AuditID: log[i].ID}, log[i].Result)
		assert.Equal(t, of.in, log[i].Filter.In)
		assert.Equal(t, of.states, log[i].Filter.States)
		assert.WithinDuration(t, log[i].At.Add(-of.kept), log[i].Filter.Before, time.Minute)
		assert.False(t, log[i].EndedAt.IsZero())
	}
	_, err = a.Clean(t.Context(), admin.CleanConfig{OutboxRetention: -1})
	require.ErrorContains(t, err, "OutboxRetention")
	before = tableStates(t, h)
	for _, dryRun := range []bool{true, false} {
		_, err = a.Clean(t.Context(), admin.CleanConfig{
			OutboxRetention: 7 * 24 * time.Hour, At: time.Now().Add(7 * 24 * time.Hour), DryRun: dryRun,
		})
		require.ErrorIs(t, err, admin.ErrInvalid, "would delete rows within the retention")
		require.ErrorContains(t, err, "CleanConfig.At")
	}
	assert.Equal(t, before, tableStates(t, h))
}

// TestRetryNowMeetsEachMessageOnce makes more than a batch of messages due. The scan in due order must not find them
// again, not even if they fail again meanwhile.
func TestRetryNowMeetsEachMessageOnce(t *testing.T) {
	h := onPgx(t)
	const rows = 1200
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload, metadata, due_at) SELECT 'u' || i, 'orders', '', '{}', `+
		`now() + interval '1 hour' FROM generate_series(1, $1::int) i`, rows)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, key, state, payload, due_at, attempts, last_error)
		SELECT 'shop', 'm' || i, 'orders', '', 'processing', 'x', now() - interval '1 minute', 1, 'no' FROM generate_series(1, $1::int) i`, rows)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for name, f := range map[string]admin.Filter{
		"outbox": {All: true, States: []admin.State{admin.Delayed}},
		"queue":  {All: true, In: admin.Queue},
	} {
		r, err := newAdmin(t, h).RetryNow(ctx, admin.Action{Filter: f, Reason: "now"})
		require.NoError(t, err, name)
		assert.EqualValues(t, rows, r.Touched, name)
	}
	r, err := newAdmin(t, h).RetryNow(ctx, admin.Action{
		Filter: admin.Filter{All: true, In: admin.Queue}, Reason: "now",
		Progress: func(context.Context, admin.Result) { // a dispatcher has tried those of the first batch
			h.exec(t, "UPDATE inbox_queue SET due_at = now() + interval '1 hour', attempts = attempts + 1 WHERE attempts = 1 "+
				"AND history IS NOT NULL AND jsonb_array_length(history) = 2")
		},
	})
	require.NoError(t, err)
	assert.EqualValues(t, rows, r.Touched, "queue, while messages fail again")
	assert.EqualValues(t, rows, r.Matched.N)
	assert.Zero(t, r.Skipped)
}
