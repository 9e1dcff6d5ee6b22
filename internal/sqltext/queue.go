package sqltext

// The statements of package queue that store messages. Settling and claiming have their own files. All times are the
// database's.
//
// A row is ready without a due time only from its insertion until it is claimed: every update that makes a row wait for
// a claim gives it a due time. So claims read the ready rows once, in ascending order of ids, and remember the last id
// that they read.
const (
	// EnqueueMessages stores a batch in one statement, and returns the result of each item and the hash under which it was
	// known. Its items are distinct and in the order of source and message id, like those of all batches.
	//
	// known is read without a lock. It leaves out rows that the statement does not wait for: a row with an owner, which
	// stays locked until its handler's transaction has ended, and a done row, which gets no content.
	//
	// stored inserts and updates in one pass in the order of the items, and waits where another transaction is changing a
	// row. So two batches wait for each other in at most one place, and do not deadlock. The state of the row at that time
	// decides. A row without an owner takes the content, the later one of two. A row that has an owner by then is left
	// alone and has no result; a second call returns one. Only the update knows the hash that a row had before; it leaves
	// it in a setting for RETURNING.
	//
	// again comes after that: it waits for nothing, but others may wait for its locks.
	//
	// A result without a change may depend on rows that others have committed. With synchronous replication these may be
	// visible before a standby has them, if the wait of their transaction was cut short. So COMMIT waits for a standby
	// here, as it does for changes.
	//
	// No two CTEs are joined, so that none is scanned for each row of another, whatever sizes the planner expects. A
	// connection may keep a plan from a time when the table was empty. The statements that settle explain why that does no
	// harm: rows are looked up one after another, and updated by ctid.
	//
	// drawn takes the ids in the order of the call (the sort comes before them, because they are volatile), after the
	// transaction's own.
	//
	// Arguments: sources, message ids, topics, keys, payloads, metadata (JSON text), hashes (empty = none), due times and
	// times of expiry (RFC 3339, empty = none), positions in the call, delays in seconds in place of due times (0 = none).
	EnqueueMessages = `WITH item AS MATERIALIZED (
    SELECT i.n, i.source, i.message_id, i.topic, i.key, i.payload, i.metadata::jsonb AS metadata,
      nullif(i.hash, '') AS hash,
           CASE WHEN i.delay > 0 THEN clock_timestamp() + i.delay * interval '1 second'
                WHEN i.due <> '' AND i.due::timestamptz > clock_timestamp() THEN i.due::timestamptz END AS due_at,
           nullif(i.expires, '')::timestamptz AS expires_at, i.pos
      FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bytea[], $6::text[], $7::bytea[], $8::text[],
        $9::text[], $10::bigint[], $11::float8[])
           WITH ORDINALITY AS i(source, message_id, topic, key, payload, metadata, hash, due, expires, pos, delay, n)
     WHERE ` + isUTF8 + `
     LIMIT cardinality($1::text[])
), known AS MATERIALIZED (
    SELECT i.n, f.*
      FROM item i
     CROSS JOIN LATERAL (
           SELECT q.source, q.message_id, q.hash, q.state = 'done' AS done,
                  q.owner IS NOT NULL AND CASE WHEN q.xmax = '0' THEN true
                       ELSE pg_try_advisory_xact_lock_shared(8031453474740764672 + q.xmax::text::bigint) END AS busy
             FROM {queue} q
            WHERE q.source = i.source AND q.message_id = i.message_id
           OFFSET 0) f
), drawn AS MATERIALIZED (
    SELECT i.*, CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval({queue_id_seq_text}::regclass) END AS id
      FROM item i
     WHERE i.n NOT IN (SELECT k.n FROM known k WHERE k.done OR k.busy)
     ORDER BY i.pos
), stored AS (
    INSERT INTO {queue} AS q (id, source, message_id, topic, key, state, payload, metadata, hash, due_at, expires_at)
    SELECT d.id, d.source, d.message_id, d.topic, d.key, 'processing', d.payload, d.metadata, d.hash, d.due_at,
      d.expires_at
      FROM drawn d
     ORDER BY d.n
        ON CONFLICT (source, message_id) DO UPDATE
       SET last_seen_at = clock_timestamp(),
           state = CASE q.state WHEN 'seen' THEN 'processing' ELSE q.state END,
           topic = CASE q.state WHEN 'done' THEN q.topic ELSE excluded.topic END,
           key = CASE q.state WHEN 'done' THEN q.key ELSE excluded.key END,
           payload = CASE q.state WHEN 'done' THEN q.payload ELSE excluded.payload END,
           metadata = CASE q.state WHEN 'done' THEN q.metadata ELSE excluded.metadata END,
           hash = CASE WHEN set_config('` + hashBefore + `', coalesce(encode(q.hash, 'hex'), ''), true) IS NULL
                            OR q.state = 'done' THEN q.hash
                  ELSE excluded.hash END,
           expires_at = CASE q.state WHEN 'done' THEN q.expires_at ELSE excluded.expires_at END,
           due_at = CASE q.state WHEN 'done' THEN q.due_at
                    ELSE greatest(coalesce(excluded.due_at, clock_timestamp()), CASE WHEN q.attempts > 0
                      AND isfinite(q.due_at) THEN q.due_at END) END
     WHERE q.owner IS NULL
    RETURNING q.source, q.message_id, CASE WHEN q.xmax = '0' THEN 0 WHEN q.state = 'done' THEN 2 ELSE 1 END AS result,
              CASE WHEN q.xmax <> '0' THEN decode(nullif(current_setting('` + hashBefore + `'), ''), 'hex') END AS hash
), again AS MATERIALIZED (
    SELECT f.ctid
      FROM known k
     CROSS JOIN LATERAL (
           SELECT q.ctid FROM {queue} q
            WHERE q.source = k.source AND q.message_id = k.message_id AND q.owner IS NULL
              FOR UPDATE OF q SKIP LOCKED) f
     WHERE k.done AND (SELECT count(*) FROM stored) >= 0
     LIMIT (SELECT cardinality($1::text[]))
), touched AS (
    UPDATE {queue} q SET last_seen_at = clock_timestamp() FROM again a WHERE q.ctid = a.ctid
)
SELECT k.source, k.message_id, CASE WHEN k.done THEN 2 ELSE 3 END, k.hash
  FROM known k WHERE (k.done OR k.busy) AND ` + onAStandby + `
UNION ALL
SELECT s.source, s.message_id, s.result, s.hash FROM stored s`

	// KnownMessages lists the messages among some that have a row: EnqueueMessages did not store the others.
	//
	// Arguments: sources, message ids.
	KnownMessages = `SELECT q.source, q.message_id FROM unnest($1::text[], $2::text[]) AS i(source, message_id)
  JOIN {queue} q ON q.source = i.source AND q.message_id = i.message_id`

	hashBefore = `watermill_outbox.hash_before`

	// givingBack marks the transaction as one that takes messages from an owner without marking them done. Enqueue waits
	// for such a transaction, but not for a handler's transaction that has acked its message. Both have locked a row that
	// has an owner, and only the mark distinguishes them. It is set before the lock. Enqueue looks for the mark of the
	// transaction that locked the row last. Behind a savepoint the row has the transaction id of the savepoint, so
	// behindSavepoint marks that one too once it is known.
	givingBack      = `pg_try_advisory_xact_lock(8031453474740764672 + pg_current_xact_id()::xid::text::bigint) IS NOT NULL`
	behindSavepoint = `RETURNING CASE WHEN q.xmin <> pg_current_xact_id()::xid ` +
		`THEN pg_try_advisory_xact_lock(8031453474740764672 + q.xmin::text::bigint) END`

	// onAStandby makes COMMIT wait for a standby, if any, although nothing was changed: it waits for everything written to
	// the WAL before. A subquery runs once, however many rows use it.
	onAStandby = `(SELECT CASE WHEN current_setting('synchronous_standby_names') = '' THEN true
                     ELSE pg_logical_emit_message(true, 'watermill_outbox', '') IS NOT NULL END)`

	// SeeMessage records that a message arrived, and returns whether it was done before, and whether its content differed.
	// It does not wait for a locked row: such a row is not done, or stays done. COMMIT may wait for a standby, as in
	// EnqueueMessages.
	//
	// Arguments: source, message id, hash (bytea, may be NULL).
	SeeMessage = `WITH known AS MATERIALIZED (
    SELECT q.state = 'done' AS done, $3::bytea <> q.hash AS mismatch FROM {queue} q
     WHERE q.source = $1 AND q.message_id = $2 AND CASE WHEN q.state = 'done' THEN ` + onAStandby + ` ELSE true END
), locked AS MATERIALIZED (
    SELECT q.source, q.message_id FROM {queue} q
     WHERE q.source = $1 AND q.message_id = $2 AND q.owner IS NULL
       FOR UPDATE OF q SKIP LOCKED
), touched AS (
    UPDATE {queue} q SET last_seen_at = clock_timestamp(), hash = coalesce(q.hash, $3::bytea)
      FROM locked l WHERE q.source = l.source AND q.message_id = l.message_id
    RETURNING q.state = 'done' AS done
), inserted AS (
    INSERT INTO {queue} AS q (source, message_id, hash)
    SELECT $1::text, $2::text, $3::bytea WHERE NOT EXISTS (SELECT FROM known)
        ON CONFLICT (source, message_id) DO UPDATE SET last_seen_at = clock_timestamp(),
          hash = coalesce(q.hash, excluded.hash)
    RETURNING q.state = 'done' AS done, $3::bytea <> q.hash AS mismatch
)
SELECT coalesce((SELECT done FROM touched), (SELECT done FROM known), (SELECT done FROM inserted), false),
       coalesce((SELECT mismatch FROM known), (SELECT mismatch FROM inserted), false)`

	// GetMessage reads a row.
	//
	// Arguments: source, message id.
	GetMessage = `SELECT ` + queueColumns + ` FROM {queue} q WHERE q.source = $1 AND q.message_id = $2`

	// queueColumns are the columns of a message. Values that clients cannot read, such as infinity, must not fail the
	// batch.
	queueColumns = `q.id, q.source, q.message_id, q.topic, q.key, q.state, q.payload, q.metadata::text, q.hash,
       ` + firstSeenAt + `, ` + lastSeenAt + `, CASE WHEN isfinite(q.due_at) THEN q.due_at END, CASE
  WHEN isfinite(q.expires_at) THEN q.expires_at END,
       q.attempts, coalesce(q.last_error, '')`

	// MarkProcessing records that the caller works on a message. A message without a topic is never claimed; a dead one
	// can be claimed again, with all attempts and without expiry. It returns a row if the message exists; a done message
	// stays done.
	//
	// Arguments: source, message id.
	MarkProcessing = `WITH marked AS (
    UPDATE {queue} q
       SET state = 'processing', attempts = 0, crashes = 0, owner = NULL, locked_until = NULL, expires_at = NULL,
           due_at = CASE WHEN q.topic = '' THEN 'infinity' ELSE clock_timestamp() END
     WHERE q.source = $1 AND q.message_id = $2 AND q.state IN ('seen', 'dead') AND pg_current_xact_id() IS NOT NULL
    RETURNING q.state
)
SELECT m.state FROM marked m UNION ALL (` + stateOf + ` AND NOT EXISTS (SELECT FROM marked))`

	// MarkProcessed marks a message done, even if another owner has it.
	//
	// Arguments: source, message id, whether the payload stays.
	MarkProcessed = `WITH marked AS (
    UPDATE {queue} q
       SET state = 'done', done_at = clock_timestamp(), owner = NULL, locked_until = NULL,
           payload = CASE WHEN $3::bool THEN q.payload ELSE '' END, metadata = CASE WHEN $3::bool THEN q.metadata
             ELSE '{}' END
     WHERE q.source = $1 AND q.message_id = $2 AND q.state <> 'done'
    RETURNING q.state
)
SELECT m.state FROM marked m UNION ALL (` + stateOf + ` AND NOT EXISTS (SELECT FROM marked))`

	// MarkDead marks a message dead, even if another owner has it, unless it is done.
	//
	// Arguments: source, message id, reason.
	MarkDead = `WITH marked AS (
    UPDATE {queue} q SET state = 'dead', last_error = $3::text, owner = NULL, locked_until = NULL` +
		queueHistory + `'error', left($3::text, 256), 'died', statement_timestamp()` + queueHistoryEnd + `
     WHERE q.source = $1 AND q.message_id = $2 AND q.state <> 'done' AND ` + givingBack + `
    ` + behindSavepoint + `, q.state
)
SELECT m.state FROM marked m UNION ALL (` + stateOf + ` AND NOT EXISTS (SELECT FROM marked))`

	stateOf = `SELECT q.state FROM {queue} q WHERE q.source = $1 AND q.message_id = $2`

	// CleanQueue deletes one batch of messages that were done, or only seen, longer ago than the retention. Nothing
	// else is ever deleted.
	//
	// Arguments: retention in seconds, batch size, time from which the retention counts back (RFC 3339 text, empty =
	// now).
	CleanQueue = `WITH old AS MATERIALIZED (
    SELECT q.ctid FROM {queue} q
     WHERE q.state = 'done' AND q.done_at < coalesce(nullif($3::text, '')::timestamptz,
       statement_timestamp()) - $1::float8 * interval '1 second'
     ORDER BY q.done_at LIMIT $2::int FOR UPDATE OF q SKIP LOCKED
), seen AS MATERIALIZED (
    SELECT q.ctid FROM {queue} q
     WHERE q.state = 'seen' AND q.last_seen_at < coalesce(nullif($3::text, '')::timestamptz,
       statement_timestamp()) - $1::float8 * interval '1 second'
     ORDER BY q.last_seen_at LIMIT $2::int FOR UPDATE OF q SKIP LOCKED
)
DELETE FROM {queue} q USING (SELECT o.ctid FROM old o UNION ALL SELECT s.ctid FROM seen s LIMIT $2::int) o
 WHERE q.ctid = o.ctid`
)
