package integration_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/leaves"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// TestLeavesAreRead reads partitions from the catalog, also of an outbox with another name in a schema of its own.
func TestLeavesAreRead(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	read := func(names sqltext.Tables) leaves.Set {
		t.Helper()
		s, err := leaves.Read(t.Context(), (*core.DB)(h.db), names)
		require.NoError(t, err)
		return s
	}
	s := read(sqltext.Tables{})
	require.Equal(t, leaves.Set{Schema: "public", Owner: s.Role, Role: s.Role, Known: true}, s,
		"a plain table has no leaves")
	require.Zero(t, read(sqltext.Tables{Outbox: "missing"}))

	intoLeaves(t, h, 10, 20, 40)
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload) SELECT n, 't', 'p' FROM generate_series(1, 12) n`)
	h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload) VALUES (1000, 'far', 't', 'p')`)
	h.exec(t, `ANALYZE outbox_p1`)
	s = read(sqltext.Tables{})
	require.True(t, s.Partitioned)
	require.Equal(t, int64(12), s.Last)
	require.Len(t, s.Leaves, 3)
	require.Equal(t, leaves.Range{From: math.MinInt64, To: 10}, s.Leaves[0].Range)
	require.Equal(t, leaves.Range{From: 20, To: 40}, s.Leaves[2].Range)
	require.Equal(t, "outbox_p2", s.Leaves[2].Name)
	require.Equal(t, `public.outbox_p2`, s.Leaves[2].SQL)
	require.Equal(t, []string{"autovacuum_vacuum_threshold=20000", "autovacuum_vacuum_scale_factor=0"},
		s.Leaves[2].Options)
	require.Equal(t, []int64{-1, 3, -1}, []int64{s.Leaves[0].Rows, s.Leaves[1].Rows, s.Leaves[2].Rows})
	require.Positive(t, s.Leaves[1].Bytes)
	require.Zero(t, s.Leaves[2].Bytes)
	require.Greater(t, s.Leaves[1].Total, s.Leaves[1].Bytes)
	require.Equal(t, "outbox_default", s.Default.Name)
	require.Positive(t, s.Default.Bytes)
	require.Equal(t, 1, s.Current())
	require.Equal(t, 1, s.Ahead())
	require.Equal(t, int64(20), s.Size())

	h.exec(t, `CREATE SCHEMA "Far-away"`)
	h.exec(t, `CREATE TABLE "Far-away".box (id bigint PRIMARY KEY) PARTITION BY RANGE (id)`)
	h.exec(t, `CREATE SEQUENCE "Far-away".box_id_seq`)
	h.exec(t, `CREATE TABLE "Far-away"."box_Z" PARTITION OF "Far-away".box FOR VALUES FROM (MINVALUE) TO (MAXVALUE)`)
	s = read(sqltext.Tables{Schema: "Far-away", Outbox: "box"})
	require.Equal(t, []string{`"Far-away"."box_Z"`}, []string{s.Leaves[0].SQL})
	require.Zero(t, s.Last)
	require.Nil(t, s.Default)
}
