package integration_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestIndexOfUUIDsIsTooDear measures what an index by which a message could be found would cost writers: bytes of WAL
// for each message from its insert to its deletion. If one costs at most 2 % one day, admin.Find should use it.
func TestIndexOfUUIDsIsTooDear(t *testing.T) {
	extended(t)
	needsPlainOutbox(t) // it sets storage options of the outbox
	t.Parallel()
	const rows, kept = 5000, 50_000
	measure := func(index string) float64 {
		h := newPgxHandle(t, newMigratedDatabase(t))
		h.exec(t, "ALTER TABLE outbox SET (autovacuum_enabled = off)")
		insert := `INSERT INTO outbox (uuid, topic, key, payload, metadata, published_at)
			SELECT gen_random_uuid(), 'orders', 'k' || i % 100, convert_to(repeat('x', 200), 'UTF8'), '{"k": "v"}', `
		h.exec(t, insert+"now() FROM generate_series(1, $1::int) i", kept)
		if index != "" {
			h.exec(t, "CREATE INDEX ON outbox USING "+index)
		}
		bytes := 0.0
		for _, statement := range []string{
			insert + "NULL FROM generate_series(1, 5000) i",
			"UPDATE outbox SET published_at = now() WHERE id > 50000", "DELETE FROM outbox WHERE id > 50000",
		} {
			var plan []struct {
				Plan struct {
					WAL float64 `json:"WAL Bytes"`
				}
			}
			text := value[string](t, h, "EXPLAIN (ANALYZE, WAL, TIMING OFF, FORMAT JSON) "+statement)
			require.NoError(t, json.Unmarshal([]byte(text), &plan))
			require.NotZero(t, plan[0].Plan.WAL)
			bytes += plan[0].Plan.WAL
		}
		return bytes / rows
	}
	none := measure("")
	t.Logf("no index: %.0f bytes of WAL for each message", none)
	for _, index := range []string{"hash (uuid)", "btree (uuid)"} {
		with := measure(index)
		t.Logf("%s: %.0f bytes, %+.1f %%", index, with, 100*(with/none-1))
		assert.Greater(t, with, 1.02*none, index)
	}
}
