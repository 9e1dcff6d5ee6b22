package integration_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/admin/ui"
	"github.com/millrace-go/watermill-outbox/cmd/outboxctl/cli"
	"github.com/millrace-go/watermill-outbox/queue"
)

// crowd is a scenario for one table: three messages are failing and an operator is about to confirm an act on them.
// Meanwhile two of them succeed, the third fails once more, and two others begin to fail.
type crowd struct {
	in               admin.Table
	write, meanwhile []string
	untouched        string // counts rows that the act must not change
	discarded        string // counts rows that it must change
}

var crowds = []crowd{
	{in: admin.Outbox, write: []string{
		`INSERT INTO outbox (uuid, topic, payload, due_at, attempts, last_error) SELECT 'a' || i, 'x', '', ` +
			`now() + interval '1 minute', 1, 'away' FROM generate_series(1, 3) i`,
		`INSERT INTO outbox (uuid, topic, payload) SELECT 'b' || i, 'x', '' FROM generate_series(1, 2) i`,
	}, meanwhile: []string{
		"UPDATE outbox SET published_at = now() WHERE uuid IN ('a1', 'a2')",
		"UPDATE outbox SET attempts = attempts + 1, due_at = now() + interval '1 minute', last_error = 'still away' " +
			"WHERE uuid IN ('a3', 'b1', 'b2')",
	}, untouched: "SELECT count(*) FROM outbox WHERE uuid IN ('b1', 'b2') AND published_at IS NULL",
		discarded: "SELECT count(*) FROM outbox WHERE uuid = 'a3' AND published_at IS NOT NULL AND dead_at IS NOT NULL"},
	{in: admin.Inbox, write: []string{
		`INSERT INTO inbox (consumer, message_id, attempts, last_error) SELECT 'shop/x', 'a' || i, 1, 'away' ` +
			`FROM generate_series(1, 3) i`,
	}, meanwhile: []string{
		"UPDATE inbox SET processed_at = now() WHERE message_id IN ('a1', 'a2')",
		"UPDATE inbox SET attempts = attempts + 1, last_error = 'still away' WHERE message_id = 'a3'",
		`INSERT INTO inbox (consumer, message_id, attempts, last_error) SELECT 'shop/x', 'b' || i, 1, 'away' ` +
			`FROM generate_series(1, 2) i`,
	}, untouched: "SELECT count(*) FROM inbox WHERE message_id IN ('b1', 'b2') AND processed_at IS NULL",
		discarded: "SELECT count(*) FROM inbox WHERE message_id = 'a3' AND processed_at IS NOT NULL AND dead_at IS NOT NULL"},
	{in: admin.Queue, write: []string{
		`INSERT INTO inbox_queue (source, message_id, topic, state, due_at, attempts, last_error) SELECT 'shop', 'a' || i, ` +
			`'x', 'processing', now() + interval '1 minute', 1, 'away' FROM generate_series(1, 3) i`,
		`INSERT INTO inbox_queue (source, message_id, topic, state) SELECT 'shop', 'b' || i, 'x', 'processing' ` +
			`FROM generate_series(1, 2) i`,
	}, meanwhile: []string{
		"UPDATE inbox_queue SET state = 'done', done_at = now() WHERE message_id IN ('a1', 'a2')",
		"UPDATE inbox_queue SET attempts = attempts + 1, due_at = now() + interval '1 minute', last_error = 'still away' " +
			"WHERE message_id IN ('a3', 'b1', 'b2')",
	}, untouched: "SELECT count(*) FROM inbox_queue WHERE message_id IN ('b1', 'b2') AND state = 'processing'",
		discarded: "SELECT count(*) FROM inbox_queue WHERE message_id = 'a3' AND state = 'done' " +
			"AND last_error LIKE 'discarded by %'"},
}

// onRead runs a function before each read.
type onRead struct {
	before func()
	io.Reader
}

func (r onRead) Read(p []byte) (int, error) {
	r.before()
	return r.Reader.Read(p)
}

