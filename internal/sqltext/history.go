package sqltext

// The history of a message of the outbox stands in its row: a JSON array of its last 20 failed attempts and acts of
// operators, oldest first. It is written by the statements that settle the failure or do the act, so what is published
// at first costs nothing more.
const (
	// NoteAttempt is the part of SettleFailed that notes the attempt. Repeated after an unknown commit, it notes it once.
	NoteAttempt = `,
           history = CASE WHEN o.attempts >= f.attempts AND o.history IS NOT NULL THEN o.history ELSE ` + lastNotes +
		` || jsonb_build_array(jsonb_build_object('at', statement_timestamp(), 'attempt', f.attempts,
               'error', left(f.error, 256), 'delay', f.delay,
               'by', coalesce((SELECT w.name FROM {forwarders} w WHERE w.id = $2::uuid), ''))) END`

	// NoteAct is the part of the acts on the outbox that notes them, with when the message was published or died before.
	NoteAct = `,
           history = ` + lastNotes + ` || jsonb_build_array(jsonb_strip_nulls(jsonb_build_object('at', statement_timestamp(),
               'act', (SELECT a.action FROM {audit} a WHERE a.id = $4::bigint), 'audit', $4::bigint,
               'published', CASE WHEN o.dead_at IS NULL THEN o.published_at END,
               'died', CASE WHEN o.published_at IS NULL THEN o.dead_at END)))`

	// ActsOf says who did acts, and why.
	//
	// Arguments: entries of the audit log.
	ActsOf = `SELECT a.id, a.actor, a.reason FROM {audit} a WHERE a.id = ANY ($1::bigint[])`

	// LettersWithin finds dead letters of messages among the ids from one to another.
	//
	// Arguments: lowest and highest id, UUIDs of the messages.
	LettersWithin = `SELECT o.id, o.metadata->>'uuid_poisoned', coalesce(o.metadata->>'service_poisoned', ''),
       coalesce(o.metadata->>'handler_poisoned', ''), ` + createdAt + `
  FROM {outbox} o WHERE o.id BETWEEN $1::bigint AND $2::bigint AND o.metadata->>'uuid_poisoned' = ANY ($3::text[])
 ORDER BY o.id`

	lastNotes = `jsonb_path_query_array(coalesce(o.history, '[]'), '$[last - 18 to last]')`
)
