package sqltext

import "strings"

// OfPartition puts the name of a partition, as SQL, into a statement below.
func OfPartition(statement, partition string) string {
	return strings.ReplaceAll(statement, "{partition}", partition)
}

// The statements on an outbox in partitions.
const (
	// Partitions lists the partitions of the outbox: the name, as SQL; the bounds, as CREATE TABLE writes them; whether
	// another session or a prepared transaction holds an ACCESS EXCLUSIVE lock on it or a part of it, or waits for one, so
	// that others wait behind it; otherwise the bytes of its rows, and with its indexes; storage options separated by |;
	// whether it has partitions itself; and statements that make it survive a crash of the server ('' = it does). It
	// leaves out partitions that are being detached. It waits for a lock only if one is taken just when it reads the
	// sizes.
	Partitions = `WITH RECURSIVE held AS MATERIALIZED (SELECT k.relation FROM pg_locks k
    WHERE k.locktype = 'relation' AND k.mode = 'AccessExclusiveLock' AND k.pid IS DISTINCT FROM pg_backend_pid()
      AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())),
  parts(top, oid, level) AS (SELECT i.inhrelid, i.inhrelid, 0 FROM pg_inherits i
    WHERE i.inhparent = to_regclass({outbox_text})
    UNION ALL SELECT p.top, i.inhrelid, p.level + 1 FROM parts p JOIN pg_inherits i ON i.inhparent = p.oid),
  taken AS MATERIALIZED (SELECT p.top FROM parts p JOIN pg_class c ON c.oid = p.oid
    WHERE EXISTS (SELECT FROM held h WHERE h.relation IN (c.oid, c.reltoastrelid)
       OR h.relation IN (SELECT x.indexrelid FROM pg_index x WHERE x.indrelid IN (c.oid, c.reltoastrelid))))
SELECT c.relname::text, quote_ident(n.nspname) || '.' || quote_ident(c.relname),
       coalesce(pg_get_expr(c.relpartbound, CASE WHEN l.locked THEN 0 ELSE c.oid END), ''), l.locked,
       CASE WHEN l.locked THEN 0 ELSE coalesce(pg_relation_size(c.oid), 0) END,
       CASE WHEN l.locked THEN 0 ELSE coalesce(pg_total_relation_size(c.oid), 0) END,
       coalesce(array_to_string(c.reloptions, '|'), ''), c.relkind = 'p',
       coalesce((SELECT string_agg(format('ALTER TABLE %s.%I SET LOGGED', u.relnamespace::regnamespace, u.relname),
         '; ' ORDER BY p.level, u.relname)
                   FROM parts p JOIN pg_class u ON u.oid = p.oid
                  WHERE p.top = c.oid AND u.relpersistence = 'u' AND u.relkind <> 'p'), '')
  FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (SELECT c.oid IN (SELECT t.top FROM taken t) AS locked) l
 WHERE i.inhparent = to_regclass({outbox_text}) AND coalesce(to_jsonb(i)->>'inhdetachpending', 'false') = 'false'
   ORDER BY c.relname`

	// PartitionedTable describes the outbox: whether it is partitioned, its schema, its tablespace as a clause of CREATE
	// TABLE ('' = that of the database), its owner and the current role, all as SQL, whether the role has the rights of
	// the owner, whether it may read the last id of the sequence, and that id, 0 if there is no id or the role may not
	// read it.
	PartitionedTable = `SELECT c.relkind = 'p', c.relnamespace::regnamespace::text,
       coalesce((SELECT ' TABLESPACE ' || quote_ident(s.spcname) FROM pg_tablespace s WHERE s.oid = c.reltablespace),
         ''),
       c.relowner::regrole::text, quote_ident(current_user), pg_has_role(c.relowner, 'USAGE'), s.known,
       coalesce(CASE WHEN s.known THEN pg_sequence_last_value(s.id) END, 0)
  FROM pg_class c, LATERAL (SELECT i.id, coalesce(has_sequence_privilege(i.id, 'SELECT, USAGE'), false) AS known
         FROM (SELECT to_regclass({outbox_id_seq_text}) AS id) i) s
 WHERE c.oid = to_regclass({outbox_text})`

	// PartitionRows describes ranges of ids: the number of the range, the age in seconds of the row with the lowest id
	// (NULL = no rows), whether one of the last 100 rows was settled since a time, and the numbers of pending and dead
	// rows. It counts up to a number of rows in each index, and reads through the outbox, which needs no privileges on the
	// partitions.
	//
	// Arguments: first ids, ids that they end below, time (RFC 3339 text), rows.
	PartitionRows = `SELECT r.n, (SELECT extract(epoch FROM clock_timestamp() - o.created_at)::float8 FROM {outbox} o
          WHERE o.id >= r.first AND o.id < r.below ORDER BY o.id LIMIT 1),
       (SELECT coalesce(bool_or(l.published_at >= $3::text::timestamptz), false)
          FROM (SELECT o.published_at FROM {outbox} o WHERE o.id >= r.first AND o.id < r.below
                 ORDER BY o.id DESC LIMIT 100) l),
       (SELECT count(*) FROM (SELECT FROM {outbox} o WHERE o.id >= r.first AND o.id < r.below
           AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL LIMIT $4::bigint) c) +
       (SELECT count(*) FROM (SELECT FROM {outbox} o WHERE o.id >= r.first AND o.id < r.below
           AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NOT NULL LIMIT $4::bigint) c),
       (SELECT count(*) FROM (SELECT FROM {outbox} o WHERE o.id >= r.first AND o.id < r.below
           AND o.published_at IS NULL AND o.dead_at IS NOT NULL LIMIT $4::bigint) c)
  FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS r(first, below, n)`

	// PartitionRuns lists the last maintenance runs, newest first: how many seconds ago, the retention in seconds (0 =
	// none), whether the run completed, and the error that ended it or the partitions that it found in use.
	PartitionRuns = `SELECT extract(epoch FROM clock_timestamp() - a.at)::float8,
       CASE WHEN a.filter->>'before' ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z$'
            THEN extract(epoch FROM a.at - (a.filter->>'before')::timestamptz) ELSE 0 END::float8,
       a.ended_at IS NOT NULL AND (a.outcome = '' OR a.outcome LIKE 'in use: %'), a.outcome
  FROM (SELECT * FROM {audit} ORDER BY id DESC LIMIT 10000) a
 WHERE a.action = 'partitions' ORDER BY a.id DESC LIMIT 100`

	// PartitionHolds counts the pending and the dead rows of a partition, up to 1,000 of each index. A run uses it under
	// the lock to make sure that none are left.
	PartitionHolds = `SELECT (SELECT count(*) FROM (SELECT FROM {partition} o
          WHERE o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL LIMIT 1000) c) +
       (SELECT count(*) FROM (SELECT FROM {partition} o
          WHERE o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NOT NULL LIMIT 1000) c),
       (SELECT count(*) FROM (SELECT FROM {partition} o
          WHERE o.dead_at IS NOT NULL AND o.published_at IS NULL LIMIT 1000) c)`

	// PartitionTail reports whether one of the last 1,000 rows of a partition was settled since a time, which saves
	// reading all of it.
	//
	// Arguments: time (RFC 3339 text).
	PartitionTail = `SELECT coalesce(bool_or(t.published_at >= $1::text::timestamptz), false)
  FROM (SELECT o.published_at FROM {partition} o ORDER BY o.id DESC LIMIT 1000) t`

	// PartitionSettled counts the rows of a partition, and reports whether one was settled since a time. It reads all of
	// it.
	//
	// Arguments: time (RFC 3339 text).
	PartitionSettled = `SELECT count(*), coalesce(bool_or(o.published_at >= $1::text::timestamptz), false)
  FROM {partition} o`

	// PartitionTx is the first statement of a transaction that locks the outbox or its partitions. Even if the program
	// dies, the locks are released soon. COMMIT does not wait for a standby while it holds them: after a failover the work
	// is done again. It fails instead of reading only the rows that policies leave visible.
	//
	// Its timeouts are for locks that nobody but VACUUM, ANALYZE and changes of a table wait for. Autovacuum gives way to
	// such a lock once it has waited for deadlock_timeout.
	PartitionTx = `SELECT set_config('lock_timeout', d.ms + 1000 || 'ms', true),
       set_config('statement_timeout', d.ms + 4000 || 'ms', true),
       set_config('idle_in_transaction_session_timeout', '5s', true), set_config('synchronous_commit', 'local', true),
       set_config('enable_seqscan', 'off', true), set_config('row_security', 'off', true), set_config('jit', 'off',
         true),
       set_config('default_table_access_method', 'heap', true), set_config('default_tablespace', '', true)
  FROM (SELECT least(s.setting::bigint, 60000) AS ms FROM pg_settings s WHERE s.name = 'deadlock_timeout') d`

	// PartitionBriefly is for locks that readers and writers wait for, because they also queue behind a lock that waits.
	PartitionBriefly = `SET LOCAL lock_timeout = '100ms'; SET LOCAL statement_timeout = '5s'`

	// PartitionPatience bounds the wait for a lock of statements that read all of a partition.
	PartitionPatience = `SELECT set_config('lock_timeout', '1s', true)`

	// PartitionReserveOutbox and PartitionReserve exclude other runs, VACUUM, ANALYZE and changes of the table, but
	// neither readers nor writers.
	PartitionReserveOutbox = `LOCK TABLE ONLY {outbox} IN SHARE UPDATE EXCLUSIVE MODE`
	PartitionReserve       = `LOCK TABLE {partition} IN SHARE UPDATE EXCLUSIVE MODE`

	// PartitionFar returns the highest id in the default partition between two ids, the second exclusive; 0 = none.
	//
	// Arguments: two ids.
	PartitionFar = `SELECT coalesce((SELECT max(o.id) FROM {partition} o WHERE o.id >= $1::bigint AND o.id < $2::bigint),
  0)`

	// PartitionMake makes a table like the outbox, with each index in the tablespace of the outbox's index.
	PartitionMake = `CREATE TABLE {partition} (LIKE {outbox} INCLUDING ALL){options}{tablespace};
ALTER TABLE {partition} OWNER TO {owner}`

	// PartitionGranted lists the roles to whom ALTER DEFAULT PRIVILEGES grants tables that the current role makes, as SQL.
	// Only the owner may use a partition by its own name.
	PartitionGranted = `SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
  FROM pg_class t, pg_roles r, pg_default_acl d, aclexplode(d.defaclacl) a
 WHERE t.oid = to_regclass({outbox_text}) AND r.rolname = current_user AND d.defaclrole = r.oid
   AND d.defaclobjtype = 'r'
   AND d.defaclnamespace IN (0, t.relnamespace) AND a.grantee NOT IN (d.defaclrole, t.relowner) ORDER BY 1`

	// PartitionEmptyBetween proves to ATTACH that the default partition has no rows in a range of ids; otherwise each
	// ATTACH would read all of it. PartitionUnbound removes the constraint in the same transaction, so it refuses no
	// message.
	PartitionEmptyBetween = `ALTER TABLE {partition} ADD CONSTRAINT outbox_empty_between
  CHECK (id IS NOT NULL AND (id < {from} OR id >= {to}))`
	PartitionUnbound = `ALTER TABLE {partition} DROP CONSTRAINT outbox_empty_between`

	PartitionAttach = `ALTER TABLE {outbox} ATTACH PARTITION {partition} FOR VALUES FROM ({from}) TO ({to})`

	// PartitionLockOutbox waits for every transaction that has written to the outbox, PartitionLock only for those that
	// have used the partition: INSERT locks the one that it writes to.
	PartitionLockOutbox = `LOCK TABLE ONLY {outbox} IN ACCESS EXCLUSIVE MODE`
	PartitionLock       = `LOCK TABLE {partition} IN ACCESS EXCLUSIVE MODE`

	// PartitionBytes returns the bytes of the rows of a partition, deleted rows and its own partitions included. It reads
	// none of them.
	//
	// Arguments: name, as SQL.
	PartitionBytes = `SELECT coalesce(sum(pg_relation_size(t.relid)), 0)::bigint
  FROM pg_partition_tree($1::text::regclass) t`

	PartitionTruncate = `TRUNCATE {partition}`
	PartitionDrop     = `DROP TABLE {partition}`
)
