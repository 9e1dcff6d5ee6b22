package sqltext

const (
	// ClaimPages is ClaimTopics that reads only one page of rows of each part and kind, however few of them may be
	// claimed: most may be of topics that are paused or not requested. It is for scans that may pass many rows, such as
	// scans from the beginning. Rows of a page are joined by ctid, so that only rows that may be claimed are locked.
	//
	// Besides the rows of ClaimTopics it returns, with the state 'page', the last row of each full page that was read to
	// its end: all such pages if the limit was not reached, otherwise those of parts before the last one that returned
	// rows. A topic behind a long backlog of others is found only if the cursors move while handlers are busy too.
	//
	// Arguments: those of ClaimTopics.
	ClaimPages = claimParts + `, free AS MATERIALIZED (
    SELECT f.*, row_number() OVER () AS ord
      FROM (SELECT * FROM (
                   SELECT 0::bigint AS part, 2 AS kind, r.* FROM (
                          SELECT q.ctid, q.due_at, q.id, ` + isDue + ` AND ` + isSuspect + ` AS fits FROM {queue} q
                           WHERE (q.due_at, q.id) > ($16::timestamptz, $17::bigint)
                             AND ` + onDuePage + ` LIMIT ` + pageRows + `) w
                          ` + lockedOfPage + ` ORDER BY w.due_at, w.id LIMIT $18::int) s
            UNION ALL SELECT * FROM (` + duePages + ` LIMIT $14::int) d
            UNION ALL SELECT * FROM (
                   SELECT p.n, 0, r.* FROM part p CROSS JOIN LATERAL (
                          SELECT r.* FROM (
                                 SELECT q.ctid, q.id, ` + isReady + ` AND ` + ofPart + ` AS fits FROM {queue} q
                                  WHERE q.id > p.ready AND ` + onReadyPage + ` LIMIT ` + pageRows + `) w
                                 ` + lockedOfPage + ` ORDER BY w.id LIMIT p.room) r) r
            UNION ALL SELECT * FROM (` + duePages + ` LIMIT $15::int) d
            LIMIT $3::int) f
` + claimFound + `
UNION ALL
SELECT e.id, '', '', '', '', 'page', ''::bytea, '{}', NULL, statement_timestamp(), statement_timestamp(),
       CASE WHEN isfinite(e.due_at) THEN e.due_at END, NULL, 0, '', e.part, e.kind
  FROM (SELECT p.n AS part, 0 AS kind, r.id, NULL::timestamptz AS due_at FROM part p CROSS JOIN LATERAL (
               SELECT q.id FROM {queue} q WHERE q.id > p.ready
                 AND ` + onReadyPage + ` LIMIT 1 OFFSET ` + pageRows + ` - 1) r
        UNION ALL
        SELECT p.n, 1, r.id, r.due_at FROM part p CROSS JOIN LATERAL (
               SELECT q.id, q.due_at FROM {queue} q WHERE (q.due_at, q.id) > (p.due_at, p.due_id)
                 AND ` + onDuePage + ` LIMIT 1 OFFSET ` + pageRows + ` - 1) r
        UNION ALL
        SELECT 0, 2, r.id, r.due_at FROM (
               SELECT q.id, q.due_at FROM {queue} q
                WHERE (q.due_at, q.id) > ($16::timestamptz, $17::bigint)
                  AND ` + onDuePage + ` LIMIT 1 OFFSET ` + pageRows + ` - 1) r WHERE $18::int > 0) e
 WHERE (SELECT count(*) FROM free) < $3::int OR e.kind < 2 AND e.part < (SELECT max(f.part) FROM free f
   WHERE f.kind = e.kind)
    OR e.kind = 1 AND (SELECT count(*) FROM free f WHERE f.kind > 0) < $14::int`

	duePages = `
                   SELECT p.n, 1, r.* FROM part p CROSS JOIN LATERAL (
                          SELECT r.* FROM (
                                 SELECT q.ctid, q.due_at, q.id, ` + isDue + ` AND q.crashes <= 0
                                   AND ` + ofPart + ` AS fits FROM {queue} q
                                  WHERE (q.due_at, q.id) > (p.due_at, p.due_id)
                                    AND ` + onDuePage + ` LIMIT ` + pageRows + `) w
                                 ` + lockedOfPage + ` ORDER BY w.due_at, w.id LIMIT p.room) r`

	onReadyPage = `q.state = 'processing' AND q.due_at IS NULL ORDER BY q.id`

	onDuePage = `q.due_at <= statement_timestamp() AND q.state = 'processing' AND q.due_at IS NOT NULL ` +
		`ORDER BY q.due_at, q.id`

	lockedOfPage = `CROSS JOIN LATERAL (
                                 SELECT q.ctid, q.id, q.due_at, q.topic, coalesce(octet_length(q.payload), 0) AS size
                                   FROM {queue} q
                                  WHERE w.fits AND q.ctid = w.ctid AND q.state = 'processing' AND q.owner IS NULL
                                    FOR UPDATE OF q SKIP LOCKED) r`

	// pageRows is a constant and not an argument: for an unknown limit the planner expects a tenth of the table.
	pageRows = `10000`
)
