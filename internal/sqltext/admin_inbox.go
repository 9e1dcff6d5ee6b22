package sqltext

// The counts of admin.Stats.
const (
	// CountInboxDead counts dead messages by consumer, as CountDead does.
	//
	// Arguments: largest count per consumer, and of all together.
	CountInboxDead = countConsumers + inboxDead + countNextConsumer + inboxDead + countedInbox + inboxDead +
		countedInboxEnd

	// CountInboxFailing counts failing messages by consumer.
	//
	// Arguments: as for CountInboxDead.
	CountInboxFailing = countConsumers + inboxFailing + countNextConsumer + inboxFailing + countedInbox + inboxFailing +
		countedInboxEnd

	countConsumers = `WITH RECURSIVE consumers(consumer) AS (
    SELECT * FROM (SELECT i.consumer FROM {inbox} i WHERE `
	countNextConsumer = ` ORDER BY i.consumer LIMIT 1) first
    UNION ALL
    SELECT (SELECT i.consumer FROM {inbox} i WHERE i.consumer > c.consumer AND `
	countedInbox = ` ORDER BY i.consumer LIMIT 1) FROM consumers c WHERE c.consumer IS NOT NULL
), bound AS MATERIALIZED (
    SELECT greatest(1, least($1::bigint, $2::bigint / greatest(1, count(*)))) AS n FROM consumers
)
SELECT c.consumer, r.n, r.scanned >= bound.n, coalesce(r.oldest, 0), r.often
  FROM consumers c CROSS JOIN bound CROSS JOIN LATERAL (
       SELECT count(*) AS scanned, count(*) FILTER (WHERE q.attempts > 0) AS n,
         extract(epoch FROM clock_timestamp() - min(q.received_at) FILTER (WHERE q.attempts > 0))::float8 AS oldest,
         count(*) FILTER (WHERE q.attempts > 3) AS often
         FROM (SELECT i.attempts, ` + receivedAt + ` FROM {inbox} i WHERE i.consumer = c.consumer AND `
	countedInboxEnd = ` ORDER BY i.consumer, i.received_at, i.message_id LIMIT bound.n) q) r
 WHERE c.consumer IS NOT NULL AND r.n > 0`
)
