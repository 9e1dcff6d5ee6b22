package sqltext

// The statements for single messages. They run after a statement for many failed because a constraint or trigger that a
// user added to the table refuses the update of some rows.
const (
	// ListClaimable lists messages that a claim may have chosen.
	//
	// Each list picks some of them at random, and messages of the given topics last, so that others do not wait behind a
	// topic in which many are refused.
	//
	// Arguments: ids to leave out, topics that come last, largest number to list, rows of each index to pick them from,
	// topics (NULL = all); topics to leave out, whether to leave out messages that were being handled when a process
	// died.
	ListClaimable = listedColumns + `
  FROM ((SELECT q.* FROM {queue} q
          WHERE q.state = 'processing' AND q.due_at IS NULL AND ` + claimable + ` ORDER BY q.id LIMIT $4::int)
        UNION ALL
        (SELECT q.* FROM {queue} q
          WHERE q.due_at <= statement_timestamp() AND q.state = 'processing' AND q.due_at IS NOT NULL
            AND ` + claimable + `
          ORDER BY q.due_at, q.id LIMIT $4::int)) q
 ` + someListed

	// ListExpired lists messages without an owner that have expired.
	//
	// Arguments: the first five of ListClaimable, whether to include messages that are not due.
	ListExpired = listedColumns + `
  FROM (SELECT q.* FROM {queue} q
         WHERE q.expires_at <= statement_timestamp() AND q.state = 'processing' AND q.expires_at IS NOT NULL
           AND q.owner IS NULL AND ($6::bool OR q.due_at IS NULL OR q.due_at <= statement_timestamp())
           AND ` + notListed + ` AND ` + listedTopic + `
         ORDER BY q.expires_at LIMIT $4::int) q
 ` + someListed

	// ListLeased lists messages whose lease has ended, from a page of ReapLeases: it reads all other rows of the page
	// once, however many are ready behind it.
	//
	// Arguments: the first five of ListClaimable, id, due time and id after which to begin.
	ListLeased = listedColumns + `
  FROM ((SELECT q.* FROM {queue} q
          WHERE q.id > $6::bigint AND q.state = 'processing' AND q.due_at IS NULL ORDER BY q.id LIMIT $4::int)
        UNION ALL
        (SELECT q.* FROM {queue} q
          WHERE (q.due_at, q.id) > ($7::timestamptz, $8::bigint) AND q.due_at <= statement_timestamp()
            AND q.state = 'processing' AND q.due_at IS NOT NULL
          ORDER BY q.due_at, q.id LIMIT $4::int)) q
 WHERE ` + leaseOver + ` AND ` + notListed + ` AND ` + listedTopic + `
 ` + someListed

	listedColumns = `SELECT q.id, q.source, q.message_id, q.topic, q.crashes > 0, coalesce(octet_length(q.payload), 0)`
	someListed    = `ORDER BY q.topic = ANY ($2::text[]), random() LIMIT $3::int`
	notListed     = `NOT q.id IN (SELECT l.id FROM unnest($1::bigint[]) AS l(id))`
	listedTopic   = `($5::text[] IS NULL OR q.topic = ANY ($5::text[]))`
	claimable     = notListed + `
            AND ` + listedTopic + ` AND q.topic <> ALL ($6::text[])
            AND NOT ($7::bool AND q.crashes > 0) AND q.owner IS NULL AND ` + notPaused + `
            AND (q.expires_at IS NULL OR q.expires_at > statement_timestamp())`

	// ClaimMessage claims one message, as ClaimReady, ClaimTopics or ClaimExpired would.
	//
	// Arguments: source, message id, owner, lease in seconds, whether it has expired.
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

	// ReapMessage reaps the lease of one message.
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

	// ExpireMessage marks one expired message dead.
	//
	// Arguments: source, message id.
	ExpireMessage = `WITH locked AS MATERIALIZED (
    SELECT q.ctid FROM {queue} q
     WHERE q.source = $1 AND q.message_id = $2 AND q.state = 'processing' AND q.owner IS NULL
       AND q.expires_at <= statement_timestamp()
       FOR UPDATE OF q SKIP LOCKED
), changed AS (
    UPDATE {queue} q SET ` + expired + `
      FROM locked l WHERE q.ctid = l.ctid
    RETURNING ` + queueColumns + orUnchanged

	// orUnchanged is the end of a statement for one message: a row with the state 'unchanged' means that a trigger kept
	// the locked row from changing.
	orUnchanged = `
)
SELECT * FROM changed
UNION ALL
SELECT 0, '', '', '', '', 'unchanged', ` + noContent + ` FROM locked WHERE NOT EXISTS (SELECT FROM changed)`

	// RowTriggers reports whether a trigger may keep rows of the queue from changing.
	RowTriggers = `SELECT EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = to_regclass({queue_text})
  AND NOT t.tgisinternal
  AND t.tgenabled <> 'D' AND t.tgtype::int & 19 = 19)`

	// StillHeld lists the messages among some that an owner still has, after a statement that settled or renewed fewer
	// than requested.
	//
	// Arguments: owner, sources, message ids, attempts so far (NULL = any number).
	StillHeld = `SELECT i.source, i.message_id
  FROM unnest($2::text[], $3::text[]) AS i(source, message_id)
 CROSS JOIN LATERAL (
       SELECT FROM {queue} q
        WHERE q.source = i.source AND q.message_id = i.message_id AND q.state = 'processing' AND q.owner = $1::uuid
          AND q.attempts = coalesce($4::int, q.attempts) OFFSET 0) f`
)