// TestActsDoWhatWasConfirmed: an act changes the counted messages that still exist and no others, whatever was written
// before or has failed since.
func TestActsDoWhatWasConfirmed(t *testing.T) {
	h := onPgx(t)
	a := newAdmin(t, h)
	commands := map[admin.Table]string{admin.Outbox: "outbox", admin.Inbox: "inbox", admin.Queue: "queue"}
	for _, c := range crowds {
		filter := admin.Filter{In: c.in, States: []admin.State{admin.Failing}, All: true}
		meanwhile := func() {
			for _, s := range c.meanwhile {
				h.exec(t, s)
			}
		}
		for by, discard := range map[string]func(t *testing.T){
			"Go": func(t *testing.T) {
				act := admin.Action{Filter: filter, Reason: "over", DryRun: true}
				r, err := a.Discard(t.Context(), act)
				require.NoError(t, err)
				require.Equal(t, admin.Count{N: 3}, r.Matched)
				meanwhile()
				act.DryRun, act.Preview = false, r.Preview
				r, err = a.Discard(t.Context(), act)
				require.NoError(t, err)
				assert.Equal(t, admin.Count{N: 1}, r.Matched)
				assert.EqualValues(t, 1, r.Touched)
			},
			"outboxctl": func(t *testing.T) {
				var out, said bytes.Buffer
				in := onRead{meanwhile, bytes.NewReader([]byte("y\n"))}
				code := cli.Run(t.Context(), []string{commands[c.in], "discard", "--all", "--state", "failing", "--reason", "over"},
					cli.World{In: in, Out: &out, Err: &said, Ask: true, Environ: []string{"OUTBOX_DSN=" + h.url, "USER=ann"}})
				assert.Zero(t, code, said.String())
				assert.Contains(t, said.String(), "Discard 3 messages of the "+c.in.String())
				assert.Regexp(t, `Discarded 1 message; entry \d+ of the audit log\. 2 messages no longer matched\.`, out.String())
			},
			"page": func(t *testing.T) {
				s := newSite(t, h, ui.Access{Actor: "ann", Act: true})
				asked := s.get("act?verb=discard&all=yes&state=failing&in=" + c.in.String())
				asked.says(t, "three fail", "Discard 3 messages?")
				meanwhile()
				form := url.Values{}
				for _, input := range elements(t, asked.body, "input") {
					form.Add(input["name"], input["value"])
				}
				form.Set("reason", "over")
				require.Equal(t, http.StatusSeeOther, s.post(form).status)
			},
		} {
			t.Run(fmt.Sprintf("%s by %s", c.in, by), func(t *testing.T) {
				h.exec(t, "TRUNCATE outbox, inbox, inbox_queue")
				for _, s := range c.write {
					h.exec(t, s)
				}
				discard(t)
				assert.Equal(t, 2, h.count(t, c.untouched), "these were not confirmed")
				assert.Equal(t, 1, h.count(t, c.discarded), "one of the three confirmed messages")
			})
		}
	}
	for _, tried := range []string{
		"x", "inbox.1.2.more", "outbox.x.2.more", "outbox.1.x.more", "outbox.1.2.xx", "outbox.1.2.*", "outbox.1.2",
	} {
		_, err := a.Discard(t.Context(), admin.Action{Filter: admin.Filter{All: true}, Reason: "over", Preview: tried})
		require.ErrorIs(t, err, admin.ErrInvalid, tried)
	}
}

// TestActsKeepWhatWasEnqueuedSince: an act skips an ID that was enqueued again after the preview, because no one has
// seen its new content.
func TestActsKeepWhatWasEnqueuedSince(t *testing.T) {
	h := onPgx(t)
	a := newAdmin(t, h)
	store, err := queue.NewStore(h.db, queue.StoreConfig{}, nil)
	require.NoError(t, err)
	enqueue := func(id, payload string) {
		_, err := store.Enqueue(t.Context(), queue.Item{ID: queue.ID{Source: "shop", MessageID: id}, Topic: "x",
			Payload: []byte(payload)})
		require.NoError(t, err)
	}
	for _, id := range []string{"replaced", "deleted", "same"} {
		enqueue(id, "old")
	}
	act := admin.Action{Filter: admin.Filter{In: admin.Queue, States: []admin.State{admin.Ready}, All: true}, DryRun: true}
	r, err := a.Discard(t.Context(), act)
	require.NoError(t, err)
	require.Equal(t, admin.Count{N: 3}, r.Matched)
	enqueue("replaced", "new")
	h.exec(t, "DELETE FROM inbox_queue WHERE message_id = 'deleted'")
	enqueue("deleted", "new")
	act.DryRun, act.Preview, act.Reason = false, r.Preview, "over"
	r, err = a.Discard(t.Context(), act)
	require.NoError(t, err)
	assert.EqualValues(t, 1, r.Touched)
	assert.Equal(t, []string{"deleted", "replaced"}, column[string](t, h,
		"SELECT message_id FROM inbox_queue WHERE state = 'processing' ORDER BY 1"))
}

