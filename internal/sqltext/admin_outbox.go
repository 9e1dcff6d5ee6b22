package sqltext

// The statements by which package admin describes messages of the outbox, and changes them.
const (
	// ShowOutbox describes messages. It does not touch payloads, so that a role that may not read them may look.
	//
	// Arguments: ids.
	ShowOutbox = `SELECT o.id, o.uuid, o.topic, o.key, ` + OutboxState + `, o.attempts,
  coalesce(left(o.last_error, 1024), ''), o.metadata::text,
       ` + createdAt + `, ` + dueAt + `, ` + deadAt + `, ` + publishedAt + `
  FROM {outbox} o WHERE o.id = ANY ($1::bigint[])`

	// PublishedMessages says of messages that are published what a broker knows of them.
	//
	// Arguments: ids.
	PublishedMessages = `SELECT o.id, o.uuid, o.topic, ` + createdAt + ` FROM {outbox} o
 WHERE o.id = ANY ($1::bigint[]) AND o.published_at IS NOT NULL AND o.dead_at IS NULL`

	// OutboxPayload reads the payload of one message.
	//
	// Arguments: id.
	OutboxPayload = `SELECT o.payload FROM {outbox} o WHERE o.id = $1::bigint`

	// LastOutboxID is the largest id, so that an act knows where to end.
	LastOutboxID = `SELECT coalesce(max(o.id), 0) FROM {outbox} o`

	// RequeueOutbox sends messages again. due_at is not NULL and attempts not 0: such a row has left the part of the index
	// that is read past a mark, and blocks its key until it is sent. Without an error it does not count as failing; the
	// history keeps what went wrong before. Another generation makes it another message to
	// JetStream, which would swallow it as a copy otherwise. All of a batch fall due at one moment, so that those of a key
	// leave in the order of their ids.
	//
	//
	// What somebody has locked is skipped, and with it what follows it under its key, here and in the batches after this
	// one: it might leave before it. Beside the number of messages the keys come back of which some were skipped, as JSON.
	//
	// Arguments of all acts on the outbox: ids, states in which the messages must still be, entry in the audit log, how
	// many messages that stands for. One more here: keys to skip.
	RequeueOutbox = `WITH meant AS MATERIALIZED (
    SELECT o.id, o.key FROM {outbox} o
     WHERE o.id = ANY ($1::bigint[]) AND ` + OutboxState + ` = ANY ($2::text[])
  AND o.key NOT IN (SELECT * FROM unnest($5::text[]))
), locked AS MATERIALIZED (
    SELECT o.id, o.key FROM {outbox} o
     WHERE o.id = ANY ($1::bigint[]) AND ` + OutboxState + ` = ANY ($2::text[])
  AND o.key NOT IN (SELECT * FROM unnest($5::text[]))
     ORDER BY o.id FOR UPDATE OF o SKIP LOCKED
), blocked AS MATERIALIZED (
    SELECT m.key, min(m.id) AS id FROM meant m WHERE m.key <> '' AND m.id NOT IN (SELECT l.id FROM locked l)
      GROUP BY m.key
), free AS MATERIALIZED (
    SELECT l.id FROM locked l WHERE NOT EXISTS (SELECT FROM blocked b WHERE b.key = l.key AND b.id < l.id)
), changed AS (
    UPDATE {outbox} o
       SET ` + requeued + NoteAct + `
      FROM free WHERE o.id = free.id
        RETURNING o.id` + acted + `, (SELECT coalesce(json_agg(b.key), '[]')::text FROM blocked b)` + fromChanged

	// DiscardOutbox settles messages that are never to be sent. A discarded row is told from a published one by dead_at.
	// It blocks no key, and is deleted as a published one is.
	//
	// One argument more: what becomes their error text.
	DiscardOutbox = actOutbox + `UPDATE {outbox} o
       SET ` + discarded + `, last_error = left(concat_ws('; before: ', $5::text, o.last_error), 1024)` + NoteAct + `
      FROM free WHERE o.id = free.id RETURNING o.id` + acted + fromChanged

	// RetryNowOutbox makes what waits due now. What was due before stays where it is, or a walk in the order of time would
	// meet it again.
	//
	// Arguments: those of DiscardOutbox.
	RetryNowOutbox = actOutbox + `UPDATE {outbox} o
       SET due_at = least(o.due_at, statement_timestamp()), last_error = coalesce(nullif($5::text, ''), o.last_error)` +
		NoteAct + `
      FROM free WHERE o.id = free.id RETURNING o.id` + acted + fromChanged

	// RequeueByHand is what Doctor names to operators without another tool: it does to a row what RequeueOutbox does, to
	// the first thousand dead messages of some topics, which were dead at a time: what dies again is not met again. It
	// waits for what is locked, or what follows it under its key would leave before it. DiscardByHand does to one row what
	// DiscardOutbox does. {topics}, {time} and {id} are for Doctor to fill in.
	RequeueByHand = `UPDATE {outbox} o SET ` + requeued +
		` WHERE o.id = ANY (ARRAY(SELECT o.id FROM {outbox} o WHERE ` + isDead +
		` AND o.dead_at <= '{time}' AND o.topic IN ({topics}) ORDER BY o.id LIMIT 1000 FOR UPDATE))`
	DiscardByHand = `UPDATE {outbox} o SET ` + discarded +
		`, last_error = left(concat_ws('; before: ', 'discarded by hand', o.last_error), 1024) WHERE o.id = {id} ` +
		`AND o.published_at IS NULL`

	requeued = `due_at = statement_timestamp(), attempts = 1, last_error = NULL, dead_at = NULL, published_at = NULL, ` +
		`metadata = ` +
		`o.metadata || jsonb_build_object(` +
		`'outbox_generation', (coalesce(substring(o.metadata->>'outbox_generation' FROM '^[0-9]{1,9}$'), ` +
		`'0')::bigint + 1)::text)`
	discarded = `published_at = clock_timestamp(), dead_at = coalesce(o.dead_at, clock_timestamp())`

	// Somebody else's lock is not waited for: what has it is skipped, and counted.
	actOutbox = `WITH free AS MATERIALIZED (
    SELECT o.id FROM {outbox} o
     WHERE o.id = ANY ($1::bigint[]) AND ` + OutboxState + ` = ANY ($2::text[]) ORDER BY o.id
  FOR UPDATE OF o SKIP LOCKED
), changed AS (
    `
	acted = `
), noted AS (
    UPDATE {audit} SET matched = matched + $4::bigint, touched = touched + (SELECT count(*) FROM changed),
           skipped = skipped + $4::bigint - (SELECT count(*) FROM changed)
     WHERE id = $3::bigint
)
SELECT count(*)`
	fromChanged = ` FROM changed`

	// What a row may hold that no client can read is left out.
	dueAt       = `CASE WHEN o.due_at BETWEEN ` + readable + ` THEN o.due_at END AS due_at`
	deadAt      = `CASE WHEN o.dead_at BETWEEN ` + readable + ` THEN o.dead_at END AS dead_at`
	publishedAt = `CASE WHEN o.published_at BETWEEN ` + readable + ` THEN o.published_at END AS published_at`
	readable    = `timestamptz '1970-01-02 00:00Z' AND timestamptz '9999-12-30 00:00Z'`
)

