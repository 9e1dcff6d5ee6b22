package integration_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/leaves"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// newLeaves is a database whose outbox has leaves that end below these ids.
func newLeaves(t testing.TB, ends ...int64) handle {
	t.Helper()
	h := newPgxHandle(t, newMigratedDatabase(t))
	intoLeaves(t, h, ends...)
	return h
}

// write writes n messages, each with the state that SQL makes of its number n: columns published_at, dead_at and so on.
func (h handle) writeRows(t testing.TB, n int, set string) {
	t.Helper()
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, metadata)
		SELECT 'u' || n, 't', 'k' || n % 7, convert_to('payload ' || n, 'UTF8'), '{"a": "b"}' FROM generate_series(1, `+
		fmt.Sprint(n)+`) n`)
	if set != "" {
		h.exec(t, `UPDATE outbox SET `+set)
	}
}

const settledLongAgo = `published_at = now() - interval '2 days', created_at = now() - interval '2 days'`

// roll rolls the outbox with a retention of a day.
func (h handle) roll(t testing.TB, change ...func(*admin.RollConfig)) admin.RollResult {
	t.Helper()
	r, err := h.tryRoll(t, change...)
	require.NoError(t, err)
	return r
}

func (h handle) tryRoll(t testing.TB, change ...func(*admin.RollConfig)) (admin.RollResult, error) {
	t.Helper()
	a, err := admin.New(h.db, admin.Config{Actor: "test"}, nil)
	require.NoError(t, err)
	cfg := admin.RollConfig{Retention: 24 * time.Hour}
	for _, c := range change {
		c(&cfg)
	}
	return a.RollOutbox(t.Context(), cfg)
}

// did lists what was done to leaves, in that order.
func did(r admin.RollResult) (list []string) {
	for _, l := range r.Leaves {
		list = append(list, string(l.Action)+" "+l.Name)
	}
	return list
}

// ids lists those in a table.
func (h handle) ids(t testing.TB, table string) []int64 {
	t.Helper()
	list := column[int64](t, h, `SELECT id FROM `+table+` ORDER BY id`)
	slices.Sort(list)
	return list
}

// TestRoll makes leaves ahead, empties what is old but for what must stay, and drops what is empty and far behind.
func TestRoll(t *testing.T) {
	t.Parallel()
	h := newLeaves(t, 10, 20, 30, 40, 50)
	h.writeRows(t, 42, settledLongAgo)
	h.exec(t, `UPDATE outbox SET published_at = NULL, dead_at = now() WHERE id = 5`) // dead
	h.exec(t, `UPDATE outbox SET published_at = now() WHERE id = 12`)                // young
	h.exec(t, `UPDATE outbox SET published_at = NULL WHERE id = 13`)                 // ready
	h.exec(t, `UPDATE outbox SET published_at = NULL, due_at = now() WHERE id = 14`) // delayed
	h.exec(t, `UPDATE outbox SET dead_at = now() - interval '3 days' WHERE id = 15`) // discarded
	tried := h.roll(t, func(c *admin.RollConfig) { c.DryRun = true })
	want := []string{"made outbox_p5", "made outbox_p6", "made outbox_p7", "emptied outbox_p0",
		"emptied outbox_p1", "emptied outbox_p2", "emptied outbox_p3"}
	require.Equal(t, want, did(tried))
	require.Equal(t, 42, h.count(t, `SELECT count(*) FROM outbox`), "a dry run does nothing")
	require.Zero(t, h.count(t, `SELECT count(*) FROM outbox_audit`))

	var steps []int
	r := h.roll(t, func(c *admin.RollConfig) {
		c.At, c.Reason = tried.At, "cron"
		c.Progress = func(_ context.Context, r admin.RollResult) { steps = append(steps, len(r.Leaves)) }
	})
	require.Equal(t, want, did(r))
	require.Equal(t, []int{1, 2, 3, 4, 5, 6, 7}, steps)
	require.Equal(t, []int64{5, 12, 13, 14, 40, 41, 42}, h.ids(t, "outbox"))
	require.Equal(t, []int64{12, 13, 14}, h.ids(t, "outbox_p1"))
	require.Equal(t, []int{3, 4, 0, 4, 35}, []int{r.Made, r.Emptied, r.Dropped, int(r.PutBack), int(r.Removed)})
	require.Equal(t, int64(r.Removed), value[int64](t, h, `SELECT touched FROM outbox_audit WHERE action = 'roll'
		AND reason = 'cron' AND actor = 'test' AND ended_at IS NOT NULL AND outcome = ''`))
	require.Equal(t, "FOR VALUES FROM ('72') TO ('82')", value[string](t, h,
		`SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = 'outbox_p7'`))
	require.Equal(t, value[string](t, h, `SELECT reloptions::text FROM pg_class WHERE relname = 'outbox_p4'`),
		value[string](t, h, `SELECT reloptions::text FROM pg_class WHERE relname = 'outbox_p7'`))
	require.Equal(t, 7, h.count(t, `SELECT count(*) FROM pg_indexes WHERE tablename = 'outbox_p7'`))

	// Leaf 2 is empty and far enough behind only now; leaves 0 and 1 have messages that stay.
	h.exec(t, `SELECT setval('outbox_id_seq', 55)`)
	r = h.roll(t)
	require.Equal(t, []string{
		"made outbox_p8", "made outbox_p9", "kept outbox_p1", "emptied outbox_p4", "dropped outbox_p2",
	}, did(r))
	require.Equal(t, []int64{5, 12, 13, 14}, h.ids(t, "outbox"))
	require.Equal(t, []string{"kept outbox_p1"}, did(h.roll(t)), "there is nothing left to do")
	h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload) VALUES (25, 'late', 't', 'p')`)
	require.Equal(t, []int64{25}, h.ids(t, "outbox_default"), "what has no leaf any more has a place")
}

