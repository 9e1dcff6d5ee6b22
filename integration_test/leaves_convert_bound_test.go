package integration_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/watermill-outbox/schema"
)

const belowIsThere = `SELECT count(*) FROM pg_constraint WHERE conname = 'outbox_below'`

// TestConvertIDsComeClose: the check that Partition adds refuses ids from its end on. If ids come close to it while the
// table is read, or while the lock cannot be had, it is replaced by one that is farther before it refuses anything.
func TestConvertIDsComeClose(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	for name, holds := range map[string]string{
		"reading": `LOCK TABLE outbox IN SHARE UPDATE EXCLUSIVE MODE`,
		"locking": `SELECT count(*) FROM outbox`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newPgxHandle(t, newMigratedDatabase(t))
			h.writeRows(t, 1, "")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var end func()
			watched := watchedHandle(t, h, func(s string, sent bool) bool {
				switch {
				case end == nil && !sent && strings.Contains(s, "VALIDATE"):
					end = h.open(t, holds)
					h.exec(t, `SELECT setval('outbox_id_seq', 1900)`)
				case end != nil && sent && strings.Contains(s, "DROP CONSTRAINT IF EXISTS"):
					end()
				}
				return true
			})
			require.NoError(t, schema.Partition(ctx, watched.db, schema.PartitionConfig{PartitionSize: 1000}))
			require.NotNil(t, end)
			require.Equal(t, "MINVALUE-5900", h.bounds(t)[0])
			require.Zero(t, h.count(t, belowIsThere))
		})
	}
}

// TestConvertTakesItsCheckAway ends Partition in several ways after it added its check, while others use the outbox all
// the time.
func TestConvertTakesItsCheckAway(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	t.Run("the commit is not confirmed", func(t *testing.T) {
		t.Parallel()
		h := newPgxHandle(t, newMigratedDatabase(t))
		added, cut := false, false
		err := schema.Partition(t.Context(), watchedHandle(t, h, func(s string, sent bool) bool {
			added = added || strings.Contains(s, "ADD CONSTRAINT")
			if added && !cut && sent && strings.EqualFold(s, "commit") {
				cut = true
				return false
			}
			return true
		}).db, schema.PartitionConfig{PartitionSize: 1000})
		require.True(t, cut)
		require.Error(t, err)
		require.Zero(t, h.count(t, belowIsThere), "%v", err)
	})
	t.Run("others follow each other closely", func(t *testing.T) {
		t.Parallel()
		h := newPgxHandle(t, newMigratedDatabase(t))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		busy, stop := context.WithCancel(t.Context())
		readers := pgxHandle(t, "readers", h.url, func(cfg *pgxpool.Config) { cfg.MaxConns = 12 })
		var reading sync.WaitGroup
		defer reading.Wait()
		defer stop()
		locks := 0
		var end func()
		watched := watchedHandle(t, h, func(s string, sent bool) bool {
			switch {
			case !sent && strings.Contains(s, "VALIDATE"):
				end = h.open(t, `SELECT count(*) FROM outbox`)
				for range 12 { // so many that a lock which is given up at once is hardly ever to be had
					reading.Go(func() {
						for busy.Err() == nil {
							_, _ = readers.pool.Exec(busy, `SELECT count(*), pg_sleep(0.02) FROM outbox`)
						}
					})
				}
			case sent && strings.HasPrefix(s, "LOCK TABLE"):
				if locks++; locks == 5 {
					cancel()
				}
			case sent && end != nil && strings.Contains(s, "DROP CONSTRAINT IF EXISTS"):
				end()
			}
			return true
		})
		require.ErrorIs(t, schema.Partition(ctx, watched.db, schema.PartitionConfig{PartitionSize: 1000}), context.Canceled)
		require.Zero(t, h.count(t, belowIsThere))
	})
}

