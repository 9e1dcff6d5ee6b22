package sqltext

// The statements by which package admin looks at the inbox and changes it. A row is named by its consumer and its
// message.
//
// Walks go by consumer, as the indexes do; else they are those of the outbox. Arguments of all of them: consumer, part
// of the error text (empty = any), times between which the message came first (RFC 3339 text, empty = any), how many
// rows it looks at, how many of those that fit it returns, states (empty = all), the row after which the walk goes on
// (consumer, message).
const (
	// WalkInboxDead walks dead messages, the oldest of each consumer first.
	//
	// One argument more: the time of the row after which it goes on.
	WalkInboxDead = walkInbox + inboxDead + inboxByTime + walkedInbox

	// WalkInboxFailing walks messages that were neither processed nor are dead, likewise: they fail, or are ready.
	//
	// Arguments: those of WalkInboxDead.
	WalkInboxFailing = walkInbox + inboxFailing + inboxByTime + walkedInbox

	// WalkInboxRows walks all messages, in the order of consumers and ids.
	WalkInboxRows = walkInbox + `(i.consumer, i.message_id) > ($8::text, $9::text)
  AND ($1::text = '' OR i.consumer = $1::text)
            ORDER BY i.consumer, i.message_id LIMIT $5::bigint` + walkedInbox

	// WalkInboxIDs walks messages that are named. The LIMIT has each looked up by the primary key.
	//
	// Two arguments more: consumers, messages.
	WalkInboxIDs = walkInboxOf + `(SELECT DISTINCT * FROM unnest($10::text[], $11::text[])) AS w(consumer, message_id)
             CROSS JOIN LATERAL (SELECT * FROM {inbox} i
                                  WHERE i.consumer = w.consumer AND i.message_id = w.message_id LIMIT 1) i
             WHERE (i.consumer, i.message_id) > ($8::text, $9::text)
            ORDER BY i.consumer, i.message_id LIMIT $5::bigint` + walkedInbox

	// GroupInboxDead counts dead messages of each consumer by consumer and error, as GroupDead does.
	//
	// Arguments: consumer, part of the error text, times, messages of each consumer, groups, messages of all together,
	// attempts.
	GroupInboxDead = consumers + inboxDead + nextConsumer + inboxDead + ofConsumer + inboxDead + groupedInbox

	// GroupInboxFailing does the same to failing messages.
	//
	// Arguments: those of GroupInboxDead.
	GroupInboxFailing = consumers + inboxFailing + nextConsumer + inboxFailing + ofConsumer + inboxFailing + groupedInbox

	// CountInboxDead counts dead messages by consumer, as CountDead does.
	//
	// Arguments: how many to count of each consumer at most, and of all together.
	CountInboxDead = countConsumers + inboxDead + countNextConsumer + inboxDead + countedInbox + inboxDead +
		countedInboxEnd

	// CountInboxFailing does the same to failing messages.
	//
	// Arguments: those of CountInboxDead.
	CountInboxFailing = countConsumers + inboxFailing + countNextConsumer + inboxFailing + countedInbox + inboxFailing +
		countedInboxEnd

	// ShowInbox describes messages. The LIMIT has each looked up by the primary key, whatever the planner thinks of the
	// table.
	//
	// Arguments: consumers, messages.
	ShowInbox = `SELECT i.consumer, i.message_id, ` + InboxState + `, i.attempts, coalesce(left(i.last_error, 1024), ''),
       ` + receivedAt + `, CASE WHEN i.dead_at BETWEEN ` + readable + ` THEN i.dead_at END, CASE WHEN i.processed_at BETWEEN ` + readable + ` THEN i.processed_at END
  FROM unnest($1::text[], $2::text[]) AS w(consumer, message_id)
 CROSS JOIN LATERAL (SELECT * FROM {inbox} i WHERE i.consumer = w.consumer AND i.message_id = w.message_id LIMIT 1) i`

	// RequeueInbox makes dead messages processable again, with all their attempts and all the time for them. revived gives
	// the next dead letter another UUID, should it come to that.
	//
	// Arguments of all acts on the inbox: consumers, messages, states in which the messages must still be, entry in the
	// audit log, what becomes their error text.
	RequeueInbox = actInbox + `UPDATE {inbox} i
       SET ` + revived + `,
           last_error = coalesce(nullif($5::text, ''), i.last_error)` + NoteInboxAct + `
      FROM free WHERE i.consumer = free.consumer AND i.message_id = free.message_id RETURNING 1` + actedInbox

	// DiscardInbox notes messages as handled: their next copy is acked and does nothing. One that was discarded is told
	// from one that was processed by dead_at.
	//
	// Arguments: those of RequeueInbox.
	DiscardInbox = actInbox + `UPDATE {inbox} i
       SET processed_at = clock_timestamp(), dead_at = coalesce(i.dead_at, clock_timestamp()),
           last_error = left(concat_ws('; before: ', $5::text, i.last_error), 1024)` + NoteInboxAct + `
      FROM free WHERE i.consumer = free.consumer AND i.message_id = free.message_id RETURNING 1` + actedInbox

	// InboxState is the state of a row of the inbox. A discarded row has both times. One that was revived has failed in no
	// attempt since: its message is ready to be handled when it is delivered.
	InboxState = `CASE WHEN i.processed_at IS NOT NULL THEN CASE WHEN i.dead_at IS NULL THEN 'done' ELSE 'discarded' END
                WHEN i.dead_at IS NOT NULL THEN 'dead' WHEN i.attempts = 0 THEN 'ready' ELSE 'failing' END`

	inboxDead    = `i.dead_at IS NOT NULL AND i.processed_at IS NULL`
	inboxFailing = `i.processed_at IS NULL AND i.dead_at IS NULL`
	receivedAt   = `least(greatest(i.received_at, timestamptz '1970-01-02 00:00Z'), timestamptz '9999-12-30 00:00Z') ` +
		`AS received_at`

	inboxFits = `(($1::text = '' OR i.consumer = $1::text)
              AND ($2::text = '' OR position(lower($2::text) IN lower(i.last_error)) > 0)
              AND ($3::text = '' OR i.received_at >= nullif($3::text, '')::timestamptz)
              AND ($4::text = '' OR i.received_at < nullif($4::text, '')::timestamptz))`

	walkInbox   = walkInboxOf + `{inbox} i WHERE `
	walkInboxOf = `WITH looked AS MATERIALIZED (
    SELECT row_number() OVER () AS n, r.*
      FROM (SELECT i.consumer, i.received_at, i.message_id, i.last_error,
                   ` + inboxFits + ` AND ($7::text[] = '{}' OR ` + InboxState + ` = ANY ($7::text[])) AS fits
              FROM `
	inboxByTime = ` AND (i.consumer, i.received_at, i.message_id) > ($8::text, $10::timestamptz, $9::text)
              AND ($1::text = '' OR i.consumer = $1::text)
            ORDER BY i.consumer, i.received_at, i.message_id LIMIT $5::bigint`
	walkedInbox = `) r
), horizon AS (
    SELECT l.consumer, l.received_at, l.message_id FROM looked l WHERE l.n = $5::bigint
)
(SELECT true, h.consumer, to_json(h.received_at) #>> '{}', h.message_id, ''::text FROM horizon h)
UNION ALL
(SELECT false, l.consumer, to_json(l.received_at) #>> '{}', l.message_id, coalesce(left(l.last_error, 1024), '')
   FROM looked l WHERE l.fits ORDER BY l.n LIMIT $6::bigint)`

	consumers = `WITH RECURSIVE consumers(consumer) AS (
    SELECT * FROM (SELECT i.consumer FROM {inbox} i
                    WHERE ($1::text = '' OR i.consumer = $1::text) AND `
	nextConsumer = ` ORDER BY i.consumer LIMIT 1) first
    UNION ALL
    SELECT (SELECT i.consumer FROM {inbox} i
             WHERE i.consumer > c.consumer AND `
	ofConsumer = ` ORDER BY i.consumer LIMIT 1)
      FROM consumers c WHERE c.consumer IS NOT NULL AND $1::text = ''
), bound AS MATERIALIZED (
    SELECT greatest(1, least($5::bigint, $7::bigint / greatest(1, count(c.consumer)))) AS n FROM consumers c
), looked AS MATERIALIZED (
    SELECT bound.n AS most, r.* FROM consumers c CROSS JOIN bound CROSS JOIN LATERAL (
           SELECT i.consumer, i.last_error, ` + receivedAt + `, ` + inboxFits + ` AND i.attempts >= greatest(1, $8::int) AS fits
             FROM {inbox} i
            WHERE i.consumer = c.consumer AND `
	groupedInbox = `
            ORDER BY i.consumer DESC, i.received_at DESC, i.message_id DESC LIMIT bound.n) r
     WHERE c.consumer IS NOT NULL
), sources AS (
    SELECT l.consumer, count(*) >= max(l.most) AS more FROM looked l GROUP BY l.consumer
)
SELECT l.consumer, coalesce(left(l.last_error, 1024), '') AS error, count(*), min(l.received_at), max(l.received_at),
  s.more
  FROM looked l JOIN sources s ON s.consumer = l.consumer
 WHERE l.fits GROUP BY l.consumer, error, s.more ORDER BY count(*) DESC LIMIT $6::bigint`

	countConsumers = `WITH RECURSIVE consumers(consumer) AS (
    SELECT * FROM (SELECT i.consumer FROM {inbox} i WHERE `
	countNextConsumer = ` ORDER BY i.consumer LIMIT 1) first
    UNION ALL
    SELECT (SELECT i.consumer FROM {inbox} i WHERE i.consumer > c.consumer AND `
	countedInbox = ` ORDER BY i.consumer LIMIT 1) FROM consumers c WHERE c.consumer IS NOT NULL
), bound AS MATERIALIZED (
    SELECT greatest(1, least($1::bigint, $2::bigint / greatest(1, count(*)))) AS n FROM consumers
)
SELECT c.consumer, r.n, r.looked >= bound.n, coalesce(r.oldest, 0), r.often
  FROM consumers c CROSS JOIN bound CROSS JOIN LATERAL (
       SELECT count(*) AS looked, count(*) FILTER (WHERE q.attempts > 0) AS n,
         extract(epoch FROM clock_timestamp() - min(q.received_at) FILTER (WHERE q.attempts > 0))::float8 AS oldest,
         count(*) FILTER (WHERE q.attempts > 3) AS often
         FROM (SELECT i.attempts, ` + receivedAt + ` FROM {inbox} i WHERE i.consumer = c.consumer AND `
	countedInboxEnd = ` ORDER BY i.consumer, i.received_at, i.message_id LIMIT bound.n) q) r
 WHERE c.consumer IS NOT NULL AND r.n > 0`

	actInbox = `WITH free AS MATERIALIZED (
    SELECT r.consumer, r.message_id
      FROM unnest($1::text[], $2::text[]) AS w(consumer, message_id) CROSS JOIN LATERAL (
           SELECT i.consumer, i.message_id FROM {inbox} i
            WHERE i.consumer = w.consumer AND i.message_id = w.message_id AND ` + InboxState + ` = ANY ($3::text[])
            LIMIT 1 FOR UPDATE OF i SKIP LOCKED) r
), changed AS (
    `
	actedInbox = `
), noted AS (
    UPDATE {audit} SET matched = matched + cardinality($1::text[]), touched = touched + (SELECT count(*) FROM changed),
           skipped = skipped + cardinality($1::text[]) - (SELECT count(*) FROM changed)
     WHERE id = $4::bigint
)
SELECT count(*) FROM changed`
)
