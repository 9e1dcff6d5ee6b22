package sqltext

// The statements of package move. {messages} and {offsets} are tables of watermill-sql, {payload} is the payload as
// bytea; the package fills them in.
const (
	// DescribeTable returns the qualified name of a table as SQL, with each of its columns and their types.
	//
	// Arguments: the table as SQL.
	DescribeTable = `SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname), a.attname::text,
       CASE a.atttypid WHEN 'bpchar'::regtype THEN 'bpchar' ELSE format_type(a.atttypid, NULL) END
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
 WHERE c.oid = to_regclass($1::text) ORDER BY a.attnum`

	// QueueDelays reports whether a queue belongs to a delaying subscriber, which creates an index by time.
	//
	// Arguments: the table as SQL.
	QueueDelays = `SELECT EXISTS (SELECT FROM pg_index i
 WHERE i.indrelid = to_regclass($1::text) AND pg_get_indexdef(i.indexrelid) LIKE '%_watermill_delayed_until%')`

	// LogPosition returns the position of a consumer group in a log, and keeps its subscribers waiting: they lock that
	// row as well.
	//
	// Arguments: consumer group.
	LogPosition = `SELECT coalesce(p.offset_acked, 0), p.last_processed_transaction_id::text FROM {offsets} p
 WHERE p.consumer_group = $1::text FOR UPDATE`

	// LogGroups lists consumer groups of a log.
	LogGroups = `SELECT p.consumer_group::text FROM {offsets} p ORDER BY p.consumer_group LIMIT 10`

	// BeginLog gives a position to a consumer group that has never read, as its subscriber does.
	//
	// Arguments: consumer group.
	BeginLog = `INSERT INTO {offsets} (consumer_group, offset_acked, last_processed_transaction_id)
VALUES ($1::text, 0, '0') ON CONFLICT DO NOTHING`

	// LogIsForeign reports whether a log, or the position of a consumer group, has transaction ids that this server has
	// not assigned yet: it was restored from another server, and no longer shows which of its rows are new.
	//
	// Arguments: consumer group.
	LogIsForeign = `SELECT EXISTS (
    SELECT FROM (SELECT m.transaction_id AS xid FROM {messages} m ORDER BY m.transaction_id DESC LIMIT 1) newest
     WHERE newest.xid >= pg_snapshot_xmax(pg_current_snapshot()))
    OR EXISTS (SELECT FROM {offsets} p WHERE p.consumer_group = $1::text
                  AND p.last_processed_transaction_id >= pg_snapshot_xmax(pg_current_snapshot()))`

	// ReadLog reads a log past a position, in the order and with the visibility rules of its subscriber.
	//
	// Arguments: transaction id, offset, largest number of rows.
	ReadLog = `SELECT m."offset", m.transaction_id::text, m.uuid::text, {payload},
       coalesce(m.metadata::text, '{}')
  FROM {messages} m
 WHERE (m.transaction_id, m."offset") > ($1::text::xid8, $2::bigint)
   AND m.transaction_id < pg_snapshot_xmin(pg_current_snapshot())
 ORDER BY m.transaction_id, m."offset" LIMIT $3::bigint`

	// AdvanceLog moves the position of a consumer group.
	//
	// Arguments: consumer group, transaction id, offset.
	AdvanceLog = `UPDATE {offsets} SET last_processed_transaction_id = $2::text::xid8, offset_acked = $3::bigint ` +
		`WHERE consumer_group = $1::text`

	// CountLog counts the rows past the position of a consumer group; a group that never read begins at the start.
	//
	// Arguments: consumer group.
	CountLog = `SELECT count(*) FROM {messages} m
 WHERE (m.transaction_id, m."offset") > (
       coalesce((SELECT p.last_processed_transaction_id FROM {offsets} p WHERE p.consumer_group = $1::text), '0'::xid8),
       coalesce((SELECT p.offset_acked FROM {offsets} p WHERE p.consumer_group = $1::text), 0))`

	// ReadQueue reads and locks unacked rows of a queue past an offset.
	//
	// Arguments: offset, largest number of rows.
	ReadQueue = `SELECT m."offset", '', m.uuid::text, {payload}, coalesce(m.metadata::text, '{}')
  FROM {messages} m WHERE NOT m.acked AND m."offset" > $1::bigint ORDER BY m."offset" LIMIT $2::bigint FOR UPDATE`

	// AckQueue marks rows of a queue.
	//
	// Arguments: offsets.
	AckQueue = `UPDATE {messages} SET acked = true WHERE "offset" = ANY ($1::bigint[])`

	// CountUnacked counts unacked rows.
	CountUnacked = `SELECT count(*) FROM {messages} m WHERE NOT m.acked`

	// WriteLog and WriteQueue write messages as watermill-sql's publisher does, in the order of the arrays.
	//
	// Arguments: uuids, payloads, metadata (JSON text).
	WriteLog = `INSERT INTO {messages} (uuid, payload, metadata, transaction_id)
SELECT m.uuid, {payload}, m.metadata::json, pg_current_xact_id()` + fromArrays

	WriteQueue = `INSERT INTO {messages} (uuid, payload, metadata)
SELECT m.uuid, {payload}, m.metadata::json` + fromArrays

	fromArrays = ` FROM unnest($1::text[], $2::bytea[], $3::text[]) AS m(uuid, payload, metadata)`

	// PayloadType returns the type of the payload in a user's table. The parts in braces below are the user's SQL.
	PayloadType = `SELECT pg_typeof((SELECT {payload} FROM {table} m LIMIT 0))::text`

	// ReadOwn reads and locks rows of a user's table past an ID.
	//
	// Arguments: ID as text or NULL, largest number of rows.
	ReadOwn = `SELECT m.{id}::text, coalesce({uuid}::text, ''), coalesce({topic}::text, ''), coalesce({key}::text, ''),
       {payload},
       (SELECT coalesce(jsonb_object_agg(e.key, e.value) FILTER (WHERE e.value IS NOT NULL), '{}') FROM jsonb_each_text(
            CASE jsonb_typeof({metadata}::jsonb) WHEN 'null' THEN NULL ELSE {metadata}::jsonb END) e)::text,
       coalesce(extract(epoch FROM CASE WHEN {due} < '9999-12-30 00:00Z' THEN {due}
         WHEN {due} IS NOT NULL THEN '9999-12-30 00:00Z' END)::float8, -1)
  FROM {table} m WHERE {pending} AND ($1::text IS NULL OR m.{id} > $1::text::{id_type})
 ORDER BY m.{id} LIMIT $2::bigint FOR UPDATE OF m`

	// MarkOwn and DeleteOwn mark rows of a user's table as sent, and return for each whether it is still pending.
	//
	// Arguments: IDs as text.
	MarkOwn = `UPDATE {table} m SET {assignments} WHERE m.{id} = ANY ($1::text[]::{id_type}[]) ` +
		`RETURNING coalesce({pending}, false)`
	DeleteOwn = `DELETE FROM {table} m WHERE m.{id} = ANY ($1::text[]::{id_type}[]) RETURNING false`

	// CountOwn counts pending rows of a user's table.
	CountOwn = `SELECT count(*) FROM {table} m WHERE {pending}`

	// InsertDead writes a dead message.
	//
	// Arguments: uuid, topic, payload, metadata (JSON text), reason.
	InsertDead = `INSERT INTO {outbox} (uuid, topic, payload, metadata, dead_at, last_error)
VALUES ($1::text, $2::text, $3::bytea, $4::text::jsonb, clock_timestamp(), $5::text)`

	// BoundLockWaits bounds each wait for a lock until the transaction ends, overriding the setting of the role and the
	// database.
	//
	// Arguments: the bound, as in SET; 0 = none.
	BoundLockWaits = `SELECT set_config('lock_timeout', $1::text, true)`

	// LogHolder, QueueHolder, OwnHolder and PendingHolder read the row that a move is to lock next, and return it if
	// another transaction has locked it, with that session: row, process, role, application, and the age of its
	// transaction in seconds, or NULL if it may not be seen. A row with a shared lock of several transactions is not
	// found.
	//
	// Arguments: consumer group; offset of the row that was locked last; its ID as text or NULL; its id, and whether to
	// include rows that are not due yet.
	LogHolder = `SELECT p.consumer_group::text, ` + holderOf + `{offsets} p` + locked +
		`p.xmax AND p.consumer_group = $1::text`
	QueueHolder = `SELECT n.row, ` + holderOf + `(SELECT m."offset"::text AS row, m.xmax AS by FROM {messages} m
 WHERE NOT m.acked AND m."offset" > $1::bigint ORDER BY m."offset" LIMIT 1) n` + locked + `n.by`
	OwnHolder = `SELECT n.row, ` + holderOf + `(SELECT m.{id}::text AS row, m.xmax AS by FROM {table} m
 WHERE {pending} AND ($1::text IS NULL OR m.{id} > $1::text::{id_type}) ORDER BY m.{id} LIMIT 1) n` + locked + `n.by`
	PendingHolder = `SELECT n.row, ` + holderOf + `(SELECT o.id::text AS row, o.xmax AS by FROM {outbox} o
 WHERE ` + isToMove + ` ORDER BY o.id LIMIT 1) n` + locked + `n.by`

	holderOf = `s.pid, coalesce(s.usename::text, ''), coalesce(s.application_name, ''),
  extract(epoch FROM clock_timestamp() - s.xact_start)::float8
  FROM pg_locks l JOIN pg_stat_activity s ON s.pid = l.pid CROSS JOIN `
	locked = ` WHERE l.locktype = 'transactionid' AND l.granted AND l.transactionid = `

	// LiveForwarders lists forwarders of the outbox that have neither ended nor let their lease expire.
	LiveForwarders = `SELECT f.name FROM {forwarders} f WHERE f.expires_at > clock_timestamp() ORDER BY f.name LIMIT 10`

	// ReadPending reads and locks unsettled messages past an id, with the times until which they are delayed.
	//
	// Arguments: id, whether to include messages that are not due yet, largest number of rows.
	ReadPending = `SELECT o.id, o.uuid, o.topic, o.key, o.payload, o.metadata::text,
       CASE WHEN o.attempts = 0 AND o.due_at > clock_timestamp()
            THEN to_char(least(o.due_at, timestamptz '9999-12-30 00:00Z') AT TIME ZONE 'UTC',
              'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') ELSE '' END
  FROM {outbox} o
 WHERE ` + isToMove + `
 ORDER BY o.id LIMIT $3::bigint FOR UPDATE`

	isToMove = `o.id > $1::bigint AND o.published_at IS NULL AND o.dead_at IS NULL
   AND ($2::bool OR o.due_at IS NULL OR o.attempts > 0 OR o.due_at <= clock_timestamp())`

	// DeleteRows deletes messages.
	//
	// Arguments: ids.
	DeleteRows = `DELETE FROM {outbox} WHERE id = ANY ($1::bigint[])`

	// CountPending counts unsettled messages.
	CountPending = `SELECT count(*) FROM {outbox} o WHERE o.published_at IS NULL AND o.dead_at IS NULL`
)
