package sqltext

// UnreadTopics finds topics with messages that no live forwarder reads, and the number of messages found. It reads the
// oldest ready messages of each lane, so that it costs the same with any backlog, and skips young messages, whose
// forwarder may be about to start.
//
// Arguments: messages to read in each lane, age in seconds.
const UnreadTopics = `WITH live AS MATERIALIZED (
    SELECT f.topics FROM {forwarders} f WHERE f.expires_at > clock_timestamp()
)
SELECT r.topic, count(*), extract(epoch FROM clock_timestamp() - min(r.created_at))::float8
  FROM generate_series(0, 63) AS l(lane) CROSS JOIN LATERAL (
       SELECT o.topic, ` + createdAt + ` FROM {outbox} o
        WHERE (o.lane, o.id) > (l.lane::smallint, 0) AND (o.lane, o.id) <= (l.lane::smallint, 9223372036854775807)
          AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL
        ORDER BY o.lane, o.id LIMIT $1::bigint) r
 WHERE r.created_at < clock_timestamp() - $2::float8 * interval '1 second'
   AND NOT EXISTS (SELECT FROM live WHERE live.topics = '{}' OR r.topic = ANY (live.topics))
 GROUP BY r.topic ORDER BY min(r.created_at) LIMIT 10`
