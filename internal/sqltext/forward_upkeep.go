package sqltext

// Cleaning the outbox, and its paused topics.
const (
	// CleanPublished deletes published messages past the retention from one range of the primary key. Both its rows and
	// its ids are bounded, because deleted rows stay in the index while a long transaction is open. It returns where the
	// next call may begin, whether nothing is left to delete beyond that (the rows are too young, or do not exist), up to
	// where nothing is left, and the number of deleted rows.
	//
	// Arguments: cursor (id), retention in seconds, rows per stretch, topics (empty = all), ids per stretch, time from
	// which the retention counts back (RFC 3339 text, empty = now).
	CleanPublished = `WITH stretch AS MATERIALIZED (
    SELECT o.id, o.topic, o.published_at, o.created_at FROM {outbox} o
     WHERE o.id > $1::bigint AND o.id <= $1::bigint + $5::bigint ORDER BY o.id LIMIT $3::bigint
), gone AS (
    DELETE FROM {outbox} o USING stretch s
     WHERE o.id = s.id AND s.published_at < coalesce(nullif($6::text, '')::timestamptz,
       clock_timestamp()) - $2::float8 * interval '1 second'
       AND o.published_at IS NOT NULL AND ($4::text[] = '{}' OR s.topic = ANY ($4::text[]))
    RETURNING o.id
), reached AS (
    SELECT min(s.id) FILTER (WHERE s.created_at BETWEEN coalesce(nullif($6::text, '')::timestamptz,
      clock_timestamp()) - $2::float8 * interval '1 second' AND clock_timestamp()) - 1 AS young,
           CASE WHEN count(*) < $3::bigint THEN $1::bigint + $5::bigint ELSE max(s.id) END AS id
      FROM stretch s
)
SELECT coalesce(r.young, least(r.id, q.last_value)) AS id, r.young IS NOT NULL OR r.id >= q.last_value,
       coalesce((SELECT min(s.id) - 1 FROM stretch s WHERE s.id NOT IN (SELECT gone.id FROM gone)),
         least(r.id, q.last_value)),
       (SELECT count(*) FROM gone)
  FROM reached r CROSS JOIN {outbox_id_seq} q`

	// OperatorPauses lists the topics that an operator has paused.
	OperatorPauses = `SELECT topic FROM {outbox_topics} WHERE forwarder = '00000000-0000-0000-0000-000000000000'`

	// PauseTopics replaces the paused topics of one forwarder in the table.
	//
	// Arguments: own id, topics, failures, since when in seconds, errors.
	PauseTopics = `WITH resumed AS (
    DELETE FROM {outbox_topics} t WHERE t.forwarder = $1::uuid AND t.topic <> ALL ($2::text[])
)
INSERT INTO {outbox_topics} AS t (topic, forwarder, paused_at, failures, reason)
SELECT p.topic, $1::uuid, clock_timestamp() - p.since * interval '1 second', p.failures, p.reason
  FROM unnest($2::text[], $3::bigint[], $4::float8[], $5::text[]) AS p(topic, failures, since, reason)
ON CONFLICT (topic, forwarder) DO UPDATE SET failures = excluded.failures, reason = excluded.reason`
)
