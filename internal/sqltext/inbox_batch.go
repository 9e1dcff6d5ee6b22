package sqltext

// ClaimInboxes claims many messages of a consumer, with different ids. It returns a row for each message that the
// caller must process, with the token for UnclaimInbox, and for each that was handled before. It returns no row for a
// message that failed before, that a copy handled while this statement waited, or whose row a trigger kept from being
// stored: use ClaimInbox for those. Rows are locked in the order of their ids, so that two processes with the same
// messages do not deadlock. Only messages that were not claimed are looked up, one by one: a join reads the consumer's
// whole inbox while the table was never analyzed.
//
// Arguments: consumer, message ids, content hashes (bytea, may be empty).
const ClaimInboxes = `WITH asked AS MATERIALIZED (SELECT * FROM unnest($2::text[], $3::bytea[]) AS a(id, hash)),
claimed AS (
INSERT INTO {inbox} AS i (consumer, message_id, processed_at, hash)
SELECT $1::text, id, clock_timestamp(), nullif(hash, '') FROM asked ORDER BY id
ON CONFLICT (consumer, message_id) DO UPDATE
   SET processed_at = excluded.processed_at, hash = coalesce(excluded.hash, i.hash)
 WHERE i.processed_at IS NULL AND i.dead_at IS NULL AND i.attempts = 0
RETURNING i.message_id, true, (extract(epoch FROM i.processed_at) * 1000000)::bigint)
TABLE claimed UNION ALL
SELECT h.* FROM asked CROSS JOIN LATERAL (
       SELECT i.message_id, false, 0 FROM {inbox} i
        WHERE i.consumer = $1::text AND i.message_id = asked.id AND (i.processed_at IS NOT NULL OR i.dead_at IS NOT NULL)
        LIMIT 1) h
 WHERE asked.id NOT IN (SELECT c.message_id FROM claimed c)`
