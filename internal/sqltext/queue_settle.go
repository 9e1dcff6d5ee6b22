package sqltext

// The statements that settle messages. Each changes only rows of the owner that it is given, locked in the order of their
// ids, and says how many these were. A row that the owner lost in the meantime stays as it is.
const (
	// AckMessages marks messages done. Their rows stay, so that copies are known.
	//
	// Arguments: owner, sources, message ids, whether the payload stays too.
	AckMessages = held + `
UPDATE {queue} q
   SET state = 'done', done_at = clock_timestamp(), owner = NULL, locked_until = NULL,
       payload = CASE WHEN $4::bool THEN q.payload ELSE '' END, metadata = CASE WHEN $4::bool THEN q.metadata ELSE '{}' END
` + ofHeld

	// AbandonMessages charges an attempt and has messages come back after a while: the given one, or that of the attempt.
	//
	// Arguments: owner, sources, message ids, error ("" = leave the last one), seconds of wait by attempt, attempts after which a message
	// is dead (NULL = never).
	AbandonMessages = held + `
UPDATE {queue} q
   SET attempts = q.attempts + 1, last_error = coalesce(nullif($4::text, ''), q.last_error), owner = NULL, locked_until = NULL,
       due_at = clock_timestamp() + ($5::float8[])[least(q.attempts + 1, cardinality($5::float8[]))] * interval '1 second',
       state = CASE WHEN q.attempts + 1 >= $6::int THEN 'dead' ELSE q.state END
` + ofHeld

	// FailMessages marks messages dead.
	//
	// Arguments: owner, sources, message ids, reason.
	FailMessages = held + `
UPDATE {queue} q
   SET state = 'dead', attempts = q.attempts + 1, last_error = $4::text, owner = NULL, locked_until = NULL
` + ofHeld

	// ReleaseMessages gives messages back without charge.
	//
	// Arguments: owner, sources, message ids, error ("" = leave the last one), seconds of wait.
	ReleaseMessages = held + `
UPDATE {queue} q
   SET due_at = clock_timestamp() + $5::float8 * interval '1 second', last_error = coalesce(nullif($4::text, ''), q.last_error),
       owner = NULL, locked_until = NULL
` + ofHeld

	held = `WITH held AS MATERIALIZED (
    SELECT q.source, q.message_id
      FROM unnest($2::text[], $3::text[]) AS i(source, message_id)
      JOIN {queue} q ON q.source = i.source AND q.message_id = i.message_id
     WHERE q.state = 'processing' AND q.owner = $1::uuid
     ORDER BY q.id FOR UPDATE OF q
)`
	ofHeld = `  FROM held h WHERE q.source = h.source AND q.message_id = h.message_id AND q.owner = $1::uuid`
)
