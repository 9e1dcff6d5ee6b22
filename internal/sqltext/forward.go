package sqltext

// What Fetch and FetchMore add to the lane of a row, to say why it was returned.
const (
	FromHeader = 0
	FromID     = 64
	FromReady  = 128
	FromDue    = 192
	FromIDDead = 256 // by its id, and it is dead
)

// The statements of the forwarder: reading the outbox in an exact order, and settling what became of
// each message. Package forwarder explains the protocol that they implement.
const (
	// Fetch reads, under one snapshot, what is new in the lanes of one owner. Its first result is a header
	// with the snapshot and what follows from it; then come the rows past each lane's mark. Its first column is
	// the row's lane plus one of the constants From..., as each column more is felt.
	//
	// The order of evaluation matters and is forced by the data flow between materialized CTEs: the
	// sequence is read first, then the snapshot, then the next transaction id (age() adds the distance
	// from the snapshot's xmax to it). A transaction id that is handed out before that is below
	// next_xid, and a row id that is handed out after the sequence was read is above seq.
	//
	// rewind is the lowest bound of a tracked transaction that this snapshot no longer shows in
	// progress. Whatever such a transaction wrote lies above its bound, so each lane starts there.
	//
	// Rows are compared as (lane, id) rather than by lane = ... AND id > ..., and ordered by both, because the
	// only index that can deliver that order is the partial one; ordered by id alone the planner may
	// choose to walk the primary key through all that was published.
	//
	// Each lane is read over the same stretch of ids past its mark, so that lanes that start at one place, as
	// they do when a long transaction ends, share the pages of the table that they visit: a page that many
	// published rows lie on is loaded once and not once for each lane.
	//
	// What is said of lanes is said of all 64 in their order, so that each finds its own by its number: a plan for any
	// arguments would compare each lane with each of the arguments otherwise.
	//
	// Arguments: scope, owner; tracked transaction ids and their bounds; lower ends of tracked segments
	// and their bounds; by lane its epoch (0 = not to be read), mark, limit, and how much that grows if the lane starts below
	// its mark; topics (empty = all); how many ids past its mark a lane is read.
	Fetch = fetchHeader + fetchReady

	// FetchRange is Fetch for lanes that all start at one place, where most of what follows is theirs: it walks that range of
	// the primary key once instead of the index of each lane, which costs a third less for each row, as the rows of a page
	// are visited together. The limit is the sum of theirs.
	//
	// Arguments: those of Fetch.
	FetchRange = fetchHeader + fetchRange

	// FetchMore is Fetch that also reads rows by id, and rows that waited for their time.
	// Most reads need neither, and the statement is planned each time.
	//
	// Arguments: those of Fetch; ids; whether dead rows count among them; by lane at most how many rows of
	// what fell due (none at all to leave it out), and the topics of which none is wanted.
	FetchMore = fetchHeader + fetchReady + fetchByID + fetchDue

	// FetchRangeMore is FetchRange that also reads what FetchMore does.
	//
	// Arguments: those of FetchMore.
	FetchRangeMore = fetchHeader + fetchRange + fetchByID + fetchDue

	fetchHeader = `WITH clock AS MATERIALIZED (
    SELECT s.last_value - (NOT s.is_called)::int AS seq, pg_current_snapshot() AS snap, clock_timestamp() AS at
      FROM {outbox_id_seq} s
), now AS MATERIALIZED (
    SELECT seq, snap, at, xmax, xmax + age(xmax_xid) AS next_xid
      FROM (SELECT seq, snap, at, pg_snapshot_xmax(snap)::text::bigint AS xmax, pg_snapshot_xmax(snap)::xid AS xmax_xid
              FROM clock) c
), rewind AS MATERIALIZED (
    SELECT min(t.bound) AS id FROM (
        SELECT x.bound FROM now CROSS JOIN unnest($3::bigint[], $4::bigint[]) AS x(xid, bound)
         WHERE pg_visible_in_snapshot(x.xid::text::xid8, now.snap)
        UNION ALL
        SELECT g.bound FROM now CROSS JOIN unnest($5::bigint[], $6::bigint[]) AS g(lo, bound)
         WHERE g.lo < now.xmax
    ) t
), owned AS MATERIALIZED (
    SELECT l.lane, least(w.mark, rewind.id) AS mark, now.at,
           w.lim + CASE WHEN rewind.id < w.mark THEN w.rewound ELSE 0 END AS lim
      FROM rewind CROSS JOIN now CROSS JOIN {lanes} l
     CROSS JOIN LATERAL (SELECT ($8::bigint[])[l.lane + 1], ($9::bigint[])[l.lane + 1], ($10::bigint[])[l.lane + 1]) AS w(mark, lim, rewound)
     WHERE l.scope = $1::text AND l.owner = $2::uuid AND l.epoch = ($7::bigint[])[l.lane + 1]
)
SELECT 0::smallint AS lane, now.seq AS id, now.snap::text AS uuid, coalesce({life}, '') AS topic,
       concat_ws(' ', now.next_xid, coalesce(rewind.id, -1), pg_is_in_recovery()::int,
                 (SELECT coalesce(bit_or(1::bigint << owned.lane), 0) FROM owned)) AS key,
       NULL::bytea AS payload, NULL::jsonb AS metadata, now.at AS created_at, 0 AS attempts
  FROM now CROSS JOIN rewind`

	// What a row may hold that no client can read, infinity for one, must not stop the read.
	createdAt = `least(greatest(o.created_at, timestamptz '1970-01-02 00:00Z'), timestamptz '9999-12-30 00:00Z') AS created_at`

	fetchReady = `
UNION ALL
SELECT r.lane + 128::smallint, r.id, r.uuid, r.topic, r.key, r.payload, r.metadata, r.created_at, r.attempts
  FROM owned CROSS JOIN LATERAL (
       SELECT o.lane, o.id, o.uuid, o.topic, o.key, o.payload, o.metadata, ` + createdAt + `, o.attempts
         FROM {outbox} o
        WHERE (o.lane, o.id) > (owned.lane, owned.mark) AND (o.lane, o.id) <= (owned.lane, owned.mark + $12::bigint)
          AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL
          AND ($11::text[] = '{}' OR o.topic = ANY ($11::text[]))
        ORDER BY o.lane, o.id LIMIT owned.lim) r`

	fetchRange = `
UNION ALL
SELECT r.lane + 128::smallint, r.id, r.uuid, r.topic, r.key, r.payload, r.metadata, r.created_at, r.attempts
  FROM (SELECT min(owned.mark), sum(owned.lim)::bigint, bit_or(1::bigint << owned.lane) FROM owned) AS w(mark, lim, lanes) CROSS JOIN LATERAL (
       SELECT o.lane, o.id, o.uuid, o.topic, o.key, o.payload, o.metadata, ` + createdAt + `, o.attempts
         FROM {outbox} o
        WHERE o.id > w.mark AND o.id <= w.mark + $12::bigint AND w.lanes & (1::bigint << o.lane) <> 0
          AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL
          AND ($11::text[] = '{}' OR o.topic = ANY ($11::text[]))
        ORDER BY o.id LIMIT w.lim) r`

	fetchByID = `
UNION ALL
SELECT o.lane + CASE WHEN o.dead_at IS NULL THEN 64 ELSE 256 END::smallint, o.id, o.uuid, o.topic, o.key, o.payload, o.metadata,
       ` + createdAt + `, o.attempts
  FROM {outbox} o
 WHERE o.id = ANY ($13::bigint[]) AND o.published_at IS NULL AND (o.dead_at IS NULL OR $14::bool)
   AND o.lane IN (SELECT owned.lane FROM owned)`

	fetchDue = `
UNION ALL
SELECT r.lane + 192::smallint, r.id, r.uuid, r.topic, r.key, r.payload, r.metadata, r.created_at, r.attempts
  FROM owned CROSS JOIN LATERAL (
       SELECT o.lane, o.id, o.uuid, o.topic, o.key, o.payload, o.metadata, ` + createdAt + `, o.attempts
         FROM {outbox} o
        WHERE (o.lane, o.due_at) <= (owned.lane, owned.at) AND o.lane >= owned.lane
          AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NOT NULL
          AND ($11::text[] = '{}' OR o.topic = ANY ($11::text[])) AND o.topic <> ALL ($16::text[])
        ORDER BY o.lane, o.due_at, o.id LIMIT ($15::bigint[])[owned.lane + 1]) r
 WHERE $15::bigint[] <> '{}'`

	// Writers lists the transaction ids (the lower 32 bits) that may have written to the outbox: those that hold a
	// lock on it that a writer takes, which is kept to the end of the transaction.
	Writers = `SELECT x.transactionid::text::bigint FROM pg_locks x
 WHERE x.locktype = 'transactionid' AND x.granted AND x.mode = 'ExclusiveLock'
   AND EXISTS (SELECT FROM pg_locks r
                WHERE r.virtualtransaction = x.virtualtransaction AND r.locktype = 'relation'
                  AND r.relation = {outbox_text}::regclass
                  AND r.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                  AND r.mode <> 'AccessShareLock')`

	// BeginLife gives the server's life its name. It is run when a read found none.
	BeginLife = `INSERT INTO {outbox_life} DEFAULT VALUES ON CONFLICT DO NOTHING`

	// LoadHeads reads a page of the messages that wait for another attempt and so hold their keys, in the order of
	// their ids from a cursor in each lane on. With the last argument true, dead messages hold theirs as well. A lane with
	// fewer messages than the limit is at its end. The first result (lane -1) says in the place of dead whether the
	// server is a standby. Lane and id are compared and ordered by as in Fetch.
	//
	// Arguments: lanes, cursors (ids), limit per lane, topics (empty = all), whether dead messages hold their keys.
	LoadHeads = `SELECT (-1)::smallint AS lane, 0::bigint AS id, ''::text AS key, ''::text AS topic, 0 AS attempts,
       0::float8 AS wait, pg_is_in_recovery() AS dead
UNION ALL
SELECT h.lane, h.id, h.key, h.topic, h.attempts, h.wait, h.dead
  FROM unnest($1::bigint[]::smallint[], $2::bigint[]) AS w(lane, cursor)
 CROSS JOIN LATERAL (
       (SELECT o.lane, o.id, o.key, o.topic, o.attempts, false AS dead,
               CASE WHEN isfinite(o.due_at) THEN greatest(extract(epoch FROM o.due_at - clock_timestamp()), 0) ELSE 1e6 END::float8 AS wait
          FROM {outbox} o
         WHERE (o.lane, o.id) > (w.lane, w.cursor) AND (o.lane, o.id) <= (w.lane, 9223372036854775807)
           AND o.attempts > 0 AND o.key <> '' AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NOT NULL
           AND ($4::text[] = '{}' OR o.topic = ANY ($4::text[]))
         ORDER BY o.lane, o.id LIMIT $3::bigint)
       UNION ALL
       (SELECT o.lane, o.id, o.key, o.topic, o.attempts, true, 0
          FROM {outbox} o
         WHERE $5::bool AND (o.lane, o.id) > (w.lane, w.cursor) AND (o.lane, o.id) <= (w.lane, 9223372036854775807)
           AND o.dead_at IS NOT NULL AND o.published_at IS NULL AND o.key <> ''
           AND ($4::text[] = '{}' OR o.topic = ANY ($4::text[]))
         ORDER BY o.lane, o.id LIMIT $3::bigint)
        ORDER BY id LIMIT $3::bigint) h`

	// Sweep lists ids that are pending at or below the marks of some lanes, from a cursor in each on: the
	// safety net under Fetch, for rows that somebody made pending again behind its back.
	//
	// Arguments: lanes, cursors, ids up to which to look, limit per lane, topics (empty = all).
	Sweep = `SELECT r.lane, r.id
  FROM unnest($1::bigint[]::smallint[], $2::bigint[], $3::bigint[]) AS w(lane, cursor, upto)
 CROSS JOIN LATERAL (
       SELECT o.lane, o.id FROM {outbox} o
        WHERE (o.lane, o.id) > (w.lane, w.cursor) AND (o.lane, o.id) <= (w.lane, w.upto)
          AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL
          AND ($5::text[] = '{}' OR o.topic = ANY ($5::text[]))
        ORDER BY o.lane, o.id LIMIT $4::bigint) r`

	// Pending returns which of some ids are those of pending messages, whenever they are due.
	//
	// Arguments: ids.
	Pending = `SELECT id FROM {outbox} WHERE id = ANY ($1::bigint[]) AND published_at IS NULL AND dead_at IS NULL`

	// SettlePublished marks messages published. A publish that happened is a fact, whoever reports it
	// and whatever became of the lane since, so no epoch is checked. But in another life an id may mean another message,
	// after a TRUNCATE ... RESTART IDENTITY, a crash, a restore: then the uuid must be the same as well. So it must when the
	// sequence was set back, which leaves its file as it is. To compare the uuids always costs 1.5 to 3 us of the server
	// for each message.
	//
	// What an operator had sent again since is another generation, for which no publish has happened yet. It has a due time, which
	// no other message that was read as ready has, so that only of those with one the generation is compared.
	//
	// Arguments: ids, uuids with their generations, the life that all of them were read in as in Fetch's header ('' = they differ, or
	// it is over), and the sequence as of a read in that life.
	SettlePublished = `UPDATE {outbox} SET published_at = clock_timestamp(), dead_at = NULL
 WHERE id = ANY ($1::bigint[]) AND published_at IS NULL` + sameMessage

	// SettlePublishedDelete is SettlePublished for an outbox that keeps nothing.
	//
	// Arguments: those of SettlePublished.
	SettlePublishedDelete = `DELETE FROM {outbox} WHERE id = ANY ($1::bigint[])` + sameMessage

	// The comparison of lives is computed once, after the statement's snapshot: what it sees is of that life. The hash of the last part
	// is built only if it is needed.
	sameMessage = ` AND (` + neverDue + `
      OR ` + sameGeneration + `)`

	neverDue = `due_at IS NULL AND ` + sameLife

	sameGeneration = `(id, ` + generation + `) IN (SELECT * FROM unnest($1::bigint[], $2::text[]))`

	// generation is a uuid with its generation, for there is none but after an act of package admin.
	generation = `uuid || coalesce('/' || nullif(metadata->>'outbox_generation', ''), '')`

	sameLife = `{life} = $3::text AND (SELECT s.last_value FROM {outbox_id_seq} s) >= $4::bigint`

	// SettleSpan is SettlePublished for all ids from one to another, both included, but for some. It says nothing of uuids:
	// in another life it does nothing, and it passes by what has a due time. It walks the index once instead of looking each id up, which costs half as much.
	//
	// Arguments: the lowest and the highest id; life and sequence as for SettlePublished; ids that are left out.
	SettleSpan = `UPDATE {outbox} SET published_at = clock_timestamp(), dead_at = NULL` + inSpan + ` AND published_at IS NULL`

	// SettleSpanDelete is SettleSpan for an outbox that keeps nothing.
	//
	// Arguments: those of SettleSpan.
	SettleSpanDelete = `DELETE FROM {outbox}` + inSpan

	inSpan = `
 WHERE id BETWEEN $1::bigint AND $2::bigint AND id <> ALL ($5::bigint[]) AND ` + neverDue

	// SettleUnlocked is SettlePublished that passes by the messages that somebody else's transaction has locked, and
	// returns their ids.
	//
	// Arguments: ids, uuids with their generations.
	SettleUnlocked = unlocked + `, settled AS (
    UPDATE {outbox} o SET published_at = clock_timestamp(), dead_at = NULL FROM free WHERE o.id = free.id
)` + stillLocked

	// SettleUnlockedDelete is SettleUnlocked for an outbox that keeps nothing.
	//
	// Arguments: those of SettleUnlocked.
	SettleUnlockedDelete = unlocked + `, settled AS (
    DELETE FROM {outbox} o USING free WHERE o.id = free.id
)` + stillLocked

	unlocked = `WITH free AS MATERIALIZED (
    SELECT id FROM {outbox}
     WHERE id = ANY ($1::bigint[]) AND published_at IS NULL AND ` + sameGeneration + `
       FOR UPDATE SKIP LOCKED
)`
	stillLocked = `
SELECT id FROM {outbox}
 WHERE id = ANY ($1::bigint[]) AND published_at IS NULL AND ` + sameGeneration + `
   AND id NOT IN (SELECT free.id FROM free)`

	// SettleFailed records failed attempts, each only while its lane still has the owner and the epoch
	// under which the message was read: the lock keeps both as they are until this commits. It answers
	// what became of each message, unless somebody else had settled it: fenced (the lane is somebody else's
	// now), locked (by somebody else's transaction, and not recorded), waiting or dead. attempts is set, not incremented, so that repeating the statement after an
	// unknown commit charges once; one that it had made dead is called dead again, and one that an operator had sent again since
	// (another generation) is waiting, and is not charged. A message dies of attempts only at a minimum age.
	//
	// The CASE hides two tests for NULL from the planner. In a backlog that was not analyzed yet it takes
	// them for very selective, and then compares every pending message with every argument.
	//
	// Arguments: scope, owner, ids, lanes, epochs, attempts, delays in seconds, errors, permanent,
	// most attempts, minimum age in seconds, uuids with their generations.
	SettleFailed = settleFailed + failedAnswers

	// SettleFailedLetters is SettleFailed that also writes a dead letter for each message that dies, but for letters
	// themselves. A letter has no key, because HoldDead may hold that of its message. It has a UUID of its own, because
	// brokers and inboxes deduplicate by it. A delay and a generation were those of the message. What is no text in its metadata, which
	// SQL may have written and no message can carry, is text in the letter's.
	//
	// Arguments: those of SettleFailed; topic of the letters, name of the forwarder.
	SettleFailedLetters = settleFailed + `, letters AS (
    INSERT INTO {outbox} (uuid, topic, payload, metadata)
    SELECT gen_random_uuid()::text, $13::text, o.payload,
           (SELECT coalesce(jsonb_object_agg(m.key, coalesce(m.value, '')), '{}')
              FROM jsonb_each_text(CASE jsonb_typeof(o.metadata) WHEN 'object' THEN o.metadata END) m
             WHERE m.key <> ALL ('{_watermill_delayed_until,_watermill_delayed_for,outbox_generation}'::text[])) || jsonb_build_object(
               'uuid_poisoned', o.uuid, 'topic_poisoned', o.topic, 'reason_poisoned', f.error,
               'service_poisoned', $1::text, 'handler_poisoned', $14::text, 'subscriber_poisoned', 'outbox')
      FROM settled s JOIN failed f ON f.id = s.id AND f.mine JOIN {outbox} o ON o.id = s.id
     WHERE s.dead AND o.topic <> $13::text
)` + failedAnswers

	// MayWrite says whether the role of the connection may write messages.
	MayWrite = `SELECT has_any_column_privilege({outbox_text}::regclass, 'INSERT') AND has_sequence_privilege({outbox_id_seq_text}::regclass, 'USAGE')`

	settleFailed = `WITH fence AS MATERIALIZED (
    SELECT l.lane, l.epoch FROM {lanes} l
     WHERE l.scope = $1::text AND l.owner = $2::uuid AND l.lane = ANY ($4::bigint[]::smallint[]) FOR SHARE
), failed AS MATERIALIZED (
    SELECT f.*, fence.lane IS NOT NULL AS mine
      FROM unnest($3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::float8[], $8::text[], $9::bool[], $12::text[])
           AS f(id, lane, epoch, attempts, delay, error, permanent, uuid)
      LEFT JOIN fence ON fence.lane = f.lane AND fence.epoch = f.epoch
), free AS MATERIALIZED (
    SELECT o.id FROM {outbox} o JOIN failed f ON o.id = f.id AND o.uuid || coalesce('/' || nullif(o.metadata->>'outbox_generation', ''), '') = f.uuid
     WHERE f.mine AND CASE WHEN o.published_at IS NULL THEN o.dead_at IS NULL ELSE false END
       FOR UPDATE OF o SKIP LOCKED
), settled AS (
    UPDATE {outbox} o
       SET attempts = least(f.attempts, 2147483647), last_error = f.error,
           due_at = clock_timestamp() + f.delay * interval '1 second',
           dead_at = CASE WHEN f.permanent OR (f.attempts >= $10::bigint
                               AND o.created_at <= clock_timestamp() - $11::float8 * interval '1 second')
                          THEN clock_timestamp() END
      FROM failed f JOIN free ON free.id = f.id
     WHERE o.id = f.id
    RETURNING o.id, o.dead_at IS NOT NULL AS dead
)`

	failedAnswers = `
SELECT s.id, CASE WHEN s.dead THEN 'dead' ELSE 'waiting' END FROM settled s
UNION ALL
SELECT f.id, CASE WHEN o.uuid || coalesce('/' || nullif(o.metadata->>'outbox_generation', ''), '') <> f.uuid THEN 'waiting'
                  WHEN o.dead_at IS NULL THEN 'locked' ELSE 'dead' END
  FROM failed f JOIN {outbox} o ON o.id = f.id AND starts_with(f.uuid, o.uuid)
 WHERE f.mine AND CASE WHEN o.published_at IS NULL THEN f.id NOT IN (SELECT free.id FROM free) ELSE false END
UNION ALL
SELECT f.id, 'fenced' FROM failed f WHERE NOT f.mine`

	// CleanPublished deletes published messages past the retention from one stretch of the primary key: at most so
	// many rows, and so many ids, since under a transaction that is open for long what was deleted stays in the index.
	// It says up to where the next one may pass by, whether that is as far as there is something to delete (the rows beyond are
	// too young, or no id was handed out), up to where nothing is left, and how many it deleted.
	//
	// Arguments: cursor (id), retention in seconds, rows per stretch, topics (empty = all), ids per stretch.
	CleanPublished = `WITH stretch AS MATERIALIZED (
    SELECT o.id, o.topic, o.published_at, o.created_at FROM {outbox} o
     WHERE o.id > $1::bigint AND o.id <= $1::bigint + $5::bigint ORDER BY o.id LIMIT $3::bigint
), gone AS (
    DELETE FROM {outbox} o USING stretch s
     WHERE o.id = s.id AND s.published_at < clock_timestamp() - $2::float8 * interval '1 second'
       AND o.published_at IS NOT NULL AND ($4::text[] = '{}' OR s.topic = ANY ($4::text[]))
    RETURNING o.id
), reached AS (
    SELECT min(s.id) FILTER (WHERE s.created_at BETWEEN clock_timestamp() - $2::float8 * interval '1 second' AND clock_timestamp()) - 1 AS young,
           CASE WHEN count(*) < $3::bigint THEN $1::bigint + $5::bigint ELSE max(s.id) END AS id
      FROM stretch s
)
SELECT coalesce(r.young, least(r.id, q.last_value)) AS id, r.young IS NOT NULL OR r.id >= q.last_value,
       coalesce((SELECT min(s.id) - 1 FROM stretch s WHERE s.id NOT IN (SELECT gone.id FROM gone)), least(r.id, q.last_value)),
       (SELECT count(*) FROM gone)
  FROM reached r CROSS JOIN {outbox_id_seq} q`

	// HeldTopics lists the topics that an operator has paused.
	HeldTopics = `SELECT topic FROM {outbox_topics} WHERE forwarder = '00000000-0000-0000-0000-000000000000'`

	// PauseTopics makes the table of paused topics say what one forwarder has paused.
	//
	// Arguments: own id, topics, failures, since when in seconds, errors.
	PauseTopics = `WITH resumed AS (
    DELETE FROM {outbox_topics} t WHERE t.forwarder = $1::uuid AND t.topic <> ALL ($2::text[])
)
INSERT INTO {outbox_topics} AS t (topic, forwarder, paused_at, failures, reason)
SELECT p.topic, $1::uuid, clock_timestamp() - p.since * interval '1 second', p.failures, p.reason
  FROM unnest($2::text[], $3::bigint[], $4::float8[], $5::text[]) AS p(topic, failures, since, reason)
ON CONFLICT (topic, forwarder) DO UPDATE SET failures = excluded.failures, reason = excluded.reason`
)
