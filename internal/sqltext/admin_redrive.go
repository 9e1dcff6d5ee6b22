package sqltext

// The statements with which package admin republishes the original messages of dead letters.
const (
	// DeadLettersOf finds the dead letters of inbox messages in a range of ids, oldest first.
	//
	// Arguments: lowest and highest id, consumers and ids of the messages.
	DeadLettersOf = `SELECT o.id, o.metadata->>'consumer_poisoned', o.metadata->>'inbox_key_poisoned', ` + createdAt + `,
       o.metadata->>'topic_poisoned'
  FROM {outbox} o
 WHERE o.id BETWEEN $1::bigint AND $2::bigint AND o.metadata->>'topic_poisoned' <> ''
   AND (o.metadata->>'consumer_poisoned', o.metadata->>'inbox_key_poisoned')
       IN (SELECT * FROM unnest($3::text[], $4::text[]))
 ORDER BY o.id`

	// RedrivenPattern finds a redriven message whose topic is a subject with wildcards (core.IsPattern), because its dead
	// letter has the pattern of the subscription.
	//
	// Arguments: ids.
	RedrivenPattern = `SELECT o.id, o.topic FROM {outbox} o
 WHERE o.id = ANY ($1::text[]::bigint[]) AND o.topic ~ '(^|\.)[*>](\.|$)' AND o.metadata ? 'outbox_redriven' LIMIT 1`

	// RedriveInbox revives dead messages as RequeueInbox does, and writes each to the outbox as it was before it died:
	// both or neither. A second caller finds that it is no longer dead.
	//
	// Arguments: consumers, messages, states in which the messages must still be, entry in the audit log, ids of their
	// dead letters.
	RedriveInbox = `WITH free AS MATERIALIZED (
    SELECT r.consumer, r.message_id, o.id AS dead_letter_id, o.uuid AS dead_letter, o.key, o.payload, o.metadata
      FROM unnest($1::text[], $2::text[], $5::bigint[]) AS w(consumer, message_id, dead_letter)
      JOIN {outbox} o ON o.id = w.dead_letter CROSS JOIN LATERAL (
           SELECT i.consumer, i.message_id FROM {inbox} i
            WHERE i.consumer = w.consumer AND i.message_id = w.message_id AND ` + InboxState + ` = ANY ($3::text[])
            LIMIT 1 FOR UPDATE OF i SKIP LOCKED) r
), written AS (
    INSERT INTO {outbox} (uuid, topic, key, payload, metadata)
    SELECT ` + redrivenUUID + `, m.metadata->>'topic_poisoned', m.key, m.payload, ` + redriven + `
      FROM free m ORDER BY m.dead_letter_id
), changed AS (
    UPDATE {inbox} i SET ` + revived + InboxActHistory + `
      FROM free WHERE i.consumer = free.consumer AND i.message_id = free.message_id RETURNING 1` + acted + `, '[]',
        NULL::bigint FROM changed`

	// redriven is the original metadata of a message. Its generation begins with the dead letter, and requeues count the
	// number behind the dot: to JetStream it is a different message from the dead one, however often that was requeued,
	// but the same message as another redrive of that dead letter.
	redriven = `m.metadata - ARRAY['reason_poisoned', 'topic_poisoned', 'handler_poisoned', 'subscriber_poisoned',
           'service_poisoned', 'uuid_poisoned', 'consumer_poisoned', 'inbox_key_poisoned'] ||
           jsonb_build_object('outbox_generation', m.dead_letter || '.0',
                              'outbox_redriven', (` + redrives + ` + 1)::text)`
	redrives     = `coalesce(substring(m.metadata->>'outbox_redriven' FROM '^[0-9]{1,6}$'), '0')::int`
	redrivenUUID = `coalesce(nullif(m.metadata->>'uuid_poisoned', ''), m.dead_letter)`

	revived = `dead_at = NULL, processed_at = NULL, attempts = 0, revived = i.revived + 1, received_at = clock_timestamp()`
)
