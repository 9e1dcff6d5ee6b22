package sqltext

// The statements by which package admin looks at the queue and changes it. A row is named by its source and message.
// Walks are like those of the outbox; a queue has no lanes, and no index by topic, so they walk the indexes that claims
// use.
//
// Arguments of all of them: topic, key, source, part of the error text (empty = any), times between which the message
// came first (RFC 3339 text, empty = any), how many rows it looks at, how many of those that fit it returns, states
// (empty = all), id after which the walk goes on.
const (
	// WalkQueueDead walks dead messages, newest first.
	WalkQueueDead = walkQueue + `q.state = 'dead' AND q.id < $10::bigint ORDER BY q.id DESC` + walkedQueue

	// WalkQueueDeadUp walks them oldest first.
	WalkQueueDeadUp = walkQueue + `q.state = 'dead' AND q.id > $10::bigint ORDER BY q.id` + walkedQueue

	// WalkQueueReady walks messages that were never claimed, oldest first.
	WalkQueueReady = walkQueue + `q.state = 'processing' AND q.due_at IS NULL AND q.id > $10::bigint ORDER BY q.id` +
		walkedQueue

	// WalkQueueWaiting walks messages that wait for another attempt, or for a time of their sender's choice, or are worked
	// on again, in the order of their times.
	//
	// One argument more: the time that belongs to the id.
	WalkQueueWaiting = walkQueue + `q.state = 'processing' AND q.due_at IS NOT NULL
  AND (q.due_at, q.id) > ($11::timestamptz, $10::bigint)
             ORDER BY q.due_at, q.id` + walkedQueue

	// WalkQueueRows walks all messages, or those that are done, in the order of their sources and ids.
	//
	// Two arguments more, which take the place of the id: source and message.
	WalkQueueRows = walkQueue + `(q.source, q.message_id) > ($11::text, $12::text) AND q.id > $10::bigint ` +
		`ORDER BY q.source, q.message_id` + walkedQueue

	// WalkQueueIDs walks messages that are named. The LIMIT has each looked up by its name.
	//
	// Two arguments more: sources and messages.
	WalkQueueIDs = walkQueueOf + `(SELECT DISTINCT * FROM unnest($11::text[], $12::text[])) AS w(source, message_id)
             CROSS JOIN LATERAL (SELECT * FROM {queue} q
                                  WHERE q.source = w.source AND q.message_id = w.message_id LIMIT 1) q
             WHERE q.id > $10::bigint ORDER BY q.id` + walkedQueue

	// GroupQueue counts the newest dead messages, and those that wait next, by topic and error.
	//
	// Arguments: topic, key, source, part of the error text, times, messages, groups, state, attempts of failing ones.
	GroupQueue = `WITH looked AS MATERIALIZED (
    (SELECT q.topic, q.last_error, ` + firstSeenAt + `, ` + queueFits + ` AS fits FROM {queue} q
      WHERE $9::text = 'dead' AND q.state = 'dead' ORDER BY q.id DESC LIMIT $7::bigint)
    UNION ALL
    (SELECT q.topic, q.last_error, ` + firstSeenAt + `, ` + queueFits + ` AND q.attempts >= greatest(1, $10::int)
  FROM {queue} q
      WHERE $9::text = 'failing' AND q.state = 'processing' AND q.due_at IS NOT NULL ORDER BY q.due_at, q.id
        LIMIT $7::bigint)
)
SELECT l.topic, coalesce(left(l.last_error, 1024), '') AS error, count(*), min(l.first_seen_at), max(l.first_seen_at),
       (SELECT count(*) >= $7::bigint FROM looked)
  FROM looked l WHERE l.fits GROUP BY l.topic, error ORDER BY count(*) DESC LIMIT $8::bigint`

	// CountQueue counts messages by state and topic: how many, whether there may be more, the age of the oldest in
	// seconds, and how many of them failed more than three times.
	//
	// Arguments: how many messages to count of those that are dead, ready and waiting.
	CountQueue = `WITH dead AS MATERIALIZED (
    SELECT 'dead' AS state, q.topic, q.attempts, ` + queueSince + ` FROM {queue} q WHERE q.state = 'dead' ORDER BY q.id
  LIMIT $1::bigint
), ready AS MATERIALIZED (
    SELECT ` + dueState + ` AS state, q.topic, q.attempts, ` + queueSince + ` FROM {queue} q
     WHERE q.state = 'processing' AND q.due_at IS NULL ORDER BY q.id LIMIT $1::bigint
), waiting AS MATERIALIZED (
    SELECT ` + dueState + ` AS state, q.topic, q.attempts, ` + queueSince + ` FROM {queue} q
     WHERE q.state = 'processing' AND q.due_at IS NOT NULL ORDER BY q.due_at, q.id LIMIT $1::bigint
)
SELECT c.state, c.topic, count(*), bool_or(c.more),
  coalesce(extract(epoch FROM clock_timestamp() - min(c.since)), 0)::float8, count(*) FILTER (WHERE c.attempts > 3)
  FROM (SELECT *, (SELECT count(*) >= $1::bigint FROM dead) AS more FROM dead
        UNION ALL SELECT *, (SELECT count(*) >= $1::bigint FROM ready) FROM ready
        UNION ALL SELECT *, (SELECT count(*) >= $1::bigint FROM waiting) FROM waiting) c
 GROUP BY c.state, c.topic`

	// QueueUnhandled lists topics of the queue that have had messages due for a minute, and of which no message is, or was
	// lately, handled: no dispatcher has a handler for it. It says how many are due and since how many seconds the first
	// is. Dispatchers have no rows that would tell what they handle. What an operator has paused is left out.
	QueueUnhandled = `SELECT w.topic, count(*)::float8, extract(epoch FROM clock_timestamp() - min(w.since))::float8
  FROM ((SELECT q.topic, ` + unhandled + ` AS met, q.owner, ` + queueSince + ` FROM {queue} q
          WHERE q.state = 'processing' AND q.due_at IS NULL ORDER BY q.id LIMIT 1000)
        UNION ALL
        (SELECT q.topic, ` + unhandled + `, q.owner, ` + queueSince + ` FROM {queue} q
          WHERE q.state = 'processing' AND q.due_at IS NOT NULL AND q.due_at <= statement_timestamp()
          ORDER BY q.due_at, q.id LIMIT 1000)
        UNION ALL
        SELECT f.topic, f.met, f.owner, f.since
          FROM (SELECT q.topic, ` + unhandled + ` AS met, q.owner, ` + queueSince + ` FROM {queue} q
                 WHERE q.state = 'processing' AND q.due_at IS NOT NULL AND q.due_at > statement_timestamp()
                 ORDER BY q.due_at, q.id LIMIT 1000) f
         WHERE f.met) w
 WHERE w.topic NOT IN (SELECT t.topic FROM {outbox_topics} t
                        WHERE t.forwarder = '00000000-0000-0000-0000-000000000000')
   AND w.topic NOT IN (
       (SELECT q.topic FROM {queue} q WHERE q.state = 'done' AND q.done_at > statement_timestamp() - interval '1 minute'
         ORDER BY q.done_at DESC LIMIT 10000)
       UNION ALL
       (SELECT q.topic FROM {queue} q WHERE q.state = 'processing' AND q.due_at > statement_timestamp() AND q.attempts > 0
         ORDER BY q.due_at, q.id LIMIT 1000))
 GROUP BY w.topic
HAVING min(w.since) < clock_timestamp() - interval '1 minute' AND count(w.owner) FILTER (WHERE NOT w.met) = 0`

	// NoHandler is the error of a message that a dispatcher met and has no handler for. It waits then, and is due.
	NoHandler = `no handler for the topic`
	unhandled = `(q.attempts = 0 AND coalesce(q.last_error, '') = '` + NoHandler + `')`

	// QueueRates says how many messages a second were processed in the last minute, by topic, from the newest of them.
	//
	// Arguments: how many rows to look at.
	QueueRates = `WITH looked AS (
    SELECT q.topic, q.done_at FROM {queue} q
     WHERE q.state = 'done' AND q.done_at > statement_timestamp() - interval '1 minute' ORDER BY q.done_at DESC
       LIMIT $1::bigint
)
SELECT l.topic, count(*) / (SELECT CASE WHEN count(*) < $1::bigint THEN 60
                                        ELSE greatest(1,
                                          extract(epoch FROM clock_timestamp() - min(done_at))) END::float8 FROM looked)
  FROM looked l GROUP BY l.topic`

	// ShowQueue describes messages. It does not touch payloads.
	//
	// Arguments: sources, messages.
	ShowQueue = `SELECT q.source, q.message_id, q.topic, q.key, ` + QueueState + `, q.attempts,
  coalesce(left(q.last_error, 1024), ''), q.metadata::text,
       ` + firstSeenAt + `, CASE WHEN q.due_at BETWEEN ` + readable + ` THEN q.due_at END, CASE WHEN q.done_at BETWEEN ` + readable + ` THEN q.done_at END,
       q.crashes::int
  FROM unnest($1::text[], $2::text[]) AS w(source, message_id)
 CROSS JOIN LATERAL (
       SELECT q.source, q.message_id, q.topic, q.key, q.state, q.attempts, q.last_error, q.metadata, q.first_seen_at,
         q.due_at, q.done_at, q.crashes
         FROM {queue} q WHERE q.source = w.source AND q.message_id = w.message_id LIMIT 1) q`

	// QueuePayload reads the payload of one message.
	//
	// Arguments: source, message.
	QueuePayload = `SELECT q.payload FROM {queue} q WHERE q.source = $1::text AND q.message_id = $2::text`

	// RequeueQueue makes dead messages work again, with all their attempts. They have a due time, as all that goes back.
	//
	// Arguments of all acts on the queue: sources, messages, states in which the messages must still be, entry in the
	// audit log, what becomes their error text.
	RequeueQueue = actQueue + `UPDATE {queue} q
       SET state = 'processing', due_at = statement_timestamp(), attempts = 0, crashes = 0, done_at = NULL,
         expires_at = NULL,
           last_error = coalesce(nullif($5::text, ''), q.last_error)` + NoteQueueAct + `
      FROM free WHERE q.source = free.source AND q.message_id = free.message_id RETURNING 1` + actedQueue

	// DiscardQueue marks messages done that are never to be processed. They keep what they carry.
	//
	// Arguments: those of RequeueQueue.
	DiscardQueue = actQueue + `UPDATE {queue} q
       SET state = 'done', done_at = clock_timestamp(), last_error =
         left(concat_ws('; before: ', $5::text, q.last_error), 1024)` + NoteQueueAct + `
      FROM free WHERE q.source = free.source AND q.message_id = free.message_id RETURNING 1` + actedQueue

	// RetryNowQueue makes what waits due now, as RetryNowOutbox does.
	//
	// Arguments: those of RequeueQueue.
	RetryNowQueue = actQueue + `UPDATE {queue} q
       SET due_at = least(q.due_at, statement_timestamp()), last_error = coalesce(nullif($5::text, ''), q.last_error)` + NoteQueueAct + `
      FROM free WHERE q.source = free.source AND q.message_id = free.message_id RETURNING 1` + actedQueue

	// QueueState is the state of a row of the queue. Those that are being worked on count by what they were before.
	QueueState = `CASE q.state WHEN 'processing' THEN ` + dueState + ` ELSE q.state END`

	// dueState is that of what is to be processed. What was delayed and is due is ready.
	dueState = `CASE WHEN q.attempts > 0 THEN 'failing'
  WHEN q.due_at > statement_timestamp() AND NOT ` + unhandled + ` THEN 'delayed' ELSE 'ready' END`
	// queueSince is since when a message waits; one that has an owner does not.
	queueSince = `CASE WHEN q.owner IS NULL THEN least(greatest(
  CASE WHEN q.attempts = 0 AND q.state = 'processing' AND q.due_at <= statement_timestamp() AND isfinite(q.due_at) AND NOT ` + unhandled + `
  THEN q.due_at ELSE q.first_seen_at END, timestamptz '1970-01-02 00:00Z'), timestamptz '9999-12-30 00:00Z')
  END AS since`

	lastSeenAt = `least(greatest(q.last_seen_at, timestamptz '1970-01-02 00:00Z'), timestamptz '9999-12-30 00:00Z') ` +
		`AS last_seen_at`
	firstSeenAt = `least(greatest(q.first_seen_at, timestamptz '1970-01-02 00:00Z'), timestamptz '9999-12-30 00:00Z') ` +
		`AS first_seen_at`

	queueFits = `(($1::text = '' OR q.topic = $1::text) AND ($2::text = '' OR q.key = $2::text)
  AND ($3::text = '' OR q.source = $3::text)
              AND ($4::text = '' OR position(lower($4::text) IN lower(q.last_error)) > 0)
              AND ($5::text = '' OR q.first_seen_at >= nullif($5::text, '')::timestamptz)
              AND ($6::text = '' OR q.first_seen_at < nullif($6::text, '')::timestamptz))`

	walkQueue   = walkQueueOf + `{queue} q WHERE `
	walkQueueOf = `WITH looked AS MATERIALIZED (
    SELECT row_number() OVER () AS n, r.*
      FROM (SELECT q.id, q.source, q.message_id, q.due_at, q.last_error,
                   ` + queueFits + ` AND ($9::text[] = '{}' OR ` + QueueState + ` = ANY ($9::text[])) AS fits
              FROM `
	walkedQueue = ` LIMIT $7::bigint) r
)
(SELECT true, l.id, coalesce(to_json(l.due_at) #>> '{}', ''), l.source, l.message_id, ''::text FROM looked l
  WHERE l.n = $7::bigint)
UNION ALL
(SELECT false, l.id, coalesce(to_json(l.due_at) #>> '{}', ''), l.source, l.message_id,
  coalesce(left(l.last_error, 1024), '')
   FROM looked l WHERE l.fits ORDER BY l.n LIMIT $8::bigint)`

	// A message that somebody works on is left to him, and one that has no topic, and so no work, as it is.
	actQueue = `WITH free AS MATERIALIZED (
    SELECT r.source, r.message_id
      FROM unnest($1::text[], $2::text[]) AS w(source, message_id) CROSS JOIN LATERAL (
           SELECT q.source, q.message_id FROM {queue} q
            WHERE q.source = w.source AND q.message_id = w.message_id AND ` + QueueState + ` = ANY ($3::text[])
              AND q.owner IS NULL AND q.topic <> '' LIMIT 1 FOR UPDATE OF q SKIP LOCKED) r
), changed AS (
    `
	actedQueue = `
), noted AS (
    UPDATE {audit} SET matched = matched + cardinality($1::text[]), touched = touched + (SELECT count(*) FROM changed),
           skipped = skipped + cardinality($1::text[]) - (SELECT count(*) FROM changed)
     WHERE id = $4::bigint
)
SELECT count(*) FROM changed`
)
