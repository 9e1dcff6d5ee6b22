package sqltext

// The statements that settle failed messages.
const (
	// SettleFailed records failed attempts, each only while its lane still has the owner and the epoch under which the
	// message was read: the lock keeps both until this commits. It returns the number of each attempt, from 1, and its
	// outcome, unless the message was settled elsewhere: fenced (the lane has another owner now), locked (by another
	// transaction, and not recorded), waiting or dead. attempts is set, not incremented, so that repeating the statement
	// after an unknown commit charges once; a message that it had made dead is returned as dead again, and one that an
	// operator has requeued since (another generation) is waiting and not charged.
	//
	// The CASE hides two tests for NULL from the planner, which in a table that was not analyzed considers them very
	// selective, and then compares every pending message with every argument.
	//
	// Arguments: scope, owner; of each message: id, uuid with its generation, lane, epoch, attempts, delay in seconds,
	// error, age in seconds from which the failure kills it (0 = at any age, negative = not at all).
	SettleFailed = settleFailed + failedAnswers

	// SettleFailedDeadLetters does the same as SettleFailed, and writes a dead letter for each message that dies, unless
	// it is a dead letter itself. A dead letter has no key in its row, because BlockKeyOnDead may block the key of its
	// message; it is published with the key. It has its own UUID, because brokers and inboxes deduplicate by it. It does
	// not inherit the delay and the generation of the message. Metadata values that are not text, which only SQL can have
	// written and no message can carry, are converted to text. Metadata that would command a broker are renamed.
	//
	// Arguments: as for SettleFailed, then the topic of the dead letters.
	SettleFailedDeadLetters = settleFailed + `, dead_letters AS (
    INSERT INTO {outbox} (uuid, topic, payload, metadata)
    SELECT gen_random_uuid()::text, $11::text, o.payload,
           (SELECT coalesce(jsonb_object_agg(m.key || CASE
             WHEN m.key ~ '` + Commands + `' THEN '_poisoned' ELSE '' END, coalesce(m.value, '')), '{}')
              FROM jsonb_each_text(CASE jsonb_typeof(o.metadata) WHEN 'object' THEN o.metadata END) m
             WHERE m.key <> ALL (
               '{_watermill_delayed_until,_watermill_delayed_for,outbox_generation}'::text[])) || jsonb_build_object(
               'uuid_poisoned', o.uuid, 'topic_poisoned', o.topic, 'reason_poisoned', f.error,
               'service_poisoned', $1::text, 'handler_poisoned', ` + nameOfOwner + `,
               'subscriber_poisoned', 'outbox') ||
           CASE o.key WHEN '' THEN '{}' ELSE jsonb_build_object('outbox_key', o.key) END
      FROM settled s JOIN failed f ON f.n = s.n JOIN {outbox} o ON o.id = f.id
     WHERE s.dead AND o.topic <> $11::text
)` + failedAnswers

	// Commands matches the metadata keys for which core.Commands is true.
	Commands = `^([Nn][Aa][Tt][Ss]-|(outbox_headers|_watermill_message_uuid|B?CC|x-delay)$)`

	// MayWrite reports whether the current role may write messages.
	MayWrite = `SELECT has_any_column_privilege({outbox_text}::regclass, 'INSERT')
   AND has_sequence_privilege({outbox_id_seq_text}::regclass, 'USAGE')`

	settleFailed = `WITH fence AS MATERIALIZED (
    SELECT l.lane, l.epoch FROM {lanes} l
     WHERE l.scope = $1::text AND l.owner = $2::uuid AND l.lane = ANY ($5::bigint[]::smallint[]) FOR SHARE
), failed AS MATERIALIZED (
    SELECT f.*, fence.lane IS NOT NULL AS mine
      FROM unnest($3::bigint[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::float8[], $9::text[],
        $10::float8[]) WITH ORDINALITY
           AS f(id, uuid, lane, epoch, attempts, delay, error, fatal_age, n)
      LEFT JOIN fence ON fence.lane = f.lane AND fence.epoch = f.epoch
), free AS MATERIALIZED (
    SELECT f.n FROM {outbox} o JOIN failed f ON o.id = f.id
      AND o.uuid || coalesce('/' || nullif(o.metadata->>'outbox_generation', ''), '') = f.uuid
     WHERE f.mine AND CASE WHEN o.published_at IS NULL THEN o.dead_at IS NULL ELSE false END
       FOR UPDATE OF o SKIP LOCKED
), settled AS (
    UPDATE {outbox} o
       SET attempts = least(f.attempts, 2147483647), last_error = f.error` + AttemptHistory + `,
           due_at = clock_timestamp() + f.delay * interval '1 second',
           dead_at = CASE WHEN f.fatal_age = 0 OR f.fatal_age > 0
                               AND o.created_at <= clock_timestamp() - f.fatal_age * interval '1 second'
                          THEN clock_timestamp() END
      FROM failed f JOIN free ON free.n = f.n
     WHERE o.id = f.id
    RETURNING f.n, o.dead_at IS NOT NULL AS dead
)`

	failedAnswers = `
SELECT s.n, CASE WHEN s.dead THEN 'dead' ELSE 'waiting' END FROM settled s
UNION ALL
SELECT f.n, CASE WHEN o.uuid || coalesce('/' || nullif(o.metadata->>'outbox_generation', ''),
  '') <> f.uuid THEN 'waiting'
                  WHEN o.dead_at IS NULL THEN 'locked' ELSE 'dead' END
  FROM failed f JOIN {outbox} o ON o.id = f.id AND starts_with(f.uuid, o.uuid)
 WHERE f.mine AND CASE WHEN o.published_at IS NULL THEN f.n NOT IN (SELECT free.n FROM free) ELSE false END
UNION ALL
SELECT f.n, 'fenced' FROM failed f WHERE NOT f.mine`
)