// The audit log.
const (
	// BeginAct writes the entry of an act before it changes anything.
	//
	// Arguments: actor, action, reason, filter (JSON text).
	BeginAct = `INSERT INTO {audit} (actor, action, reason, filter) VALUES ($1::text, $2::text, $3::text, $4::jsonb) ` +
		`RETURNING id`

	// EndAct says that the act has ended, and what cut it off, if anything did. It waits for the batch that is under way,
	// whose reply the caller may not have seen.
	//
	// Arguments: entry, what cut it off.
	EndAct = `UPDATE {audit} SET ended_at = clock_timestamp(), outcome = $2::text WHERE id = $1::bigint`

	// CountClean notes what a clean-up deleted, or a move moved.
	//
	// Arguments: entry, rows.
	CountClean = `UPDATE {audit} SET matched = matched + $2::bigint, touched = touched + $2::bigint WHERE id = $1::bigint`

	// CountCompared notes how many messages Reconcile has looked for.
	//
	// Arguments: entry, messages.
	CountCompared = `UPDATE {audit} SET compared = compared + $2::bigint WHERE id = $1::bigint`

	// FirstOutboxID is the smallest id.
	FirstOutboxID = `SELECT coalesce(min(o.id), 0) FROM {outbox} o`

	// Audit reads a page of the log, newest first.
	//
	// Arguments: id before which to read, how many.
	Audit = `SELECT a.id, a.at, a.role, a.actor, a.action, a.reason, a.filter::text, a.matched, a.touched, a.skipped,
       a.compared, a.ended_at, a.outcome
  FROM {audit} a WHERE a.id < $1::bigint ORDER BY a.id DESC LIMIT $2::bigint`

	// PauseTopic notes that an operator has paused a topic. One that is paused keeps its time.
	//
	// Arguments: topic, actor, reason.
	PauseTopic = `WITH paused AS (
    INSERT INTO {outbox_topics} (topic, forwarder, reason)
    VALUES ($1::text, '00000000-0000-0000-0000-000000000000', concat_ws(': ', $2::text, nullif($3::text, '')))
    ON CONFLICT (topic, forwarder) DO UPDATE SET reason = excluded.reason
    RETURNING topic
)
INSERT INTO {audit} (actor, action, reason, filter, touched, ended_at)
SELECT $2::text, 'pause', $3::text, jsonb_build_object('in', 'outbox', 'topic', $1::text),
  (SELECT count(*) FROM paused), clock_timestamp()`

	// ResumeTopic takes that back.
	//
	// Arguments: topic, actor, reason.
	ResumeTopic = `WITH resumed AS (
    DELETE FROM {outbox_topics}
     WHERE topic = $1::text AND forwarder = '00000000-0000-0000-0000-000000000000' RETURNING topic
)
INSERT INTO {audit} (actor, action, reason, filter, touched, ended_at)
SELECT $2::text, 'resume', $3::text, jsonb_build_object('in', 'outbox', 'topic', $1::text),
  (SELECT count(*) FROM resumed), clock_timestamp()`
)