// TestActsOnMoreThanWasCounted: the act leaves out messages written after the count.
func TestActsOnMoreThanWasCounted(t *testing.T) {
	h := onPgx(t)
	a, err := admin.New(h.db, admin.Config{Actor: "alice", BatchSize: 10_000}, nil)
	require.NoError(t, err)
	const many = 10_001
	dead := func(prefix string, n int) {
		h.exec(t, `INSERT INTO inbox (consumer, message_id, attempts, dead_at) SELECT 'shop/x', $1::text || i, 1, now() `+
			`FROM generate_series(1, $2::int) i`, prefix, n)
		h.exec(t, `INSERT INTO outbox (uuid, topic, payload, attempts, dead_at) SELECT $1::text || i, 'x', '', 1, now() `+
			`FROM generate_series(1, $2::int) i`, prefix, n)
	}
	dead("a", many)
	for _, in := range []admin.Table{admin.Outbox, admin.Inbox} {
		act := admin.Action{Filter: admin.Filter{In: in, All: true}, DryRun: true}
		r, err := a.Requeue(t.Context(), act)
		require.NoError(t, err)
		require.Equal(t, admin.Count{N: 10_000, More: true}, r.Matched)
		dead(in.String(), 2)
		act.DryRun, act.Preview = false, r.Preview
		r, err = a.Requeue(t.Context(), act)
		require.NoError(t, err)
		wrote := map[admin.Table]int64{admin.Outbox: many, admin.Inbox: many + 2} // both rows added before
		assert.Equal(t, wrote[in], r.Touched)
	}
	limited, err := a.Requeue(t.Context(), admin.Action{Filter: admin.Filter{All: true}, Limit: 1, DryRun: true})
	require.NoError(t, err)
	assert.Equal(t, admin.Count{N: 1}, limited.Matched, "a limit changes at most this many")
}

// TestReconcileSendsWhatWasConfirmed: the broker loses more messages after the preview; these are not sent.
func TestReconcileSendsWhatWasConfirmed(t *testing.T) {
	h := onPgx(t)
	h.exec(t, "INSERT INTO outbox (uuid, topic, payload, published_at) SELECT 'u' || i, 'x', '', now() "+
		"FROM generate_series(1, 3) i")
	a := newAdmin(t, h)
	act := admin.Action{Filter: admin.Filter{Topic: "x"}, DryRun: true}
	r, err := a.Reconcile(t.Context(), &memoryLog{
		uuids: []string{"u1", "u3"}, times: []time.Time{time.Now(), time.Now()},
	}, act)
	require.NoError(t, err)
	require.Equal(t, admin.Count{N: 1}, r.Matched)
	act.DryRun, act.Preview = false, r.Preview
	r, err = a.Reconcile(t.Context(), &memoryLog{}, act)
	require.NoError(t, err)
	assert.EqualValues(t, 1, r.Touched)
	assert.Equal(t, []string{"u2"}, column[string](t, h, "SELECT uuid FROM outbox WHERE published_at IS NULL"))
}

