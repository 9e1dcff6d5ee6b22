package integration_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/queue"
)

// At rest the schemas of a DSN are looked at in one statement, and none has goroutines of its own. What is stored by
// another process, falls due, or is changed there is found all the same.
func TestAQueueGroupLooksAtAllSchemasAtOnce(t *testing.T) {
	t.Parallel()
	noLeaks(t)
	const schemas = 10
	all := newTenants(t, "one", schemas)
	var h handledLog
	cfg := quickQueueGroup(&h)
	cfg.Dispatcher.PollInterval = 50 * time.Millisecond
	cfg.Dispatcher.CleanInterval = time.Hour
	f := runFleet(t, fleet.Static(targetsOf(all...)...), fleet.Config{MaxConnsPerDSN: 10}, nil)
	_, g := runQueueGroup(t, f, cfg, nil)
	stores := storesOf(t, all...)
	atRest := func() {
		t.Helper()
		eventually(t, func() bool { return !strings.Contains(strings.Join(goroutinesOf(t), ""), "queue.(*loop).renew") },
			"all are at rest")
	}
	atRest()
	one := all[0]
	running := func() (n, looks int) { // of the last statements of the group's connections, those that began in this while
		now := value[time.Time](t, one.handle, "SELECT clock_timestamp()")
		seen := map[string]bool{}
		eventually(t, func() bool {
			for _, query := range strings.Split(value[string](t, one.handle, `SELECT coalesce(string_agg(query_start::text || '|' || query, '~'), '') FROM pg_stat_activity
				WHERE datname = current_database() AND query_start > $1 AND application_name LIKE 'fleet-%'`, now), "~") {
				if query != "" {
					seen[query] = true
				}
			}
			looks = 0
			for query := range seen {
				if strings.Contains(query, "pg_stat_get_tuples_updated") {
					looks++
				}
			}
			return looks >= 3
		}, "it is looked at")
		return len(seen), looks
	}
	eventually(t, func() bool { // the databases may only just have been joined
		n, looks := running()
		return n-looks <= 2
	}, "hardly a statement beside the looks at all")

	for i, s := range stores {
		enqueue(t, s, "new")
		eventually(t, func() bool { return len(h.handled()) == i+1 }, "%d is found", i)
	}
	atRest()
	storeAll(t, stores[1], queue.Item{
		ID: queue.ID{Source: "test", MessageID: "due"}, Topic: "events", DueAt: time.Now().Add(2 * time.Second),
	})
	end := openTx(t, all[2].handle, func(ctx context.Context) error {
		_, err := stores[2].Enqueue(ctx, queue.Item{ID: queue.ID{Source: "test", MessageID: "late"}, Topic: "events"})
		return err
	})
	eventually(t, func() bool { return len(h.handled()) == schemas+1 }, "what falls due is found")
	end(true)
	eventually(t, func() bool { return len(h.handled()) == schemas+2 }, "what is committed late is found")
	atRest()
	_, err := stores[3].AlreadyProcessed(t.Context(), queue.ID{Source: "test", MessageID: "seen"}, nil)
	require.NoError(t, err)
	atRest()
	enqueue(t, stores[3], "seen")
	eventually(t, func() bool { return len(h.handled()) == schemas+3 }, "what was seen before is found")
	atRest()
	drained := make(chan error, 1)
	enqueue(t, stores[4], "drained")
	go func() { drained <- g.Drain(t.Context()) }()
	require.NoError(t, within(t, "it is drained", drained))
	assert.Contains(t, h.handled(), fmt.Sprint(all[4].Key, " drained"))
	require.NoError(t, g.Close())
}