// TestConvertCheckOfAnother has the check go away before the tables are swapped: without it the server would read the
// table while all others wait.
func TestConvertCheckOfAnother(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	validated := 0
	watched := watchedHandle(t, h, func(s string, sent bool) bool {
		if sent && strings.Contains(s, "VALIDATE") {
			validated++
		}
		if !sent && validated == 1 && strings.HasPrefix(s, "LOCK TABLE") {
			h.exec(t, `ALTER TABLE outbox DROP CONSTRAINT IF EXISTS outbox_below`)
		}
		return true
	})
	require.NoError(t, schema.Partition(t.Context(), watched.db, schema.PartitionConfig{PartitionSize: 1000}))
	require.Equal(t, 2, validated)
}

// TestConvertDropsTheCheckOfARoll: what a roll that was killed left on the default would refuse ids for good once that
// is the outbox.
func TestConvertDropsTheCheckOfARoll(t *testing.T) {
	extended(t)
	t.Parallel()
	h := newLeaves(t, 100)
	h.exec(t, `SELECT setval('outbox_id_seq', 500)`)
	h.writeRows(t, 1, "")
	require.NoError(t, schemaPromise(t, h))
	require.NoError(t, schema.Unpartition(t.Context(), h.db))
	require.Zero(t, h.count(t, `SELECT count(*) FROM pg_constraint WHERE conname = 'outbox_default_bound'`))
}

// TestConvertKeepsPrivileges has grants that a grantee granted on, and default privileges: afterwards roles have what
// they had on the outbox, and nothing on its partitions, also on those of a roll.
func TestConvertKeepsPrivileges(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	first, second := "first_"+h.dbName(t), "second_"+h.dbName(t)
	execScript(t, h, `CREATE ROLE `+first+`; CREATE ROLE `+second+`; GRANT INSERT ON outbox TO `+first+` WITH GRANT OPTION;
		SET ROLE `+first+`; GRANT INSERT ON outbox TO `+second+`; RESET ROLE;
		ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO `+second+`;
		ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO PUBLIC`)
	t.Cleanup(func() {
		_, err := h.pool.Exec(context.Background(), `DROP OWNED BY `+first+`, `+second+` CASCADE`)
		require.NoError(t, err)
		_, err = h.pool.Exec(context.Background(), `DROP ROLE `+first+`, `+second)
		require.NoError(t, err)
	})
	rights := `SELECT string_agg(DISTINCT grantee::regrole || ' ' || privilege_type, ',') FROM pg_class, aclexplode(relacl)
		WHERE relname = 'outbox' AND grantee <> relowner`
	before := value[string](t, h, rights)
	require.NoError(t, schema.Partition(t.Context(), h.db, schema.PartitionConfig{PartitionSize: 1000}))
	require.Equal(t, before, value[string](t, h, rights))
	h.exec(t, `SELECT setval('outbox_id_seq', 2500)`)
	require.Contains(t, did(h.roll(t)), "made outbox_p5")
	require.Empty(t, column[string](t, h, `SELECT DISTINCT relname::text FROM pg_class, aclexplode(relacl)
		WHERE relname ~ '^outbox_(p[0-9]+|default)$' AND grantee <> relowner`))
}

// TestConvertEndsWhenStatementsAreCancelled has the swap cancelled each time, as its timeout or an operator does: all
// others wait while it works, so it does not go on for ever.
func TestConvertEndsWhenStatementsAreCancelled(t *testing.T) {
	extended(t)
	needsPlainOutbox(t)
	t.Parallel()
	h := newPgxHandle(t, newMigratedDatabase(t))
	execScript(t, h, `CREATE FUNCTION cancels() RETURNS event_trigger LANGUAGE plpgsql AS
			$$ BEGIN RAISE EXCEPTION 'canceling statement' USING ERRCODE = 'query_canceled'; END $$;
		CREATE EVENT TRIGGER cancels ON ddl_command_start WHEN TAG IN ('CREATE TABLE') EXECUTE FUNCTION cancels()`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := schema.Partition(ctx, h.db, schema.PartitionConfig{PartitionSize: 1000})
	require.ErrorContains(t, err, "statements were cancelled 3 times while the outbox was locked")
	require.Zero(t, h.count(t, belowIsThere))
	h.exec(t, `DROP EVENT TRIGGER cancels`)
	require.NoError(t, schema.Partition(ctx, h.db, schema.PartitionConfig{PartitionSize: 1000}))
}