// TestCleanDeletesWhatWasConfirmed: rows that become old enough after the preview stay.
func TestCleanDeletesWhatWasConfirmed(t *testing.T) {
	h := onPgx(t)
	a := newAdmin(t, h)
	for _, s := range []string{
		"INSERT INTO outbox (uuid, topic, payload, created_at, published_at) SELECT i, 'x', '', now() - interval '1 day', " +
			"now() - interval '1 day' FROM generate_series(1, 2) i",
		"INSERT INTO inbox (consumer, message_id, received_at, processed_at) SELECT 'c', i, now() - interval '1 day', " +
			"now() - interval '1 day' FROM generate_series(1, 2) i",
		"INSERT INTO inbox (consumer, message_id, received_at, attempts) SELECT 'failing', i, now() - interval '1 day', 1 " +
			"FROM generate_series(1, 2) i",
		"INSERT INTO inbox_queue (source, message_id, topic, state, done_at) SELECT 's', i, 'x', 'done', now() - interval " +
			"'1 day' FROM generate_series(1, 2) i",
	} {
		h.exec(t, s)
	}
	cfg := admin.CleanConfig{
		OutboxRetention: time.Hour, InboxRetention: time.Hour, QueueRetention: time.Hour, DryRun: true,
	}
	dry, err := a.Clean(t.Context(), cfg)
	require.NoError(t, err)
	require.False(t, dry.At.IsZero())
	turned := dry.At.Add(-time.Hour).Add(time.Millisecond) // an hour old now, but not yet at the preview
	h.exec(t, "UPDATE outbox SET published_at = $1 WHERE uuid = '2'", turned)
	h.exec(t, "UPDATE inbox SET processed_at = $1 WHERE consumer = 'c' AND message_id = '2'", turned)
	h.exec(t, "UPDATE inbox SET received_at = $1 WHERE consumer = 'failing' AND message_id = '2'", turned)
	h.exec(t, "UPDATE inbox_queue SET done_at = $1 WHERE message_id = '2'", turned)
	cfg.DryRun, cfg.At = false, dry.At
	eventually(t, func() bool {
		return value[bool](t, h, "SELECT clock_timestamp() > $1::timestamptz + interval '2 ms'", dry.At)
	}, "the rows are old enough")
	r, err := a.Clean(t.Context(), cfg)
	require.NoError(t, err)
	assert.Equal(t, admin.CleanResult{
		At: dry.At, Outbox: admin.Count{N: 1}, Inbox: admin.Count{N: 2}, Queue: admin.Count{N: 1},
	}, r)
	cfg.At = time.Time{}
	r, err = a.Clean(t.Context(), cfg)
	require.NoError(t, err)
	assert.Equal(t, [3]int64{1, 2, 1}, [3]int64{r.Outbox.N, r.Inbox.N, r.Queue.N}, "without At they are deleted")
}

// TestActsUnderAnyDateStyle: a scan resumes where it stopped, even if the session's DateStyle writes times ambiguously.
// Postgres writes IST for India's time zone and reads it as Israel's.
func TestActsUnderAnyDateStyle(t *testing.T) {
	parallel(t)
	h := pgxHandle(t, "pgx", newMigratedDatabase(t), func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["DateStyle"] = "SQL, DMY"
		cfg.ConnConfig.RuntimeParams["TimeZone"] = "Asia/Kolkata"
	})
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, due_at) SELECT i, 't', 'k', '', now() + i * interval `+
		`'1 minute' FROM generate_series(1, 40) i`)
	h.exec(t, `INSERT INTO inbox (consumer, message_id, received_at, dead_at) SELECT 's/h', i, now() - i * interval `+
		`'1 minute', now() FROM generate_series(1, 40) i`)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, due_at) SELECT 's', i, 't', 'processing', `+
		`now() + i * interval '1 minute' FROM generate_series(1, 40) i`)
	a, err := admin.New(h.db, admin.Config{Actor: "ann", BatchSize: 10}, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience) // a scan that goes back in time never ends
	defer cancel()
	delayed := []admin.State{admin.Delayed}
	retried, err := a.RetryNow(ctx, admin.Action{Filter: admin.Filter{States: delayed, All: true}})
	require.NoError(t, err)
	assert.EqualValues(t, 40, retried.Touched, "outbox")
	revived, err := a.Requeue(ctx, admin.Action{Filter: admin.Filter{In: admin.Inbox, All: true}})
	require.NoError(t, err)
	assert.EqualValues(t, 40, revived.Touched, "inbox")
	retried, err = a.RetryNow(ctx, admin.Action{
		Filter: admin.Filter{In: admin.Queue, States: delayed, All: true, Before: time.Now().Add(time.Hour)},
	})
	require.NoError(t, err)
	assert.EqualValues(t, 40, retried.Touched, "queue")
}

// lostAll is a log of a broker that has lost everything.
type lostAll struct{}

func (lostAll) Each(context.Context, string, time.Time, func(string) error) error { return nil }

