package integration_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/admin"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/partitions"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// TestPartitionsOverANight simulates 24 hours: each fills a partition in which one message in a hundred dies, and ends
// with maintenance that keeps four hours. Dead messages are discarded after three hours. A trigger settles each message
// by the simulated clock.
func TestPartitionsOverANight(t *testing.T) {
	extended(t)
	t.Parallel()
	noLeaks(t)
	const hours, kept, attended = 24, 4, 3
	perHour := rounds(1000, 100_000)
	h := newPgxHandle(t, newMigratedDatabase(t))
	intoPartitions(t, h, nine(int64(perHour))...)
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
	made, dropped, removed := 0, 0, int64(0)
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
		r := h.maintain(t, func(c *admin.PartitionsConfig) { c.At, c.Retention = at, kept*time.Hour })
		for name, why := range r.Kept {
			require.NotContains(t, why, "in use", "hour %d: %s", hour, name)
		}
		made, dropped, removed = made+len(r.Made), dropped+len(r.Dropped), removed+r.Removed
		set, err := partitions.Read(t.Context(), (*core.DB)(h.db), sqltext.Tables{})
		require.NoError(t, err)
		size := set.Default.Total
		for _, l := range set.Partitions {
			size += l.Total
		}
		sizes, counts = append(sizes, size), append(counts, int64(len(set.Partitions)))
	}
	t.Logf("partitions: %d made, %d dropped; messages: %d removed", made, dropped, removed)
	t.Logf("partitions by hour: %v", counts)
	t.Logf("KiB by hour: %v", inKiB(sizes))
	steady := sizes[kept+attended+1:]
	assert.LessOrEqual(t, float64(sizes[hours-1]), 1.1*float64(sizes[kept+attended]), "the size stays that of hour 8")
	assert.LessOrEqual(t, float64(slices.Max(steady)), 1.1*float64(slices.Min(steady)), "the size does not change")
	assert.LessOrEqual(t, slices.Max(counts), int64(kept+attended+1+1+8),
		"few partitions: a dead message keeps one until it is discarded and old")
	assert.Equal(t, counts[hours-1], 9+int64(made-dropped))
	assert.Equal(t, counts[11], counts[hours-1], "created partitions are dropped")
	assert.Zero(t, h.count(t, `SELECT count(*) FROM outbox_default`))
	assert.Equal(t, fmt.Sprint(hours*perHour), fmt.Sprint(removed+int64(h.count(t, `SELECT count(*) FROM outbox`))),
		"each message was removed or exists")
}

func inKiB(sizes []int64) (list []int64) {
	for _, s := range sizes {
		list = append(list, s>>10)
	}
	return list
}
