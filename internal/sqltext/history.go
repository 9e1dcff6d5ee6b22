package sqltext

// The history of a message of the outbox is in its row: a JSON array of its last 20 failed attempts and acts of
// operators, oldest first. The statements that settle a failure or perform an act write it, so a message published at
// the first attempt costs nothing extra.
const (
	// AttemptHistory is the part of SettleFailed that records the attempt. Repeated after an unknown commit, it records it
	// once. The first attempt after a requeue finds attempts = 1 too, but no error.
	AttemptHistory = `,
           history = CASE WHEN o.attempts >= f.attempts AND o.last_error IS NOT NULL THEN o.history
             ELSE ` + keptHistory + ` || jsonb_build_array(jsonb_build_object('at', statement_timestamp(),
               'attempt', f.attempts, 'error', left(f.error, 256), 'delay', f.delay,
               'by', ` + nameOfOwner + `)) END`

	nameOfOwner = `coalesce((SELECT w.name FROM {forwarders} w WHERE w.id = $2::uuid), '')`

	// ActHistory is the part of the acts on the outbox that records them, with the earlier time of publish or death.
	ActHistory = `,
           history = ` + keptHistory + ` || jsonb_build_array(jsonb_strip_nulls(jsonb_build_object('at',
             statement_timestamp(),
               'act', (SELECT a.action FROM {audit} a WHERE a.id = $4::bigint), 'audit', $4::bigint,
               'published', CASE WHEN o.dead_at IS NULL THEN o.published_at END,
               'died', CASE WHEN o.published_at IS NULL THEN o.dead_at END)))`

	// ActsOf returns the actors and reasons of acts.
	//
	// Arguments: entries of the audit log.
	ActsOf = `SELECT a.id, a.actor, a.reason FROM {audit} a WHERE a.id = ANY ($1::bigint[])`

	// DeadLettersWithin finds dead letters of messages in a range of ids.
	//
	// Arguments: lowest and highest id, UUIDs of the messages.
	DeadLettersWithin = `SELECT o.id, o.metadata->>'uuid_poisoned', coalesce(o.metadata->>'service_poisoned', ''),
       coalesce(o.metadata->>'handler_poisoned', ''), ` + createdAt + `
  FROM {outbox} o WHERE o.id BETWEEN $1::bigint AND $2::bigint AND o.metadata->>'uuid_poisoned' = ANY ($3::text[])
 ORDER BY o.id`

	keptHistory = `jsonb_path_query_array(coalesce(o.history, '[]'), '$[last - 18 to last]')`
)
