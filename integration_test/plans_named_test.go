package integration_test

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// TestNamedMessagesAreLookedUp, each by its index: to walk the table in its order would find them too, and reads all of
// it. One that is named twice is found once.
func TestNamedMessagesAreLookedUp(t *testing.T) {
	h := onPgx(t)
	h.exec(t, `INSERT INTO inbox (consumer, message_id, processed_at)
		SELECT 'shop/' || i % 3, i, now() FROM generate_series(1, 20000) i`)
	h.exec(t, `INSERT INTO inbox_queue (source, message_id, topic, state, payload)
		SELECT 'shop', i, 'orders', 'processing', '' FROM generate_series(1, 20000) i`)
	h.exec(t, `ANALYZE inbox, inbox_queue`)
	ids := []string{"7", "19996", "7"}
	for name, s := range map[string]struct {
		sql  string
		args []any
	}{
		"inbox": {sqltext.Inbox.Page["ids"], scanArgs(ids, "shop/1", "shop/1", "shop/1")},
		"queue": {sqltext.Queue.Page["ids"], scanArgs(ids, "shop", "shop", "shop")},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, pgx.BeginFunc(t.Context(), h.pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), sqltext.WalkIndexes); err != nil {
					return err
				}
				var text []byte
				explain := "EXPLAIN (FORMAT JSON, ANALYZE, BUFFERS, TIMING OFF) "
				err := tx.QueryRow(t.Context(), explain+sqltext.Tables{}.Render(s.sql), s.args...).Scan(&text)
				if err != nil {
					return fmt.Errorf("explain: %w", err)
				}
				var root []struct {
					Plan struct {
						Rows float64 `json:"Actual Rows"` // with decimals since PostgreSQL 18
						Hit  int     `json:"Shared Hit Blocks"`
						Read int     `json:"Shared Read Blocks"`
					}
				}
				require.NoError(t, json.Unmarshal(text, &root))
				assert.InDelta(t, 2, root[0].Plan.Rows, 0, "%s", text)
				assert.Less(t, root[0].Plan.Hit+root[0].Plan.Read, 50, "%s", text)
				return nil
			}))
		})
	}
}

// scanArgs are the arguments of a scan of rows that are named.
func scanArgs(names []string, owners ...string) []any {
	return []any{"", "", "", "", "", "", []string{}, 100, 100, int64(math.MaxInt64), "", "-infinity", "", 0, owners, names, "",
		int64(math.MaxInt64), 0}
}
