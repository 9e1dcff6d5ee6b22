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
	// Arguments: owner, lease in seconds, limit, topics (NULL = all), room for payloads in bytes, ids to leave out, and
	// cursor.
	ClaimReady = `WITH free AS MATERIALIZED (
    SELECT q.ctid, q.id, coalesce(octet_length(q.payload), 0) AS size FROM {queue} q
     WHERE q.id > $7::bigint AND ` + isReady + ` AND ` + ofTopicsAsked + `
     ORDER BY q.id LIMIT $3::int FOR UPDATE OF q SKIP LOCKED
), room AS MATERIALIZED (
    SELECT CASE WHEN sum(f.size) > $5::bigint THEN
                (SELECT count(*) FILTER (WHERE w.total <= $5::bigint OR w.total = w.size)
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

	isReady = `q.state = 'processing' AND q.due_at IS NULL AND ` + isClaimable

	isDue = `q.due_at <= statement_timestamp() AND q.state = 'processing' AND q.due_at IS NOT NULL AND ` + isClaimable

	isClaimable = `q.owner IS NULL AND q.id <> ALL ($6::bigint[])
                             AND (q.expires_at IS NULL OR q.expires_at > statement_timestamp()) AND ` + notPaused

	// notPaused leaves out the topics that an operator has paused. Their rows are skipped, and found by a scan from the
	// beginning after the pause. The CASE keeps the planner from guessing: it would expect nearly all rows to be paused,
	// and read and sort the table.
	notPaused = `CASE WHEN q.topic = ANY (ARRAY(SELECT t.topic FROM {outbox_topics} t
                                                    WHERE t.forwarder = '00000000-0000-0000-0000-000000000000')) THEN
                                                      false ELSE true END`

	ofTopicsAsked = `($4::text[] IS NULL OR q.topic = ANY ($4::text[]))`

	// ClaimExpired claims expired messages, for stores with an OnDead. A message whose OnDead failed is claimed again when
	// it is due; until then the rows behind it have their turn. Payloads have room as in ClaimReady, and each row ends
	// with whether more is left for lack of room.
	//
	// Arguments: owner, lease in seconds, limit, topics (NULL = all), room for payloads in bytes, ids to leave out.
	ClaimExpired = `WITH late AS MATERIALIZED (
    SELECT q.ctid, q.expires_at, coalesce(octet_length(q.payload), 0) AS size FROM {queue} q
     WHERE q.expires_at <= statement_timestamp() AND q.state = 'processing' AND q.expires_at IS NOT NULL
       AND q.owner IS NULL
       AND (q.due_at IS NULL OR q.due_at <= statement_timestamp()) AND q.id <> ALL ($6::bigint[])
       AND ` + ofTopicsAsked + `
     ORDER BY q.expires_at LIMIT $3::int FOR UPDATE OF q SKIP LOCKED
), weighed AS MATERIALIZED (
    SELECT l.ctid, l.size, sum(l.size) OVER (ORDER BY l.expires_at ROWS UNBOUNDED PRECEDING) AS total FROM late l
)
UPDATE {queue} q SET owner = $1::uuid, locked_until = clock_timestamp() + $2::float8 * interval '1 second'
  FROM (SELECT w.ctid FROM weighed w WHERE w.total <= $5::bigint OR w.total = w.size LIMIT $3::int) l
    WHERE q.ctid = l.ctid
RETURNING ` + queueColumns + `, (SELECT bool_or(w.total > $5::bigint) FROM weighed w)`

	claimHeader = `pg_snapshot_xmin(s.snap)::text, (pg_snapshot_xmax(s.snap)::text::bigint + ` +
		`age(pg_snapshot_xmax(s.snap)::xid))::text`

	noMessage = `'', ` + noContent
	noContent = `''::bytea, '{}', NULL::bytea, statement_timestamp(), statement_timestamp(), NULL::timestamptz, ` +
		`NULL::timestamptz, 0, ''`

	// ReleaseLostClaims releases, without a charge, messages of an owner that the owner does not know about, because the
	// reply to their claim was lost. It reads the beginning of both indexes, and does not wait for locks, because claims
	// wait for it.
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

	// RenewLeases extends the owner's leases and returns their messages. It skips locked rows: the transaction that locked
	// a row keeps others from it.
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
