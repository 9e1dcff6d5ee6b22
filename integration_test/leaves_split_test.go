package integration_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/schema"
)

// TestLeavesThatAreSplit: a leaf that somebody made with partitions of its own has no rows itself. It is no empty one.
func TestLeavesThatAreSplit(t *testing.T) {
	extended(t)
	t.Parallel()
	for _, split := range []string{"outbox_p0", "outbox_default"} {
		t.Run(split, func(t *testing.T) {
			h := newLeaves(t, 10, 20, 30, 40, 50)
			bounds := column[string](t, h, `SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE relname = '`+split+`'`)
			execScript(t, h,
				`DROP TABLE `+split+`; CREATE TABLE `+split+` PARTITION OF outbox `+bounds[0]+` PARTITION BY HASH (id)`)
			for _, n := range []string{"0", "1"} {
				h.exec(t, `CREATE TABLE `+split+`_part`+n+` PARTITION OF `+split+
					` FOR VALUES WITH (MODULUS 2, REMAINDER `+n+`)`)
			}
			h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload) VALUES (1000, 'far', 't', '')`)
			h.writeRows(t, 45, "")
			before := h.ids(t, "outbox")
			rolled := h.roll(t)
			if split == "outbox_p0" {
				require.Contains(t, did(rolled), "kept outbox_p0")
			}
			require.Equal(t, before, h.ids(t, "outbox"))
			h.exec(t, `DELETE FROM outbox WHERE id BETWEEN 10 AND 999`)
			require.ErrorContains(t, schema.Unpartition(t.Context(), h.db), split+" is in partitions itself")
		})
	}
}