// TestWhatComesBackTogetherFallsDueInOrder: messages of one key, in any state and topic, return in order with a batch
// size of one.
func TestWhatComesBackTogetherFallsDueInOrder(t *testing.T) {
	h := onPgx(t)
	a, err := admin.New(h.db, admin.Config{Actor: "alice", BatchSize: 1}, nil)
	require.NoError(t, err)
	const write = `INSERT INTO outbox (uuid, topic, key, payload, due_at, attempts, last_error, published_at, dead_at)
		SELECT i, 'topic-' || i % 3, 'K', '', now(), 1, 'away', CASE WHEN $1::bool OR i % 5 = 0 THEN now() END, CASE WHEN NOT $1::bool AND (i % 5 = 0 OR i % 2 = 0) THEN now() END
		  FROM generate_series(1, 12) i`
	for name, c := range map[string]struct {
		published bool
		do        func() (admin.Result, error)
	}{
		"requeue": {false, func() (admin.Result, error) {
			return a.Requeue(t.Context(), admin.Action{
				Filter: admin.Filter{Key: "K", States: []admin.State{admin.Dead, admin.Failing, admin.Discarded}},
			})
		}},
		"reconcile": {true, func() (admin.Result, error) {
			return a.Reconcile(t.Context(), lostAll{}, admin.Action{Filter: admin.Filter{Key: "K"}})
		}},
	} {
		h.exec(t, "TRUNCATE outbox RESTART IDENTITY")
		h.exec(t, write, c.published)
		r, err := c.do()
		require.NoError(t, err, name)
		require.EqualValues(t, 12, r.Touched, name)
		assert.Equal(t, []int64{
			1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
		}, column[int64](t, h, "SELECT id FROM outbox ORDER BY due_at, id"), name)
		assert.Equal(t, 12, h.count(t, "SELECT count(DISTINCT due_at) FROM outbox"), name)
	}
}

// TestWhatFollowsASkippedMessageIsSkipped: a locked message is not requeued, so later messages of its key are not
// either, in this batch and in the following ones; repeating the act requeues them together. Other keys do not wait.
func TestWhatFollowsASkippedMessageIsSkipped(t *testing.T) {
	t.Parallel()
	overEach(t, newMigratedDatabase(t), func(t *testing.T, h handle) {
		for name, c := range map[string]struct {
			published bool
			do        func(a *admin.Admin) (admin.Result, error)
		}{
			"requeue": {false, func(a *admin.Admin) (admin.Result, error) {
				return a.Requeue(t.Context(), admin.Action{Filter: admin.Filter{All: true}})
			}},
			"replay": {true, func(a *admin.Admin) (admin.Result, error) {
				return a.Replay(t.Context(), admin.Action{Filter: admin.Filter{All: true}})
			}},
			"reconcile": {true, func(a *admin.Admin) (admin.Result, error) {
				return a.Reconcile(t.Context(), lostAll{}, admin.Action{Filter: admin.Filter{All: true}})
			}},
		} {
			for _, batch := range []int{4, 100} {
				h.exec(t, "TRUNCATE outbox RESTART IDENTITY") // every third message has key K, L or no key
				h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, attempts, last_error, published_at, dead_at)
					SELECT i, 'topic', CASE i % 3 WHEN 0 THEN 'K' WHEN 1 THEN 'L' ELSE '' END, '', 1, 'away', CASE WHEN $1::bool THEN now() END, CASE WHEN NOT $1::bool THEN now() END
					  FROM generate_series(1, 24) i`, c.published)
				a, err := admin.New(h.db, admin.Config{Actor: "alice", BatchSize: batch}, nil)
				require.NoError(t, err)
				end := openTx(t, h, func(ctx context.Context) error {
					// the second message of K, and one without a key
					return h.execTx(ctx, "UPDATE outbox SET last_error = 'looked at' WHERE id IN (6, 8)")
				})
				r, err := c.do(a)
				end(true)
				require.NoError(t, err, name)
				assert.EqualValues(t, 16, r.Touched, name)
				assert.EqualValues(t, 8, r.Skipped, name)
				assert.EqualValues(t, 24, r.Matched.N, name)
				assert.Equal(t, 8, h.count(t, "SELECT skipped FROM outbox_audit WHERE id = $1", r.AuditID), name)
				back := "SELECT id FROM outbox WHERE due_at IS NOT NULL AND key = 'K' ORDER BY due_at, id"
				assert.Equal(t, []int64{3}, column[int64](t, h, back), "%s in batches of %d", name, batch)
				r, err = c.do(a)
				require.NoError(t, err, name)
				assert.EqualValues(t, 8, r.Touched, name)
				assert.Equal(t, []int64{3, 6, 9, 12, 15, 18, 21, 24}, column[int64](t, h, back), "%s in batches of %d", name, batch)
			}
		}
	})
}
