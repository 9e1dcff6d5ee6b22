package sqltext

// The statements by which package admin finds a message of which only a name is known. No index has the UUIDs of the
// outbox, see docs/reference/decisions-outbox.md, so it is searched by ids, the newest first, as a list is. The inbox
// and the queue have an index that begins with consumer or source: each of these is asked once.
const (
	// FindOutbox finds messages by their UUID, their key, or the UUID of the message that they are the dead letter of.
	//
	// Arguments: what to find, id before which the search goes on, at how many rows it looks, how many it returns.
	FindOutbox = `WITH horizon AS MATERIALIZED (
    SELECT o.id FROM {outbox} o WHERE o.id < $2::bigint ORDER BY o.id DESC OFFSET $3::bigint - 1 LIMIT 1
)
(SELECT true, h.id, ''::text, ''::text, ''::text FROM horizon h)
UNION ALL
(SELECT false, o.id, ''::text, o.key, ''::text FROM {outbox} o
  WHERE o.id < $2::bigint AND o.id >= coalesce((SELECT h.id FROM horizon h), '-9223372036854775808')
    AND (o.uuid = $1::text OR o.key = $1::text OR o.metadata->>'uuid_poisoned' = $1::text)
  ORDER BY o.id DESC LIMIT $4::bigint)`

	// FindInbox finds messages by their UUID.
	//
	// Arguments: what to find, consumer after which the search goes on, how many consumers it asks.
	FindInbox = `WITH RECURSIVE consumers(consumer, n) AS (
    SELECT * FROM (SELECT i.consumer, 1::bigint FROM {inbox} i WHERE i.consumer > $2::text ORDER BY i.consumer LIMIT 1) first
    UNION ALL
    SELECT r.consumer, c.n + 1
      FROM consumers c CROSS JOIN LATERAL (
           SELECT i.consumer FROM {inbox} i WHERE i.consumer > c.consumer ORDER BY i.consumer LIMIT 1) r
     WHERE c.n < $3::bigint
)
(SELECT true, c.consumer, ''::text, ''::text, ''::text FROM consumers c WHERE c.n = $3::bigint)
UNION ALL
(SELECT false, i.consumer, ''::text, i.message_id, ''::text
   FROM consumers c CROSS JOIN LATERAL (
        SELECT i.consumer, i.message_id FROM {inbox} i
         WHERE i.consumer = c.consumer AND i.message_id = $1::text LIMIT 1) i)`

	// FindQueue does the same in the queue.
	//
	// Arguments: those of FindInbox, with sources in the place of consumers.
	FindQueue = `WITH RECURSIVE sources(source, n) AS (
    SELECT * FROM (SELECT q.source, 1::bigint FROM {queue} q WHERE q.source > $2::text ORDER BY q.source LIMIT 1) first
    UNION ALL
    SELECT r.source, s.n + 1
      FROM sources s CROSS JOIN LATERAL (
           SELECT q.source FROM {queue} q WHERE q.source > s.source ORDER BY q.source LIMIT 1) r
     WHERE s.n < $3::bigint
)
(SELECT true, 0::bigint, ''::text, s.source, ''::text, ''::text FROM sources s WHERE s.n = $3::bigint)
UNION ALL
(SELECT false, q.id, ''::text, q.source, q.message_id, ''::text
   FROM sources s CROSS JOIN LATERAL (
        SELECT q.id, q.source, q.message_id FROM {queue} q
         WHERE q.source = s.source AND q.message_id = $1::text LIMIT 1) q)`

	// LookedOutbox says where an id is among all, and when the message was written that has it, or the next one if it is
	// gone.
	//
	// Arguments: id.
	LookedOutbox = `SELECT coalesce((SELECT min(o.id) FROM {outbox} o), 0), coalesce((SELECT max(o.id) FROM {outbox} o), 0),
       (SELECT ` + createdAt + ` FROM {outbox} o WHERE o.id >= $1::bigint ORDER BY o.id LIMIT 1)`
)
