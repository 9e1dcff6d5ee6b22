package sqltext

import "strings"

// OfLeaf puts the name of a leaf, as SQL, into a statement below, and as a text that names it.
func OfLeaf(statement, leaf string) string {
	text := "'" + strings.ReplaceAll(leaf, "'", "''") + "'"
	return strings.NewReplacer("{leaf}", leaf, "{leaf_text}", text).Replace(statement)
}

// The statements that look at leaves. They take no lock that anything waits for.
const (
	// RollActs changes with each message that an act of an operator changes, since the act counts it in the same
	// transaction, and with the file of a leaf.
	RollActs = `SELECT pg_relation_filenode({leaf_text}::regclass) || ' ' || coalesce(max(a.id), 0) || ' ' ||
       coalesce(sum(a.touched), 0)
  FROM (SELECT * FROM {audit} a ORDER BY a.id DESC LIMIT 1000) a WHERE a.action NOT IN ('clean', 'roll')`

	// RollTail says whether the end of a leaf was settled later than a time, so that there is no need to read all of it.
	//
	// Arguments: time (RFC 3339 text), rows.
	RollTail = `SELECT count(*) FILTER (WHERE t.published_at >= $1::text::timestamptz) >= $2::bigint
  FROM (SELECT o.published_at FROM ONLY {leaf} o ORDER BY o.id DESC LIMIT $2::bigint) t`

	// RollLook counts the rows of a leaf that were settled before a time, and of the others those that were settled since.
	// It returns the ids of the others, so many at most, their bytes, and whether the leaf has triggers that would take
	// what is put back for a new message. Postgres 13 and 14 call those that it has from the outbox internal, as they do
	// their own.
	//
	// Arguments: time (RFC 3339 text), how many ids.
	RollLook = `SELECT count(*) FILTER (WHERE o.published_at < $1::text::timestamptz),
       count(*) FILTER (WHERE o.published_at >= $1::text::timestamptz),
       coalesce(array_to_string((array_agg(o.id) FILTER (WHERE o.published_at IS NULL
         OR o.published_at >= $1::text::timestamptz))[1:$2::int], ','), ''),
       coalesce(sum(greatest(pg_column_size(o.*), coalesce(octet_length(o.payload), 0) +
         octet_length(o.metadata::text) + coalesce(octet_length(o.last_error), 0))) FILTER (WHERE o.published_at IS NULL
         OR o.published_at >= $1::text::timestamptz), 0)::bigint,
       EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = {leaf_text}::regclass AND t.tgtype::int & 4 <> 0
         AND t.tgenabled <> 'D' AND (NOT t.tgisinternal OR t.tgparentid <> 0))
  FROM ONLY {leaf} o`

	// RollDefault says whether the default has rows, and the highest id below another; 0 = none.
	//
	// Arguments: id.
	RollDefault = `SELECT EXISTS (SELECT FROM (SELECT o.id FROM ONLY {leaf} o ORDER BY o.id LIMIT 1) r),
       coalesce((SELECT max(o.id) FROM ONLY {leaf} o WHERE o.id < $1::bigint), 0)`

	// RollNext is the lowest id in a leaf from one on; NULL = none.
	//
	// Arguments: id.
	RollNext = `SELECT min(o.id) FROM ONLY {leaf} o WHERE o.id >= $1::bigint`

	// RollIsEmpty says whether a leaf has no rows.
	RollIsEmpty = `SELECT NOT EXISTS (SELECT FROM ONLY {leaf})`
)

