package integration_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
)

// TestActsUnderAnyDateStyle: a walk goes on where it was, also where a session writes times so that it reads others. To
// Postgres IST is Israel's zone, and it writes it for India's.
func TestActsUnderAnyDateStyle(t *testing.T) {
	t.Parallel()
	noLeaks(t)
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
	ctx, cancel := context.WithTimeout(t.Context(), patience) // a walk that goes back in time has no end
	defer cancel()
	delayed := []admin.State{admin.Delayed}
	retried, err := a.RetryNow(ctx, admin.Act{Filter: admin.Filter{States: delayed, All: true}})
	require.NoError(t, err)
	assert.EqualValues(t, 40, retried.Touched, "outbox")
	revived, err := a.Requeue(ctx, admin.Act{Filter: admin.Filter{In: admin.Inbox, All: true}})
	require.NoError(t, err)
	assert.EqualValues(t, 40, revived.Touched, "inbox")
	retried, err = a.RetryNow(ctx, admin.Act{
		Filter: admin.Filter{In: admin.Queue, States: delayed, All: true, Before: time.Now().Add(time.Hour)},
	})
	require.NoError(t, err)
	assert.EqualValues(t, 40, retried.Touched, "queue")
}
