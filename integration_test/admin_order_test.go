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
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
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
			return a.Requeue(t.Context(), admin.Act{Filter: admin.Filter{Key: "K", States: []admin.State{admin.Dead, admin.Failing, admin.Discarded}}})
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
		assert.Equal(t, []int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, column[int64](t, h, "SELECT id FROM outbox ORDER BY due_at, id"), name)
		assert.Equal(t, 12, h.count(t, "SELECT count(DISTINCT due_at) FROM outbox"), name)
	}
}