// The statements of a transaction that has leaves locked. The program sends them as they are, in the simple protocol
// that COPY needs, so what would be an argument is filled in.
const (
	// RollBegin begins a transaction whose locks are to be had at once, or not at all: others would queue up behind one
	// that waits. lock_timeout is for what NOWAIT cannot name: the table of large values, which autovacuum may have
	// locked. Whatever happens to the program, the locks are gone soon. It does not wait for a standby while it has them:
	// what a failover would lose is done again.
	RollBegin = `BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = '50ms';
SET LOCAL statement_timeout = '10s'; SET LOCAL idle_in_transaction_session_timeout = '5s';
SET LOCAL enable_seqscan = off; SET LOCAL row_security = off; SET LOCAL synchronous_commit = 'local';
SET LOCAL default_table_access_method = 'heap'; SET LOCAL default_tablespace = ''; SET LOCAL jit = off;
SELECT set_config('client_encoding', getdatabaseencoding(), true)`

	// RollPatience bounds the wait for a lock of what reads all of a leaf. Autovacuum gives way sooner.
	RollPatience = `SELECT set_config('lock_timeout', '30s', true)`

	// RollLock is one of its locks. The order is the outbox, its default, a leaf.
	RollLock = `; LOCK TABLE ONLY {leaf} IN {mode} MODE NOWAIT`

	// RollStay says RollActs, lists what must stay in a leaf that is locked, and the columns of the leaf that can be
	// written, as SQL. What must stay is what RollLook has found, and by their indexes the messages that are not settled
	// now. {ids} are the former, {n} how many are listed.
	RollStay = `SELECT (` + RollActs + `), coalesce((SELECT string_agg(s.id::text, ',') FROM (
    SELECT unnest('{{ids}}'::bigint[]) AS id
    UNION (SELECT o.id FROM ONLY {leaf} o WHERE o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL LIMIT {n})
    UNION (SELECT o.id FROM ONLY {leaf} o WHERE o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NOT NULL
      LIMIT {n})
    UNION (SELECT o.id FROM ONLY {leaf} o WHERE o.dead_at >= '-infinity' AND o.published_at IS NULL LIMIT {n})
    LIMIT {n}) s), ''),
       (SELECT string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FROM pg_attribute a
         WHERE a.attrelid = {leaf_text}::regclass AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '')`

	// RollTake reads what stays.
	RollTake = `COPY (SELECT {columns} FROM ONLY {leaf} o WHERE o.id = ANY ('{{ids}}'::bigint[])) TO STDOUT (FORMAT binary)`

	// RollEmpty empties a leaf. RESTART IDENTITY would begin another life of the ids.
	RollEmpty = `TRUNCATE ONLY {leaf}`

	// RollPutBack writes what stays. FREEZE makes it visible to snapshots that were taken before: to a transaction that is
	// REPEATABLE READ, and to a pg_dump, which would miss it otherwise.
	RollPutBack = `COPY {leaf} ({columns}) FROM STDIN (FORMAT binary, FREEZE)`

	// RollMake makes a leaf, where the outbox is, and each index where that of the outbox is.
	RollMake = `CREATE TABLE {leaf} (LIKE {outbox} INCLUDING ALL){options}{tablespace};
ALTER TABLE {leaf} OWNER TO {owner};
ALTER TABLE {outbox} ATTACH PARTITION {leaf} FOR VALUES FROM ({from}) TO ({to})`

	// RollBound has ATTACH know of the default that it holds no id of the leaf, which it would find out by reading all of
	// it under the lock. The check refuses what the leaf will take until that is attached, so the ids are far ahead.
	RollBound = `ALTER TABLE {leaf} DROP CONSTRAINT IF EXISTS {bound};
ALTER TABLE {leaf} ADD CONSTRAINT {bound} CHECK (id IS NOT NULL AND (id < {from} OR id >= {to})) NOT VALID`

	// RollValidate reads the default, and no writer waits for it.
	RollValidate = `ALTER TABLE {leaf} VALIDATE CONSTRAINT {bound}`
	RollUnbound  = `ALTER TABLE {leaf} DROP CONSTRAINT IF EXISTS {bound}`

	// RollPromised says which that check is; 0 = there is none.
	RollPromised = `SELECT coalesce((SELECT c.oid::bigint FROM pg_constraint c
  WHERE c.conrelid = to_regclass({leaf_text}) AND c.conname = {bound_text}), 0)`

	// RollKept says whether that check is there for this leaf, and validated.
	RollKept = `SELECT EXISTS (SELECT FROM pg_constraint c WHERE c.conrelid = to_regclass({leaf_text}) AND c.conname = {bound_text}
   AND c.convalidated AND substring(pg_get_constraintdef(c.oid) from '< ''?([0-9]+)')::bigint = {from}
   AND substring(pg_get_constraintdef(c.oid) from '>= ''?([0-9]+)')::bigint = {to})`

	// RollPartitions says how many partitions there are, and the last id that was handed out.
	RollPartitions = `SELECT count(*), coalesce(pg_sequence_last_value(to_regclass({outbox_id_seq_text})), 0)
  FROM pg_inherits i WHERE i.inhparent = to_regclass({outbox_text})`

	// RollDrop drops a leaf.
	RollDrop = `DROP TABLE {leaf}`
)