// TestLeavesOverANight has 24 hours pass: each fills a leaf, of whose messages one in a hundred dies, and ends with a
// roll that keeps four hours. Somebody discards what has been dead for three hours. A trigger has each message settled
// by the clock of the night.
func TestLeavesOverANight(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	const hours, kept, attended = 24, 4, 3
	perHour := rounds(1000, 100_000)
	h := newPgxHandle(t, newMigratedDatabase(t))
	intoLeaves(t, h, int64(perHour), int64(2*perHour), int64(3*perHour))
	h.exec(t, `CREATE TABLE night (began timestamptz, hour int)`)
	h.exec(t, `INSERT INTO night VALUES (date_trunc('second', now()) - interval '25 hours', 0)`)
	h.exec(t, `CREATE FUNCTION by_night() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		NEW.published_at := (SELECT began + hour * interval '1 hour' FROM night); RETURN NEW; END $$`)
	h.exec(t, `CREATE TRIGGER by_night BEFORE UPDATE ON outbox FOR EACH ROW
		WHEN (OLD.published_at IS NULL AND NEW.published_at IS NOT NULL) EXECUTE FUNCTION by_night()`)
	startForwarderOn(t, h, classifyingConfig(), func(_ string, msg *message.Message) error {
		if strings.HasPrefix(string(msg.Payload), "dead ") {
			return errMalformed
		}
		return nil
	})
	var total admin.RollResult
	var sizes, counts []int64
	for hour := 1; hour <= hours; hour++ {
		h.exec(t, `UPDATE night SET hour = $1`, hour)
		h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload)
			SELECT gen_random_uuid(), 'events', 'k' || n % 1000, convert_to(CASE n % 100 WHEN 50 THEN 'dead ' ELSE 'sent ' END ||
				repeat('x', 300), 'UTF8') FROM generate_series(1, $1::int) n`, perHour)
		eventually(t, func() bool {
			return h.count(t, `SELECT count(*) FROM outbox WHERE published_at IS NULL AND dead_at IS NULL`) == 0
		}, "hour %d: all is published or dead", hour)
		h.exec(t, `UPDATE outbox SET published_at = now() WHERE published_at IS NULL AND dead_at IS NOT NULL AND id <= $1`,
			(hour-attended)*perHour)
		at := value[time.Time](t, h, `SELECT began + hour * interval '1 hour' FROM night`)
		r := h.roll(t, func(c *admin.RollConfig) { c.At, c.Retention = at, kept*time.Hour })
		for _, l := range r.Leaves {
			require.NotContains(t, l.Why, inUseByOthers, "hour %d: %s", hour, l.Name)
		}
		total.Made += r.Made
		total.Emptied += r.Emptied
		total.Dropped += r.Dropped
		total.Removed += r.Removed
		total.PutBack += r.PutBack
		total.Deleted += r.Deleted
		set, err := leaves.Read(t.Context(), (*core.DB)(h.db), sqltext.Tables{})
		require.NoError(t, err)
		size := set.Default.Total
		for _, l := range set.Leaves {
			size += l.Total
		}
		sizes, counts = append(sizes, size), append(counts, int64(len(set.Leaves)))
	}
	t.Logf("leaves: %d made, %d emptied, %d dropped; messages: %d removed, %d put back, %d deleted", total.Made,
		total.Emptied, total.Dropped, total.Removed, total.PutBack, total.Deleted)
	t.Logf("leaves by hour: %v", counts)
	t.Logf("KiB by hour: %v", inKiB(sizes))
	steady := sizes[6:]
	assert.LessOrEqual(t, float64(sizes[hours-1]), 1.1*float64(sizes[5]), "the size is that of hour 6")
	assert.LessOrEqual(t, float64(slices.Max(steady)), 1.1*float64(slices.Min(steady)), "the size does not change")
	assert.LessOrEqual(t, slices.Max(counts), int64(kept+1+4+5), "few leaves")
	assert.Equal(t, counts[hours-1], 3+int64(total.Made-total.Dropped))
	assert.Equal(t, counts[11], counts[hours-1], "what is made is dropped")
	assert.Zero(t, total.Deleted)
	assert.Zero(t, h.count(t, `SELECT count(*) FROM outbox_default`))
	assert.Equal(t, fmt.Sprint(hours*perHour), fmt.Sprint(total.Removed+int64(h.count(t, `SELECT count(*) FROM outbox`))),
		"each message was removed, or is there")
}

const inUseByOthers = "it is in use"

func inKiB(sizes []int64) (list []int64) {
	for _, s := range sizes {
		list = append(list, s>>10)
	}
	return list
}

// TestPartitionedOrder runs the order test while leaves are made, emptied with what must stay put back, and dropped, as
// fast as that goes: all that was settled is old at once.
func TestPartitionedOrder(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	url := newOrderDatabase(t)
	writer := pgxHandle(t, "writer", url, manyConns)
	intoLeaves(t, writer, 1000, 2000, 3000, 4000, 5000)
	sabotage := &fetchSaboteur{every: 20}
	reader := pgxHandle(t, "reader", url, func(cfg *pgxpool.Config) { cfg.ConnConfig.Tracer = sabotage })
	writer.exec(t, `INSERT INTO outbox (uuid, topic, payload, due_at) VALUES ('u', 'later', '', now() + interval '1 hour')`)
	a, err := admin.New(newPgxHandle(t, url).db, admin.Config{Actor: "test"}, nil)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	var total admin.RollResult
	var rolling sync.WaitGroup
	t.Cleanup(func() {
		stop()
		rolling.Wait()
	})
	run := orderRun{writers: 16, time: orderTime(12 * time.Second), started: func(handle) {
		rolling.Go(func() {
			for ctx.Err() == nil {
				r, err := a.RollOutbox(ctx, admin.RollConfig{Retention: time.Millisecond, PartitionSize: 1000})
				if ctx.Err() == nil {
					assert.NoError(t, err)
				}
				total.Made += r.Made
				total.Emptied += r.Emptied
				total.Dropped += r.Dropped
				total.Removed += r.Removed
				total.PutBack += r.PutBack
				total.Deleted += r.Deleted
			}
		})
	}}
	checkOrder(t, run, writer, reader, newLedger(true))
	stop()
	rolling.Wait()
	t.Logf("leaves: %d made, %d emptied, %d dropped; messages: %d removed, %d put back, %d deleted; %s", total.Made,
		total.Emptied, total.Dropped, total.Removed, total.PutBack, total.Deleted, sabotage)
	assert.Positive(t, total.Made)
	assert.Positive(t, total.Emptied)
	assert.Positive(t, total.PutBack, "the first leaf has a message that is due in an hour")
}
