package sqltext

// The statements by which package admin publishes dead letters again, as the messages that they are letters of.
const (
	// LettersOf finds the dead letters of messages of the inbox among the ids from one to another, oldest first.
	//
	// Arguments: lowest and highest id, consumers and ids of the messages.
	LettersOf = `SELECT o.id, o.metadata->>'consumer_poisoned', o.metadata->>'inbox_key_poisoned', ` + createdAt + `
  FROM {outbox} o
 WHERE o.id BETWEEN $1::bigint AND $2::bigint AND o.metadata->>'topic_poisoned' <> ''
   AND (o.metadata->>'consumer_poisoned', o.metadata->>'inbox_key_poisoned')
       IN (SELECT * FROM unnest($3::text[], $4::text[]))
 ORDER BY o.id`

	// RedriveInbox revives dead messages as RequeueInbox does, and writes each to the outbox as it was before it died:
	// both or neither. Whoever comes second finds that it is not dead any more.
	//
	// Arguments: consumers, messages, states in which the messages must still be, entry in the audit log, ids of their
	// letters.
	RedriveInbox = `WITH free AS MATERIALIZED (
    SELECT r.consumer, r.message_id, o.id AS letter_id, o.uuid AS letter, o.key, o.payload, o.metadata
      FROM unnest($1::text[], $2::text[], $5::bigint[]) AS w(consumer, message_id, letter)
      JOIN {outbox} o ON o.id = w.letter CROSS JOIN LATERAL (
           SELECT i.consumer, i.message_id FROM {inbox} i
            WHERE i.consumer = w.consumer AND i.message_id = w.message_id AND ` + InboxState + ` = ANY ($3::text[])
            LIMIT 1 FOR UPDATE OF i SKIP LOCKED) r
), written AS (
    INSERT INTO {outbox} (uuid, topic, key, payload, metadata)
    SELECT ` + redrivenUUID + `, m.metadata->>'topic_poisoned', m.key, m.payload, ` + redriven + `
      FROM free m ORDER BY m.letter_id
), changed AS (
    UPDATE {inbox} i SET ` + revived + NoteInboxAct + `
      FROM free WHERE i.consumer = free.consumer AND i.message_id = free.message_id RETURNING 1` + acted + `, '[]' FROM changed`

	// RedriveLetters does that to letters that a broker had. Each is noted in the inbox, so that it is redriven once,
	// however often its topic is read. The message's own row must be dead, or not be there.
	//
	// Arguments: letters (UUIDs), ordering keys, payloads, metadata (JSON text), entry in the audit log, consumer under
	// which letters are noted.
	RedriveLetters = letters + `, fresh AS (
    INSERT INTO {inbox} (consumer, message_id, processed_at)
    SELECT $6::text, l.letter, clock_timestamp() FROM letters l ORDER BY l.letter
        ON CONFLICT DO NOTHING RETURNING message_id
), held AS MATERIALIZED (
    SELECT l.letter, i.consumer, i.message_id, ` + InboxState + ` AS state
      FROM letters l JOIN {inbox} i ON ` + ownRow + `
     WHERE l.letter IN (SELECT f.message_id FROM fresh f) FOR UPDATE OF i
), meant AS MATERIALIZED (
    SELECT DISTINCT ON (coalesce(h.consumer || ' ' || h.message_id, l.letter)) l.*, h.consumer, h.message_id
      FROM letters l JOIN fresh f ON f.message_id = l.letter LEFT JOIN held h ON h.letter = l.letter
     WHERE coalesce(h.state, 'dead') = 'dead'
), written AS (
    INSERT INTO {outbox} (uuid, topic, key, payload, metadata)
    SELECT ` + redrivenUUID + `, m.metadata->>'topic_poisoned', m.key, m.payload, ` + redriven + `
      FROM meant m ORDER BY m.n
), changed AS (
    UPDATE {inbox} i SET ` + revived + NoteInboxLetter + `
      FROM meant m WHERE i.consumer = m.consumer AND i.message_id = m.message_id
), noted AS (
    UPDATE {audit} SET matched = matched + cardinality($1::text[]), touched = touched + (SELECT count(*) FROM meant)
     WHERE id = $5::bigint
)
SELECT count(*) FROM meant`

	// LettersToRedrive says which of them RedriveLetters would redrive, as far as can be known before.
	//
	// Arguments: those of RedriveLetters, without the entry.
	LettersToRedrive = letters + `
SELECT l.letter FROM letters l LEFT JOIN {inbox} i ON ` + ownRow + `
 WHERE NOT EXISTS (SELECT FROM {inbox} f WHERE f.consumer = $5::text AND f.message_id = l.letter)
   AND (i.consumer IS NULL OR ` + InboxState + ` = 'dead')`

	letters = `WITH letters AS MATERIALIZED (
    SELECT DISTINCT ON (w.letter) w.n, w.letter, w.key, w.payload, w.metadata::jsonb AS metadata
      FROM unnest($1::text[], $2::text[], $3::bytea[], $4::text[]) WITH ORDINALITY AS w(letter, key, payload, metadata, n)
     ORDER BY w.letter, w.n
)`
	ownRow = `i.consumer = l.metadata->>'consumer_poisoned' AND i.message_id = l.metadata->>'inbox_key_poisoned'`

	// redriven are the metadata that the message had. The letter is its generation: to JetStream it is another message
	// than the one that died, and the same as a copy that is redriven of one letter.
	redriven = `m.metadata - ARRAY['reason_poisoned', 'topic_poisoned', 'handler_poisoned', 'subscriber_poisoned',
           'service_poisoned', 'uuid_poisoned', 'consumer_poisoned', 'inbox_key_poisoned'] ||
           jsonb_build_object('outbox_generation', m.letter, 'outbox_redriven', (` + redrives + ` + 1)::text)`
	redrives     = `coalesce(substring(m.metadata->>'outbox_redriven' FROM '^[0-9]{1,6}$'), '0')::int`
	redrivenUUID = `coalesce(nullif(m.metadata->>'uuid_poisoned', ''), m.letter)`

	revived = `dead_at = NULL, processed_at = NULL, attempts = 0, revived = i.revived + 1, received_at = clock_timestamp()`
)
