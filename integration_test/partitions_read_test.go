package integration_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/partitions"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// TestPartitionsAreRead reads partitions from the catalog, also of an outbox with another name and schema.
func TestPartitionsAreRead(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	read := func(names sqltext.Tables) partitions.Set {
		t.Helper()
		s, err := partitions.Read(t.Context(), (*core.DB)(h.db), names)
		require.NoError(t, err)
		return s
	}
	s := read(sqltext.Tables{})
	require.Equal(t, partitions.Set{Schema: "public", Owner: s.Role, Role: s.Role, Owns: true, Known: true}, s,
		"a plain table has no partitions")
	require.Zero(t, read(sqltext.Tables{Outbox: "missing"}))

	intoPartitions(t, h, 10, 20, 40)
	h.exec(t, `INSERT INTO outbox (uuid, topic, payload) SELECT n, 't', 'p' FROM generate_series(1, 12) n`)
	h.exec(t, `INSERT INTO outbox (id, uuid, topic, payload) VALUES (1000, 'far', 't', 'p')`)
	s = read(sqltext.Tables{})
	require.True(t, s.Partitioned)
	require.Equal(t, int64(12), s.Last)
	require.Len(t, s.Partitions, 3)
	require.Equal(t, partitions.Range{From: math.MinInt64, To: 10}, s.Partitions[0].Range)
	require.Equal(t, partitions.Range{From: 20, To: 40}, s.Partitions[2].Range)
	require.Equal(t, "outbox_p2", s.Partitions[2].Name)
	require.Equal(t, `public.outbox_p2`, s.Partitions[2].SQL)
	require.Equal(t, []string{"autovacuum_vacuum_threshold=20000", "autovacuum_vacuum_scale_factor=0"},
		s.Partitions[2].Options)
	require.Positive(t, s.Partitions[1].Bytes)
	require.Zero(t, s.Partitions[2].Bytes)
	require.Greater(t, s.Partitions[1].Total, s.Partitions[1].Bytes)
	require.Equal(t, "outbox_default", s.Default.Name)
	require.Positive(t, s.Default.Bytes)
	require.Len(t, s.Behind(), 1)
	require.Equal(t, 1, s.Ahead())
	require.Equal(t, int64(20), s.Size())

	h.exec(t, `CREATE SCHEMA "Far-away"`)
	h.exec(t, `CREATE TABLE "Far-away".box (id bigint PRIMARY KEY) PARTITION BY RANGE (id)`)
	h.exec(t, `CREATE SEQUENCE "Far-away".box_id_seq`)
	h.exec(t, `CREATE TABLE "Far-away"."box_Z" PARTITION OF "Far-away".box FOR VALUES FROM (MINVALUE) TO (MAXVALUE)`)
	s = read(sqltext.Tables{Schema: "Far-away", Outbox: "box"})
	require.Equal(t, []string{`"Far-away"."box_Z"`}, []string{s.Partitions[0].SQL})
	require.Zero(t, s.Last)
	require.Nil(t, s.Default)
}
