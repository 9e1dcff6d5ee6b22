package sqltext

// The statements that settle messages. Each changes only rows of the given owner, and returns how many it changed. A
// row that the owner lost meanwhile is not changed.
//
// Rows are changed in the order of the arguments, which is the order of EnqueueMessages, because an Enqueue that waits
// for a row may hold others that these statements wait for. A table of a few pages may instead be read as a whole, in
// its own order; if that causes a deadlock, Postgres ends one of the two statements, and nothing is half done. Each row
// is looked up by its key and updated by its ctid. An ack does not lock it first, because that would be a change of the
// row too. A row that changed between the snapshot and the update, because its lease was renewed, has another ctid, and
// some versions of Postgres skip it: a call that changes fewer rows than requested runs once more.
//
// A connection keeps a plan that was made without knowing the arguments, perhaps while the table was empty, when
// reading all of it was cheapest. So these and the other statements of the queue leave the planner no choice: LATERAL
// looks up one row after another, and for a LIMIT that it does not know the planner expects a tenth of the rows, which
// is too few to justify reading the table.
const (
	// AckMessages marks messages done. Their rows stay, so that copies are recognised.
	//
	// Arguments: owner, sources, message ids, whether the payload stays too.
	AckMessages = heldDone + `
UPDATE {queue} q
   SET state = 'done', done_at = clock_timestamp(), owner = NULL, locked_until = NULL,
       payload = CASE WHEN $4::bool THEN q.payload ELSE '' END, metadata = CASE WHEN $4::bool THEN q.metadata
         ELSE '{}' END
` + ofHeld

	// AbandonMessages charges an attempt and retries messages after a wait: the given one, or the one for the attempt.
	//
	// Arguments: owner, sources, message ids, error ("" = keep the last one), seconds of wait by attempt, attempts
	// after which a message is dead (NULL = never), attempts so far (NULL = any number).
	AbandonMessages = heldBack + `
UPDATE {queue} q
   SET attempts = ` + oneMore + `, last_error = coalesce(nullif($4::text, ''), q.last_error), owner = NULL,
  locked_until = NULL,
       due_at = clock_timestamp() + ($5::float8[])[least(` + oneMore + `,
         cardinality($5::float8[]))] * interval '1 second',
       state = CASE WHEN ` + oneMore + ` >= $6::int THEN 'dead' ELSE q.state END` +
		queueHistory + `'attempt', ` + oneMore + `, 'error', left($4::text, 256),
           'delay', ($5::float8[])[least(` + oneMore + `, cardinality($5::float8[]))],
           'died', CASE WHEN ` + oneMore + ` >= $6::int THEN statement_timestamp() END` + queueHistoryEnd + `
` + ofHeld + ` AND q.attempts = coalesce($7::int, q.attempts)
` + behindSavepoint

	// FailMessages marks messages dead. It charges nothing if there was no attempt.
	//
	// Arguments: owner, sources, message ids, reason, number of attempts to charge.
	FailMessages = heldBack + `
UPDATE {queue} q
   SET state = 'dead', attempts = least(q.attempts::bigint + $5::int, 2147483647), last_error = $4::text, owner = NULL,
     locked_until = NULL` + queueHistory + `'error', left($4::text, 256), 'died', statement_timestamp(),
           'attempt', CASE WHEN $5::int > 0 THEN least(q.attempts::bigint + $5::int, 2147483647) END` +
		queueHistoryEnd + `
` + ofHeld + `
` + behindSavepoint

	// HoldMessages locks messages of an owner until its transaction ends, as a handler's transaction does that has acked
	// them, so that a call that stores a copy meanwhile does not wait. It returns for each the number of its leases that
	// were reaped.
	//
	// Arguments: owner, sources, message ids.
	HoldMessages = held + `FOR UPDATE OF q) f
     LIMIT (SELECT cardinality($2::text[]))
)
SELECT h.crashes FROM held h`

	// ReleaseMessages releases messages without a charge.
	//
	// Arguments: owner, sources, message ids, error ("" = keep the last one), seconds of wait.
	ReleaseMessages = heldBack + `
UPDATE {queue} q
   SET due_at = clock_timestamp() + $5::float8 * interval '1 second', last_error = coalesce(nullif($4::text, ''),
     q.last_error),
       owner = NULL, locked_until = NULL
` + ofHeld + `
` + behindSavepoint

	// ReapLeases releases and returns messages whose lease has ended, with the charge of Abandon. It reads one page of
	// each index of unfinished rows, in their order: an index of rows with an owner would cost each claim. It skips locked
	// rows, which are in the transactions of handlers that have acked them.
	//
	// Its first row is not a message but a header, with the state '': the places where the next page begins. Its id is for
	// rows that were never claimed; its source, a time, and its message id are for the others. They are past all rows if
	// nothing more follows. The header also has the places of the first rows of the page: just before the id in its topic,
	// and before its due time and the id in its key. Rows before them in the index are dead, and vacuum may not have been
	// able to remove them.
	//
	// Arguments: how many to give back at most, seconds of wait by attempt, attempts after which a message is dead (NULL =
	// never), where the page begins (id; time; id), how many rows it has, ids to leave out, topics (NULL = all).
	ReapLeases = `WITH fresh AS MATERIALIZED (
    SELECT q.ctid, q.id, ` + leaseOver + ` AND q.id <> ALL ($8::bigint[])
           AND ` + reapedTopic + ` AS late FROM {queue} q
     WHERE q.id > $4::bigint AND q.state = 'processing' AND q.due_at IS NULL ORDER BY q.id LIMIT $7::int
), due AS MATERIALIZED (
    SELECT q.ctid, q.due_at, q.id, ` + leaseOver + ` AND q.id <> ALL ($8::bigint[])
           AND ` + reapedTopic + ` AS late FROM {queue} q
     WHERE (q.due_at, q.id) > ($5::timestamptz, $6::bigint) AND q.due_at <= statement_timestamp()
       AND q.state = 'processing' AND q.due_at IS NOT NULL
     ORDER BY q.due_at, q.id LIMIT $7::int
), late AS MATERIALIZED (
    SELECT q.ctid FROM (SELECT f.ctid FROM fresh f WHERE CASE WHEN f.late THEN ` + givingBack + ` END
                         UNION ALL SELECT d.ctid FROM due d WHERE CASE WHEN d.late THEN ` + givingBack + ` END) l
      JOIN {queue} q ON q.ctid = l.ctid WHERE ` + leaseOver + ` LIMIT $1::int FOR UPDATE OF q SKIP LOCKED
), reaped AS (
    UPDATE {queue} q
       SET ` + reaped + `
      FROM (SELECT l.ctid FROM late l LIMIT $1::int) late WHERE q.ctid = late.ctid
    RETURNING ` + queueColumns + `
)
SELECT CASE WHEN f.n < $7::int THEN 9223372036854775807 ELSE f.id END, coalesce(to_json(d.due_at) #>> '{}', 'infinity'),
  coalesce(d.id, 0)::text,
       coalesce(f.low::text, ''), coalesce(l.id::text, ''), '', ''::bytea, '{}', NULL::bytea, statement_timestamp(),
         statement_timestamp(), CASE WHEN isfinite(l.due_at) THEN l.due_at END, NULL::timestamptz, 0, ''
  FROM (SELECT count(*) AS n, min(id) AS low, max(id) AS id FROM fresh) f
  LEFT JOIN (SELECT * FROM due ORDER BY due_at DESC, id DESC LIMIT 1) d ON (SELECT count(*) FROM due) >= $7::int
  LEFT JOIN (SELECT * FROM due ORDER BY due_at, id LIMIT 1) l ON true
UNION ALL SELECT * FROM reaped`

	// ExpireMessages marks one batch of expired messages dead, and returns them.
	//
	// Arguments: batch size, ids to leave out, topics (NULL = all).
	ExpireMessages = `WITH late AS MATERIALIZED (
    SELECT q.ctid FROM {queue} q
     WHERE q.expires_at <= statement_timestamp() AND q.state = 'processing' AND q.expires_at IS NOT NULL
       AND q.owner IS NULL AND q.id <> ALL ($2::bigint[])
       AND ($3::text[] IS NULL OR q.topic = ANY ($3::text[]))
     ORDER BY q.expires_at LIMIT $1::int FOR UPDATE OF q SKIP LOCKED
)
UPDATE {queue} q SET ` + expired + `
  FROM (SELECT l.ctid FROM late l LIMIT $1::int) l
  WHERE q.ctid = l.ctid
RETURNING ` + queueColumns

	// oneMore adds an attempt, up to the maximum integer: a row that was given that number by SQL must not fail the batch.
	oneMore = `(least(q.attempts, 2147483646) + 1)`

	reaped = `attempts = ` + oneMore + `, crashes = least(q.crashes, 2147483646) + 1, last_error = 'lease expired',
  owner = NULL, locked_until = NULL,
           due_at = clock_timestamp() +
             ($2::float8[])[least(` + oneMore + `, cardinality($2::float8[]))] * interval '1 second',
           state = CASE WHEN ` + oneMore + ` >= $3::int THEN 'dead' ELSE q.state END` +
		queueHistory + `'attempt', ` + oneMore + `, 'error', 'lease expired',
           'delay', ($2::float8[])[least(` + oneMore + `, cardinality($2::float8[]))],
           'died', CASE WHEN ` + oneMore + ` >= $3::int THEN statement_timestamp() END` + queueHistoryEnd

	expired = `state = 'dead', last_error = 'expired'` + queueHistory +
		`'error', 'expired', 'died', statement_timestamp()` + queueHistoryEnd

	reapedTopic = `($9::text[] IS NULL OR q.topic = ANY ($9::text[]))`

	leaseOver = `q.owner IS NOT NULL AND q.locked_until < statement_timestamp()`

	// held looks the rows up once, whatever is joined with them: it is a materialized CTE. Everything joins by ctid,
	// because the planner never knows the limit, even when it knows the arguments.
	heldDone = held + `OFFSET 0) f
     LIMIT (SELECT cardinality($2::text[]))
)`
	// heldBack finds the rows for a statement that releases them, and marks the transaction first. They are locked in the
	// order of the arguments, however the table is read, because Enqueue waits for them and may have locked others.
	heldBack = held + `FOR UPDATE OF q) f
     LIMIT (SELECT CASE WHEN ` + givingBack + ` THEN cardinality($2::text[]) END)
)`
	held = `WITH held AS MATERIALIZED (
    SELECT f.ctid, f.crashes
      FROM unnest($2::text[], $3::text[]) AS i(source, message_id)
     CROSS JOIN LATERAL (
           SELECT q.ctid, q.crashes FROM {queue} q
            WHERE q.source = i.source AND q.message_id = i.message_id AND q.state = 'processing' AND q.owner = $1::uuid
           `
	// Only a row in processing has an owner.
	ofHeld = `  FROM held h WHERE q.ctid = h.ctid AND q.owner = $1::uuid`
)
