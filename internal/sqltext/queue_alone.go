package sqltext

// The statements for single messages. They are run after one for many was refused: a constraint or trigger that
// somebody has put on the table refuses the update of some rows, and with them the whole statement.
const (
	// ListMessages lists the messages that such a statement may have chosen.
	//
	// It picks some of them at random, of the given topics last: where many are refused, others do not wait for these.
	//
	// Arguments: what the statement does ('claim', 'bury', 'expire' or 'reap'), how many rows of each index to look at, ids
	// to leave out, topics (NULL = all), topics to leave out, whether to leave out messages that were being handled when a
	// process died, how many to list, topics that come last.
	ListMessages = `SELECT q.id, q.source, q.message_id, q.topic, q.crashes > 0, coalesce(octet_length(q.payload), 0)
  FROM ((SELECT q.* FROM {queue} q
          WHERE q.state = 'processing' AND q.due_at IS NULL AND ` + listed + ` ORDER BY q.id LIMIT $2::int)
        UNION ALL
        (SELECT q.* FROM {queue} q
          WHERE q.due_at <= statement_timestamp() AND q.state = 'processing' AND q.due_at IS NOT NULL AND ` + listed + `
          ORDER BY q.due_at, q.id LIMIT $2::int)
        UNION ALL
        (SELECT q.* FROM {queue} q
          WHERE $1::text = 'expire' AND q.expires_at <= statement_timestamp() AND q.state = 'processing'
            AND q.expires_at IS NOT NULL AND q.due_at > statement_timestamp() AND ` + listed + `
          ORDER BY q.expires_at LIMIT $2::int)) q
 ORDER BY q.topic = ANY ($8::text[]), random() LIMIT $7::int`

	listed = `NOT q.id IN (SELECT l.id FROM unnest($3::bigint[]) AS l(id)) AND ($4::text[] IS NULL OR q.topic = ANY ($4::text[])) AND q.topic <> ALL ($5::text[])
              AND NOT ($6::bool AND q.crashes > 0) AND CASE $1::text
              WHEN 'reap' THEN ` + leaseOver + `
              WHEN 'claim' THEN q.owner IS NULL AND ` + notPaused + `
                   AND (q.expires_at IS NULL OR q.expires_at > statement_timestamp())
              ELSE q.owner IS NULL AND q.expires_at <= statement_timestamp() END`

	// ClaimMessage is ClaimReady, ClaimTopics or ClaimExpired of one message.
	//
	// Arguments: source, message id, owner, lease in seconds, whether it is one that was not handled in time.
	ClaimMessage = `WITH locked AS MATERIALIZED (
    SELECT q.ctid FROM {queue} q
     WHERE q.source = $1 AND q.message_id = $2 AND q.state = 'processing' AND q.owner IS NULL
       AND (q.due_at IS NULL OR q.due_at <= statement_timestamp())
       AND coalesce(q.expires_at <= statement_timestamp(), false) = $5::bool AND ($5::bool OR ` + notPaused + `)
       FOR UPDATE OF q SKIP LOCKED
), changed AS (
    UPDATE {queue} q SET owner = $3::uuid, locked_until = clock_timestamp() + $4::float8 * interval '1 second'
      FROM locked f WHERE q.ctid = f.ctid
    RETURNING ` + queueColumns + orUnchanged

	// ReapMessage is ReapLeases of one message.
	//
	// Arguments: source, seconds of wait by attempt, attempts after which a message is dead (NULL = never), message id.
	ReapMessage = `WITH locked AS MATERIALIZED (
    SELECT q.ctid FROM {queue} q
     WHERE q.source = $1 AND q.message_id = $4 AND q.state = 'processing'
       AND CASE WHEN ` + leaseOver + ` THEN ` + givingBack + ` END
       FOR UPDATE OF q SKIP LOCKED
), changed AS (
    UPDATE {queue} q
       SET ` + reaped + `
      FROM locked l WHERE q.ctid = l.ctid
    RETURNING ` + queueColumns + orUnchanged

	// ExpireMessage is ExpireMessages of one message.
	//
	// Arguments: source, message id.
	ExpireMessage = `WITH locked AS MATERIALIZED (
    SELECT q.ctid FROM {queue} q
     WHERE q.source = $1 AND q.message_id = $2 AND q.state = 'processing' AND q.owner IS NULL
       AND q.expires_at <= statement_timestamp()
       FOR UPDATE OF q SKIP LOCKED
), changed AS (
    UPDATE {queue} q SET state = 'dead', last_error = 'expired'` + NoteExpired + `
      FROM locked l WHERE q.ctid = l.ctid
    RETURNING ` + queueColumns + orUnchanged

	// orUnchanged ends a statement for one message: a row with the state 'unchanged' says that a trigger kept the row that
	// it locked as it was.
	orUnchanged = `
)
SELECT * FROM changed
UNION ALL
SELECT 0, '', '', '', '', 'unchanged', ` + noContent + ` FROM locked WHERE NOT EXISTS (SELECT FROM changed)`

	// RowTriggers says whether a trigger may keep rows of the queue as they are.
	RowTriggers = `SELECT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = to_regclass({queue_text}) AND NOT t.tgisinternal
  AND t.tgenabled <> 'D' AND t.tgtype::int & 19 = 19)`

	// StillHeld says whether any of an owner's messages are its own after a statement that settled fewer than it was to.
	//
	// Arguments: owner, sources, message ids, attempts so far (NULL = any number).
	StillHeld = `SELECT count(*) > 0
  FROM unnest($2::text[], $3::text[]) AS i(source, message_id)
 CROSS JOIN LATERAL (
       SELECT FROM {queue} q
        WHERE q.source = i.source AND q.message_id = i.message_id AND q.state = 'processing' AND q.owner = $1::uuid
          AND q.attempts = coalesce($4::int, q.attempts) OFFSET 0) f`
)
