package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
)

// lostAll is a log of a broker that has lost everything.
type lostAll struct{}

func (lostAll) Each(context.Context, string, time.Time, func(string) error) error { return nil }

// TestWhatComesBackTogetherFallsDueInOrder: messages of one key, whatever their states and topics, in batches of one.
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
			return a.Requeue(t.Context(), admin.Act{
				Filter: admin.Filter{Key: "K", States: []admin.State{admin.Dead, admin.Failing, admin.Discarded}},
			})
		}},
		"reconcile": {true, func() (admin.Result, error) {
			return a.Reconcile(t.Context(), lostAll{}, admin.Act{Filter: admin.Filter{Key: "K"}})
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

// TestWhatFollowsASkippedMessageIsSkipped: a message that somebody has locked does not come back, so what follows it
// under its key does not either, in this batch and in later ones, and comes back with it when the act is repeated.
// Others are not held up.
func TestWhatFollowsASkippedMessageIsSkipped(t *testing.T) {
	t.Parallel()
	overEach(t, newMigratedDatabase(t), func(t *testing.T, h handle) {
		for name, c := range map[string]struct {
			published bool
			do        func(a *admin.Admin) (admin.Result, error)
		}{
			"requeue": {false, func(a *admin.Admin) (admin.Result, error) {
				return a.Requeue(t.Context(), admin.Act{Filter: admin.Filter{All: true}})
			}},
			"replay": {true, func(a *admin.Admin) (admin.Result, error) {
				return a.Replay(t.Context(), admin.Act{Filter: admin.Filter{All: true}})
			}},
			"reconcile": {true, func(a *admin.Admin) (admin.Result, error) {
				return a.Reconcile(t.Context(), lostAll{}, admin.Act{Filter: admin.Filter{All: true}})
			}},
		} {
			for _, batch := range []int{4, 100} {
				h.exec(t, "TRUNCATE outbox RESTART IDENTITY") // each of the keys K, L and none every third message
				h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, attempts, last_error, published_at, dead_at)
					SELECT i, 'topic', CASE i % 3 WHEN 0 THEN 'K' WHEN 1 THEN 'L' ELSE '' END, '', 1, 'away', CASE WHEN $1::bool THEN now() END, CASE WHEN NOT $1::bool THEN now() END
					  FROM generate_series(1, 24) i`, c.published)
				a, err := admin.New(h.db, admin.Config{Actor: "alice", BatchSize: batch}, nil)
				require.NoError(t, err)
				end := openTx(t, h, func(ctx context.Context) error {
					// the second of K, and one without a key
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
