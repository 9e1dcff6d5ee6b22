package sqltext

// The statements with which owners claim messages. A claim takes no row with an owner, even if its lease has ended:
// reaping releases it first, and charges an attempt.
const (
	// ClaimReady takes rows that were never claimed, past a cursor and in the order of their ids. Its first row is not a
	// message but a header, with the state '':
	//
	//   - its id is the last row id that was taken from the sequence;
	//   - its source is the xmin of the statement's snapshot: every transaction below it has ended;
	//   - its message id is the next transaction id, or that of the claim itself: every transaction that had taken a row
	//     id that is visible here, or had taken it before the statement began, is below it (age() adds the distance from
	//     the snapshot's xmax to it, and is exact in a transaction that does nothing else).
	//
	// Locked rows are updated by ctid (the statements that settle explain the plans). A row that changed between the
	// snapshot and the lock has another ctid, and is left to the next full scan.
	//
	// The times compare with statement_timestamp(), because a volatile time cannot use an index.
	//
	// It updates only as many rows as fit into the room for payloads, but always the first. Rows locked beyond that are
	// not updated, as if the limit had been lower; then the header's key is 'cut'. The sizes are added up one by one only
	// in that case.
	//
	// Arguments: owner, lease in seconds, limit, mark, topics (NULL = all), room for payloads in bytes, ids to leave out.
	ClaimReady = `WITH free AS MATERIALIZED (
    SELECT q.ctid, q.id, coalesce(octet_length(q.payload), 0) AS size FROM {queue} q
     WHERE q.id > $4::bigint AND q.state = 'processing' AND q.due_at IS NULL AND q.owner IS NULL
       AND (q.expires_at IS NULL OR q.expires_at > statement_timestamp())
         AND ($5::text[] IS NULL OR q.topic = ANY ($5::text[]))
       AND ` + notPaused + ` AND q.id <> ALL ($7::bigint[])
     ORDER BY q.id LIMIT $3::int FOR UPDATE OF q SKIP LOCKED
), room AS MATERIALIZED (
    SELECT CASE WHEN sum(f.size) > $6::bigint THEN
                (SELECT count(*) FILTER (WHERE w.total <= $6::bigint OR w.total = w.size)
                   FROM (SELECT f.size, sum(f.size) OVER (ORDER BY f.id ROWS UNBOUNDED PRECEDING) AS total
                     FROM free f) w)
           END AS most FROM free f
), claimed AS (
    UPDATE {queue} q SET owner = $1::uuid, locked_until = clock_timestamp() + $2::float8 * interval '1 second'
      FROM (SELECT f.ctid FROM (SELECT f.ctid FROM free f LIMIT (SELECT r.most FROM room r)) f LIMIT $3::int) f
        WHERE q.ctid = f.ctid
    RETURNING ` + queueColumns + `
)
SELECT s.last, ` + claimHeader + `, '', (SELECT CASE WHEN r.most > 0 THEN 'cut' ELSE '' END FROM room r),
  ` + noMessage + `
  FROM (SELECT pg_current_snapshot() AS snap, last_value - (NOT is_called)::int AS last FROM {queue_id_seq}) s
UNION ALL SELECT * FROM claimed`

	// ClaimTopics takes rows of many topics concurrently, for each topic no more than it has room for: first rows whose
	// owner died before (kind 2), which may kill their handler's process, then rows that fell due (kind 1), longest
	// waiting first, and then rows that were never claimed (kind 0).
	//
	// It goes through parts of the table, in the order of the arguments, each past its own cursors: the topics without a
	// limit (what = 0), the topics with one (what = 1), and single topics that are behind (what = 2), because rows of
	// theirs were passed when they had no room. Rows beyond the room of the topics of what = 1 are locked but not updated.
	// Such a row is returned with the state 'over', and only once, because its topic is behind from then on.
	//
	// The first row is the header of ClaimReady. Its topic is the clock in microseconds: due times written from now on are
	// later. Each row has its part and kind at the end.
	//
	// Rows are locked one by one as they are needed, so no more are locked than the limits allow. Payloads have room as in
	// ClaimReady: rows behind those that fit are treated as if the limit had been lower.
	//
	// Arguments: owner, lease in seconds, limit; of the parts: what, topic, room, cursor of ready rows, cursor of rows
	// that fell due (time and id); topics (NULL = all); of all topics with a limit: name, room, whether they are in the
	// part of what = 1; how many due rows come before the ready ones, and how many behind them; cursor of suspects (time
	// and id), how many of them; room for payloads in bytes; ids to leave out.
	ClaimTopics = claimParts + `, free AS MATERIALIZED (
    SELECT f.*, row_number() OVER () AS ord
      FROM (SELECT * FROM (
                   SELECT 0::bigint AS part, 2 AS kind, q.ctid, q.id, q.due_at, q.topic,
                     coalesce(octet_length(q.payload), 0) AS size
                     FROM {queue} q
                    WHERE (q.due_at, q.id) > ($16::timestamptz, $17::bigint) AND ` + isDue + ` AND ` + isSuspect + `
                    ORDER BY q.due_at, q.id LIMIT $18::int FOR UPDATE OF q SKIP LOCKED) s
            UNION ALL SELECT * FROM (` + dueOfParts + ` LIMIT $14::int) d
            UNION ALL SELECT * FROM (
                   SELECT p.n, 0, r.* FROM part p CROSS JOIN LATERAL (
                          SELECT q.ctid, q.id, q.due_at, q.topic, coalesce(octet_length(q.payload), 0) AS size
                            FROM {queue} q
                           WHERE q.id > p.ready AND ` + isReady + ` AND ` + ofPart + `
                           ORDER BY q.id LIMIT p.room FOR UPDATE OF q SKIP LOCKED) r) r
            UNION ALL SELECT * FROM (` + dueOfParts + ` LIMIT $15::int) d
            LIMIT $3::int) f
` + claimFound

	claimParts = `WITH part AS MATERIALIZED (
    SELECT * FROM unnest($4::bigint[], $5::text[], $6::bigint[], $7::bigint[], $8::text[]::timestamptz[], $9::bigint[])
           WITH ORDINALITY AS p(what, topic, room, ready, due_at, due_id, n)
)`

	claimFound = `), ranked AS MATERIALIZED (
    SELECT f.*, l.room IS NULL OR row_number() OVER (PARTITION BY f.topic ORDER BY f.ord) <= l.room AS fits
      FROM free f LEFT JOIN unnest($11::text[], $12::bigint[]) AS l(topic, room) ON l.topic = f.topic
), room AS MATERIALIZED (
    SELECT CASE WHEN sum(r.size) FILTER (WHERE r.fits) > $19::bigint THEN
                (SELECT max(w.ord) FILTER (WHERE w.total <= $19::bigint OR w.fits AND w.total = w.size)
                   FROM (SELECT r.ord, r.fits, r.size,
                     sum(CASE WHEN r.fits THEN r.size
                     ELSE 0 END) OVER (ORDER BY r.ord ROWS UNBOUNDED PRECEDING) AS total
                           FROM ranked r) w)
           END AS last FROM ranked r
), claimed AS (
    UPDATE {queue} q SET owner = $1::uuid, locked_until = clock_timestamp() + $2::float8 * interval '1 second'
      FROM (SELECT r.ctid, r.part, r.kind FROM ranked r
             WHERE r.fits AND r.ord <= (SELECT coalesce(m.last, $3::int) FROM room m) LIMIT $3::int) r
               WHERE q.ctid = r.ctid
    RETURNING ` + queueColumns + `, r.part, r.kind
)
SELECT s.last, ` + claimHeader + `, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text,
       (SELECT CASE WHEN m.last > 0 THEN 'cut' ELSE '' END FROM room m), ` + noMessage + `, 0, 0
  FROM (SELECT pg_current_snapshot() AS snap, last_value - (NOT is_called)::int AS last FROM {queue_id_seq}) s
UNION ALL SELECT * FROM claimed
UNION ALL
SELECT r.id, '', '', r.topic, '', 'over', ''::bytea, '{}', NULL, statement_timestamp(), statement_timestamp(), r.due_at,
  NULL, 0, '', r.part, r.kind
  FROM ranked r WHERE NOT r.fits AND r.ord <= (SELECT coalesce(m.last, $3::int) FROM room m)`

	dueOfParts = `
                   SELECT p.n, 1, r.* FROM part p CROSS JOIN LATERAL (
                          SELECT q.ctid, q.id, q.due_at, q.topic, coalesce(octet_length(q.payload), 0) AS size
                            FROM {queue} q
                           WHERE (q.due_at, q.id) > (p.due_at, p.due_id) AND ` + isDue + ` AND q.crashes <= 0
                             AND ` + ofPart + `
                           ORDER BY q.due_at, q.id LIMIT p.room FOR UPDATE OF q SKIP LOCKED) r`

	isSuspect = `q.crashes > 0 AND ` + ofTopicsAsked + `
                      AND q.topic <> ALL (ARRAY(SELECT l.topic FROM unnest($11::text[], $12::bigint[]) AS l(topic, room)
                        WHERE l.room <= 0))`

	isReady = `q.state = 'processing' AND q.due_at IS NULL AND q.owner IS NULL
                             AND (q.expires_at IS NULL OR q.expires_at > statement_timestamp()) AND ` +
		notPaused + leftOut

	isDue = `q.due_at <= statement_timestamp() AND q.state = 'processing' AND q.due_at IS NOT NULL AND q.owner IS NULL
                             AND (q.expires_at IS NULL OR q.expires_at > statement_timestamp()) AND ` +
		notPaused + leftOut

	leftOut = ` AND q.id <> ALL ($20::bigint[])`

	// notPaused leaves out the topics that an operator has paused. Their rows are passed, and found by a scan from the
	// beginning when the pause is over. The CASE keeps the planner from guessing: it would expect nearly all rows to be
	// paused, and read and sort the table.
	notPaused = `CASE WHEN q.topic = ANY (ARRAY(SELECT t.topic FROM {outbox_topics} t
                                                    WHERE t.forwarder = '00000000-0000-0000-0000-000000000000')) THEN
                                                      false ELSE true END`

	ofPart = `CASE p.what
                                 WHEN 0 THEN ` + ofTopicsAsked + ` AND q.topic <> ALL ($11::text[])
                                 WHEN 1 THEN q.topic = ANY (ARRAY(SELECT l.topic
                                   FROM unnest($11::text[], $13::bool[]) AS l(topic, here) WHERE l.here))
                                 ELSE q.topic = p.topic END`

	ofTopicsAsked = `($10::text[] IS NULL OR q.topic = ANY ($10::text[]))`

	// ClaimExpired claims rows that were not handled in time, for stores with an OnDead. A message that waits because
	// OnDead failed is claimed when it falls due; rows behind it have their turn first. Payloads have room as in
	// ClaimReady, and each row ends with whether more is left for lack of room.
	//
	// Arguments: owner, lease in seconds, limit, room for payloads in bytes, ids to leave out, topics (NULL = all).
	ClaimExpired = `WITH late AS MATERIALIZED (
    SELECT q.ctid, q.expires_at, coalesce(octet_length(q.payload), 0) AS size FROM {queue} q
     WHERE q.expires_at <= statement_timestamp() AND q.state = 'processing' AND q.expires_at IS NOT NULL
       AND q.owner IS NULL
       AND (q.due_at IS NULL OR q.due_at <= statement_timestamp()) AND q.id <> ALL ($5::bigint[])
       AND ($6::text[] IS NULL OR q.topic = ANY ($6::text[]))
     ORDER BY q.expires_at LIMIT $3::int FOR UPDATE OF q SKIP LOCKED
), weighed AS MATERIALIZED (
    SELECT l.ctid, l.size, sum(l.size) OVER (ORDER BY l.expires_at ROWS UNBOUNDED PRECEDING) AS total FROM late l
)
UPDATE {queue} q SET owner = $1::uuid, locked_until = clock_timestamp() + $2::float8 * interval '1 second'
  FROM (SELECT w.ctid FROM weighed w WHERE w.total <= $4::bigint OR w.total = w.size LIMIT $3::int) l
    WHERE q.ctid = l.ctid
RETURNING ` + queueColumns + `, (SELECT bool_or(w.total > $4::bigint) FROM weighed w)`

	claimHeader = `pg_snapshot_xmin(s.snap)::text, (pg_snapshot_xmax(s.snap)::text::bigint + ` +
		`age(pg_snapshot_xmax(s.snap)::xid))::text`

	noMessage = `'', ` + noContent
	noContent = `''::bytea, '{}', NULL::bytea, statement_timestamp(), statement_timestamp(), NULL::timestamptz, ` +
		`NULL::timestamptz, 0, ''`

	// ReleaseLostClaims releases, without a charge, messages of an owner that the owner does not know about: those of a
	// claim whose reply was lost. It reads the beginning of either index, and waits for no lock, because claims wait for
	// it.
	//
	// Arguments: owner, sources and message ids of the known messages, rows of either index to read.
	ReleaseLostClaims = `WITH fresh AS MATERIALIZED (
    SELECT q.ctid, q.owner = $1::uuid AND ` + unknown + ` AS lost FROM {queue} q
     WHERE q.state = 'processing' AND q.due_at IS NULL ORDER BY q.id LIMIT $4::int
), due AS MATERIALIZED (
    SELECT q.ctid, q.owner = $1::uuid AND ` + unknown + ` AS lost FROM {queue} q
     WHERE q.due_at <= statement_timestamp() AND q.state = 'processing' AND q.due_at IS NOT NULL
     ORDER BY q.due_at, q.id LIMIT $4::int
), free AS MATERIALIZED (
    SELECT q.ctid FROM (SELECT f.ctid FROM fresh f WHERE CASE WHEN f.lost THEN ` + givingBack + ` END
                         UNION ALL SELECT d.ctid FROM due d WHERE CASE WHEN d.lost THEN ` + givingBack + ` END) l
      JOIN {queue} q ON q.ctid = l.ctid WHERE q.owner = $1::uuid LIMIT (SELECT $4::int) FOR UPDATE OF q SKIP LOCKED
)
UPDATE {queue} q SET due_at = clock_timestamp(), owner = NULL, locked_until = NULL
  FROM (SELECT f.ctid FROM free f LIMIT (SELECT $4::int)) f WHERE q.ctid = f.ctid`

	unknown = `(q.source, q.message_id) NOT IN (SELECT k.source, k.message_id FROM unnest($2::text[], $3::text[]) ` +
		`AS k(source, message_id))`

	// RenewLeases extends the caller's leases and returns the messages that it still has. A locked row is in a
	// handler's transaction, which keeps others from it anyway.
	//
	// Each row shows whether it was renewed: a trigger may have kept it from changing.
	//
	// Arguments: owner, sources, message ids, lease in seconds.
	RenewLeases = `WITH held AS MATERIALIZED (
    SELECT f.source, f.message_id
      FROM unnest($2::text[], $3::text[]) AS i(source, message_id)
     CROSS JOIN LATERAL (
           SELECT q.source, q.message_id FROM {queue} q
            WHERE q.source = i.source AND q.message_id = i.message_id AND q.state = 'processing' AND q.owner = $1::uuid
              FOR UPDATE OF q SKIP LOCKED) f
     LIMIT cardinality($2::text[])
), renewed AS (
    UPDATE {queue} q SET locked_until = clock_timestamp() + $4::float8 * interval '1 second'
      FROM held h WHERE q.source = h.source AND q.message_id = h.message_id
    RETURNING q.source, q.message_id
)
SELECT r.source, r.message_id, true FROM renewed r
UNION ALL
SELECT h.source, h.message_id, false FROM held h
 WHERE (SELECT count(*) FROM renewed) < (SELECT count(*) FROM held)
   AND (h.source, h.message_id) NOT IN (SELECT r.source, r.message_id FROM renewed r)`
)
