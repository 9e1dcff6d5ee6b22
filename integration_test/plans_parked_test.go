package integration_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// TestPlansOfParkedKeys: what is asked of parked keys each second reads little, however much is parked of one of them.
func TestPlansOfParkedKeys(t *testing.T) {
	extended(t)
	needsPlainOutbox(t) // it sets storage options of the outbox
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	h.exec(t, "ALTER TABLE outbox SET (autovacuum_enabled = off)")
	h.exec(t, "ALTER TABLE outbox SET UNLOGGED")
	statement := sqltext.Tables{}.Render(sqltext.ParkedOf)
	const topic, most = "booking/orders", 1001
	ask := func(keys ...string) map[string][2]int64 {
		rows, err := h.pool.Query(t.Context(), statement, topic, keys, int64(most))
		require.NoError(t, err)
		defer rows.Close()
		found := map[string][2]int64{}
		for rows.Next() {
			var key string
			var pile [2]int64
			require.NoError(t, rows.Scan(&key, &pile[0], &pile[1]))
			found[key] = pile
		}
		require.NoError(t, rows.Err())
		return found
	}
	check := func(state string) {
		var text []byte
		require.NoError(t, h.pool.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+statement,
			topic, []string{"0/hot", "0/absent", "0/7"}, int64(most)).Scan(&text))
		var root []struct {
			Plan struct {
				plan
				Hit  int `json:"Shared Hit Blocks"`
				Read int `json:"Shared Read Blocks"`
			}
		}
		require.NoError(t, json.Unmarshal(text, &root))
		scans, _ := root[0].Plan.scans()
		require.NotEmpty(t, scans, state)
		for _, scan := range scans {
			assert.Contains(t, []string{"outbox_ready", "outbox_waiting"}, scan.Index, "%s: a %s", state, scan.Type)
		}
		blocks := root[0].Plan.Hit + root[0].Plan.Read
		t.Logf("%s: %d blocks", state, blocks)
		assert.Less(t, blocks, 600, state)
	}
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload, attempts, due_at)
		SELECT 'f' || i, 'booking/orders', '0/' || i, '', 3, now() + interval '10 s' FROM generate_series(1, 90) i`)
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload)
		SELECT 'k' || i, 'booking/orders', '', '' FROM generate_series(1, 5) i`)
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload)
		SELECT 'o' || i, 'billing/orders', '0/7', '' FROM generate_series(1, 5) i`)
	h.exec(t, `INSERT INTO outbox (uuid, topic, key, payload)
		SELECT 'h' || i, 'booking/orders', '0/hot', convert_to(repeat('x', 200), 'UTF8') FROM generate_series(1, 200000) i`)
	check("never analyzed")
	h.exec(t, "ANALYZE outbox")
	check("fresh")
	hot := value[int64](t, h, "SELECT min(id) FROM outbox WHERE key = '0/hot'")
	assert.Equal(t, map[string][2]int64{"0/hot": {hot, most}, "0/7": {7, 1}}, ask("0/hot", "0/absent", "0/7"))
	assert.Equal(t, map[string][2]int64{"": {91, 5}}, ask(""))
	h.exec(t, "UPDATE outbox SET published_at = now() WHERE id % 1000 > 0 AND key = '0/hot'")
	assert.Equal(t, int64(200), ask("0/hot")["0/hot"][1])
}
