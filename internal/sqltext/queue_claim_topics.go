package sqltext

// The two statements that claim messages of many topics together, of each at most as many as it has room for.
const (
	// ClaimTopics makes some reads, in the order of the arguments, until the limit is reached. Each begins behind a
	// position, and reads either messages that were never claimed, by id, or those that fell due, the longest waiting
	// first, of one part of the topics:
	//
	//   - 0: topics without a limit;
	//   - -1: topics with a limit and with room, except those with a read of their own;
	//   - -2: suspects, whose owner died before and which may kill their handler's process, of all topics with room. No
	//     other read brings them;
	//   - n: the n-th topic with a limit, which is behind: rows of it were passed when it had no room.
	//
	// A read of -1 may lock more rows of a topic than it has room for. These are not updated but returned with the state
	// 'over', and only once, because such a topic is behind from then on.
	//
	// The first row is the header of ClaimReady. Its topic is the clock in microseconds: no due time that is written from
	// now on is before it. Each row ends with the number of its read.
	//
	// Rows are locked one by one as they are fetched, so at most the limit. Payloads have room as in ClaimReady: rows
	// behind those that fit are left as if the limit had been lower.
	//
	// Arguments: owner, lease in seconds, limit, topics (NULL = all), room for payloads in bytes, ids to leave out; of
	// all topics with a limit: name, room; of the reads: part, limit, due time ('' = messages that were never claimed)
	// and id of the position.
	ClaimTopics = claimReads + `, free AS MATERIALIZED (
    SELECT f.*, row_number() OVER () AS ord
      FROM (SELECT r.n AS read, l.*
              FROM read r CROSS JOIN LATERAL (
                   SELECT * FROM (
                          SELECT q.ctid, q.id, q.due_at, q.topic, coalesce(octet_length(q.payload), 0) AS size
                            FROM {queue} q
                           WHERE r.due_at IS NULL AND q.id > r.id AND ` + isReady + ` AND ` + ofPart + `
                           ORDER BY q.id LIMIT r.room FOR UPDATE OF q SKIP LOCKED) ready
                   UNION ALL
                   SELECT * FROM (
                          SELECT q.ctid, q.id, q.due_at, q.topic, coalesce(octet_length(q.payload), 0) AS size
                            FROM {queue} q
                           WHERE r.due_at IS NOT NULL AND (q.due_at, q.id) > (r.due_at, r.id)
                             AND ` + isDue + ` AND ` + ofDuePart + `
                           ORDER BY q.due_at, q.id LIMIT r.room FOR UPDATE OF q SKIP LOCKED) due) l
             LIMIT $3::int) f
` + claimFree

	// ClaimPages is the variant of ClaimTopics whose reads have at most one page of rows each, including rows that may not
	// be claimed because their topics are paused or not requested. It is for reads that may pass many rows, such as reads
	// from the beginning. Rows of a page are joined by ctid, so that only rows that may be claimed are locked.
	//
	// It also returns, with the state 'page', the last row of each full page that was read to its end: of all reads if
	// neither the limit nor the room for payloads was used up, and otherwise of those before the last one that brought
	// rows. So positions also move on while handlers are busy, and a topic behind a long backlog of others is found.
	//
	// Arguments: as for ClaimTopics.
	ClaimPages = claimReads + `, free AS MATERIALIZED (
    SELECT f.*, row_number() OVER () AS ord
      FROM (SELECT r.n AS read, l.*
              FROM read r CROSS JOIN LATERAL (
                   SELECT * FROM (
                          SELECT k.* FROM (
                                 SELECT q.ctid, q.id, ` + isReady + ` AND ` + ofPart + ` AS fits FROM {queue} q
                                  WHERE r.due_at IS NULL AND q.id > r.id
                                    AND ` + onReadyPage + ` LIMIT ` + pageRows + `) w
                                 ` + lockedOfPage + ` ORDER BY w.id LIMIT r.room) ready
                   UNION ALL
                   SELECT * FROM (
                          SELECT k.* FROM (
                                 SELECT q.ctid, q.due_at, q.id, ` + isDue + ` AND ` + ofDuePart + ` AS fits
                                   FROM {queue} q
                                  WHERE r.due_at IS NOT NULL AND (q.due_at, q.id) > (r.due_at, r.id)
                                    AND ` + onDuePage + ` LIMIT ` + pageRows + `) w
                                 ` + lockedOfPage + ` ORDER BY w.due_at, w.id LIMIT r.room) due) l
             LIMIT $3::int) f
` + claimFree + `
UNION ALL
SELECT e.id, '', '', '', '', 'page', ''::bytea, '{}', NULL, statement_timestamp(), statement_timestamp(),
       CASE WHEN isfinite(e.due_at) THEN e.due_at END, NULL, 0, '', r.n
  FROM read r CROSS JOIN LATERAL (
       SELECT * FROM (
              SELECT q.id, q.due_at FROM {queue} q WHERE r.due_at IS NULL AND q.id > r.id
                 AND ` + onReadyPage + ` LIMIT 1 OFFSET ` + pageRows + ` - 1) ready
       UNION ALL
       SELECT * FROM (
              SELECT q.id, q.due_at FROM {queue} q
               WHERE r.due_at IS NOT NULL AND (q.due_at, q.id) > (r.due_at, r.id)
                 AND ` + onDuePage + ` LIMIT 1 OFFSET ` + pageRows + ` - 1) due) e
 WHERE (SELECT count(*) FROM free) < $3::int AND (SELECT m.last IS NULL FROM room m)
    OR r.n < (SELECT max(f.read) FROM free f WHERE f.ord <= (SELECT coalesce(m.last, $3::int) FROM room m))`

	claimReads = `WITH read AS MATERIALIZED (
    SELECT r.n, r.part, r.room, nullif(r.due_at, '')::timestamptz AS due_at, r.id, ($7::text[])[r.part] AS topic
      FROM unnest($9::bigint[], $10::bigint[], $11::text[], $12::bigint[]) WITH ORDINALITY
           AS r(part, room, due_at, id, n)
)`

	// claimFree claims as many of the locked rows in free as there is room for, and returns all of them.
	claimFree = `), ranked AS MATERIALIZED (
    SELECT f.*, l.room IS NULL OR row_number() OVER (PARTITION BY f.topic ORDER BY f.ord) <= l.room AS fits
      FROM free f LEFT JOIN unnest($7::text[], $8::bigint[]) AS l(topic, room) ON l.topic = f.topic
), room AS MATERIALIZED (
    SELECT CASE WHEN sum(r.size) FILTER (WHERE r.fits) > $5::bigint THEN
                (SELECT max(w.ord) FILTER (WHERE w.total <= $5::bigint OR w.fits AND w.total = w.size)
                   FROM (SELECT r.ord, r.fits, r.size,
                     sum(CASE WHEN r.fits THEN r.size
                     ELSE 0 END) OVER (ORDER BY r.ord ROWS UNBOUNDED PRECEDING) AS total
                           FROM ranked r) w)
           END AS last FROM ranked r
), claimed AS (
    UPDATE {queue} q SET owner = $1::uuid, locked_until = clock_timestamp() + $2::float8 * interval '1 second'
      FROM (SELECT r.ctid, r.read FROM ranked r
             WHERE r.fits AND r.ord <= (SELECT coalesce(m.last, $3::int) FROM room m) LIMIT $3::int) r
               WHERE q.ctid = r.ctid
    RETURNING ` + queueColumns + `, r.read
)
SELECT s.last, ` + claimHeader + `, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint::text,
       (SELECT CASE WHEN m.last > 0 THEN 'cut' ELSE '' END FROM room m), ` + noMessage + `, 0
  FROM (SELECT pg_current_snapshot() AS snap, last_value - (NOT is_called)::int AS last FROM {queue_id_seq}) s
UNION ALL SELECT * FROM claimed
UNION ALL
SELECT r.id, '', '', r.topic, '', 'over', ''::bytea, '{}', NULL, statement_timestamp(), statement_timestamp(), r.due_at,
  NULL, 0, '', r.read
  FROM ranked r WHERE NOT r.fits AND r.ord <= (SELECT coalesce(m.last, $3::int) FROM room m)`

	ofPart = `CASE r.part
                                 WHEN 0 THEN ` + ofTopicsAsked + ` AND q.topic <> ALL ($7::text[])
                                 WHEN -1 THEN q.topic = ANY (ARRAY(
                                   SELECT l.topic
                                     FROM unnest($7::text[], $8::bigint[]) WITH ORDINALITY AS l(topic, room, n)
                                    WHERE l.room > 0 AND l.n NOT IN (SELECT s.part FROM read s)))
                                 ELSE q.topic = r.topic END`

	ofDuePart = `CASE WHEN r.part = -2 THEN q.crashes > 0 AND ` + ofTopicsAsked + `
                      AND q.topic <> ALL (ARRAY(SELECT l.topic FROM unnest($7::text[], $8::bigint[]) AS l(topic, room)
                        WHERE l.room <= 0))
                      ELSE q.crashes <= 0 AND ` + ofPart + ` END`

	onReadyPage = `q.state = 'processing' AND q.due_at IS NULL ORDER BY q.id`

	onDuePage = `q.due_at <= statement_timestamp() AND q.state = 'processing' AND q.due_at IS NOT NULL ` +
		`ORDER BY q.due_at, q.id`

	lockedOfPage = `CROSS JOIN LATERAL (
                                 SELECT q.ctid, q.id, q.due_at, q.topic, coalesce(octet_length(q.payload), 0) AS size
                                   FROM {queue} q
                                  WHERE w.fits AND q.ctid = w.ctid AND q.state = 'processing' AND q.owner IS NULL
                                    FOR UPDATE OF q SKIP LOCKED) k`

	// pageRows is a constant and not an argument: for an unknown limit the planner expects a tenth of the table.
	pageRows = `10000`
)
