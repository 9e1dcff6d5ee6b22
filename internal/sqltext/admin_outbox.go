package sqltext

// The statements with which package admin shows and changes messages of the outbox.
const (
	// PublishedMessages returns id, UUID, topic and time of messages, to compare them with a broker.
	//
	// Arguments: ids.
	PublishedMessages = `SELECT o.id, o.uuid, o.topic, ` + createdAt + ` FROM {outbox} o
 WHERE o.id = ANY ($1::bigint[]) AND o.published_at IS NOT NULL AND o.dead_at IS NULL`

	// LastOutboxID returns the largest id, which bounds an act.
	LastOutboxID = `SELECT coalesce(max(o.id), 0) FROM {outbox} o`

	// DiscardByHand is the statement that Doctor suggests to operators without another tool. It discards one row. Doctor
	// fills in {id}.
	DiscardByHand = `UPDATE {outbox} o SET ` + discarded +
		`, last_error = left(concat_ws('; before: ', 'discarded by hand', o.last_error), 1024) WHERE o.id = {id} ` +
		`AND o.published_at IS NULL`

	requeued = `due_at = statement_timestamp(), attempts = 1, last_error = NULL, dead_at = NULL, published_at = NULL, ` +
		`metadata = ` +
		`o.metadata || jsonb_build_object(` +
		`'outbox_generation', coalesce(substring(o.metadata->>'outbox_generation' FROM '^.*[.]'), '') || ` +
		`(coalesce(substring(o.metadata->>'outbox_generation' FROM '[0-9]{1,9}$'), '0')::bigint + 1))`
	discarded = `published_at = clock_timestamp(), dead_at = coalesce(o.dead_at, clock_timestamp())`
)

// The audit log.
const (
	// DeadRetention is the actor of automatic discards.
	DeadRetention = "DeadRetention"

	// BeginAct writes the entry of an act before it changes anything.
	//
	// Arguments: actor, action, reason, filter (JSON text).
	BeginAct = `INSERT INTO {audit} (actor, action, reason, filter) VALUES ($1::text, $2::text, $3::text, $4::jsonb) ` +
		`RETURNING id`

	// EndAct records the end of an act, and the interruption, if any. It waits for a batch in progress, whose reply the
	// caller may not have seen.
	//
	// Arguments: entry, interruption.
	EndAct = `UPDATE {audit} SET ended_at = clock_timestamp(), outcome = $2::text WHERE id = $1::bigint`

	// CountClean adds the number of rows deleted by a clean-up or moved by a move.
	//
	// Arguments: entry, rows.
	CountClean = `UPDATE {audit} SET matched = matched + $2::bigint, touched = touched + $2::bigint WHERE id = $1::bigint`

	// CountCompared adds the number of messages that Reconcile has compared.
	//
	// Arguments: entry, messages.
	CountCompared = `UPDATE {audit} SET compared = compared + $2::bigint WHERE id = $1::bigint`

	// FirstOutboxID is the smallest id.
	FirstOutboxID = `SELECT coalesce(min(o.id), 0) FROM {outbox} o`

	// Audit reads a page of the log, newest first.
	//
	// Arguments: id before which to read, number of entries.
	Audit = `SELECT a.id, a.at, a.role, a.actor, a.action, a.reason, a.filter::text, a.matched, a.touched, a.skipped,
       a.compared, a.ended_at, a.outcome
  FROM {audit} a WHERE a.id < $1::bigint ORDER BY a.id DESC LIMIT $2::bigint`

	// PauseTopic records that an operator has paused a topic. If it is already paused, the time stays.
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

	// ResumeTopic undoes PauseTopic.
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
