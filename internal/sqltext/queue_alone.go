package sqltext

// The statements for single messages. They are run after one for many was refused: a constraint or trigger that
// somebody has put on the table refuses the update of some rows, and with them the whole statement.
const (
	// ListMessages lists the messages that such a statement may have chosen.
	//
	// Arguments: what the statement does ('claim', 'bury', 'expire' or 'reap'), limit, ids to leave out, topics (NULL =
	// all), topics to leave out, whether to leave out messages that were being handled when a process died.
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
          ORDER BY q.expires_at LIMIT $2::int)) q`

	listed = `q.id <> ALL ($3::bigint[]) AND ($4::text[] IS NULL OR q.topic = ANY ($4::text[])) AND q.topic <> ALL ($5::text[])
              AND NOT ($6::bool AND q.crashes > 0) AND CASE $1::text
              WHEN 'reap' THEN ` + leaseOver + `
              WHEN 'claim' THEN q.owner IS NULL AND ` + notPaused + `
                   AND (q.expires_at IS NULL OR q.expires_at > statement_timestamp())
              ELSE q.owner IS NULL AND q.expires_at <= statement_timestamp() END`

	// ClaimMessage is ClaimReady, ClaimTopics or ClaimExpired of one message.
	//
	// Arguments: source, message id, owner, lease in seconds, whether it is one that was not handled in time.
	ClaimMessage = `WITH free AS MATERIALIZED (
    SELECT q.ctid FROM {queue} q
     WHERE q.source = $1 AND q.message_id = $2 AND q.state = 'processing' AND q.owner IS NULL
       AND (q.due_at IS NULL OR q.due_at <= statement_timestamp())
       AND coalesce(q.expires_at <= statement_timestamp(), false) = $5::bool AND ($5::bool OR ` + notPaused + `)
       FOR UPDATE OF q SKIP LOCKED
)
UPDATE {queue} q SET owner = $3::uuid, locked_until = clock_timestamp() + $4::float8 * interval '1 second'
  FROM free f WHERE q.ctid = f.ctid
RETURNING ` + queueColumns

	// ReapMessage is ReapLeases of one message.
	//
	// Arguments: source, seconds of wait by attempt, attempts after which a message is dead (NULL = never), message id.
	ReapMessage = `WITH late AS MATERIALIZED (
    SELECT q.ctid FROM {queue} q
     WHERE q.source = $1 AND q.message_id = $4 AND q.state = 'processing'
       AND CASE WHEN ` + leaseOver + ` THEN ` + givingBack + ` END
       FOR UPDATE OF q SKIP LOCKED
)
UPDATE {queue} q
   SET ` + reaped + `
  FROM late l WHERE q.ctid = l.ctid
RETURNING ` + queueColumns

	// ExpireMessage is ExpireMessages of one message.
	//
	// Arguments: source, message id.
	ExpireMessage = `WITH late AS MATERIALIZED (
    SELECT q.ctid FROM {queue} q
     WHERE q.source = $1 AND q.message_id = $2 AND q.state = 'processing' AND q.owner IS NULL
       AND q.expires_at <= statement_timestamp()
       FOR UPDATE OF q SKIP LOCKED
)
UPDATE {queue} q SET state = 'dead', last_error = 'expired'` + NoteExpired + `
  FROM late l WHERE q.ctid = l.ctid
RETURNING ` + queueColumns
)
