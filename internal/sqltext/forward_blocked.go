package sqltext

// The other reads of the forwarder: messages that block keys, and messages that may have been missed.
const (
	// LoadBlocked reads a page of the messages that wait for another attempt and so block their keys, in id order, from a
	// cursor in each lane on. If the last argument is true, dead messages block their keys as well. A lane with fewer
	// messages than the limit is at its end. The first result (lane -1) has in its topic the incarnation of the server
	// in which all this holds, as Fetch's header does, and in dead whether the server is a standby. Lane and id are
	// compared and ordered as in Fetch. wait is at most 1e9 seconds, because a much longer one exceeds a
	// time.Duration; after that the message is published.
	//
	// Arguments: lanes, cursors (ids), limit per lane, topics (empty = all), whether dead messages block their keys.
	LoadBlocked = `SELECT (-1)::smallint AS lane, 0::bigint AS id, ''::text AS key, coalesce({life}, '') AS topic,
       0::float8 AS wait, pg_is_in_recovery() AS dead
UNION ALL
SELECT h.lane, h.id, h.key, h.topic, h.wait, h.dead
  FROM unnest($1::bigint[]::smallint[], $2::bigint[]) AS w(lane, cursor)
 CROSS JOIN LATERAL (
       (SELECT o.lane, o.id, o.key, o.topic, false AS dead,
               CASE WHEN isfinite(o.due_at)
                 THEN least(greatest(extract(epoch FROM o.due_at - clock_timestamp()), 0), 1e9)
                 ELSE 1e9 END::float8 AS wait
          FROM {outbox} o
         WHERE (o.lane, o.id) > (w.lane, w.cursor) AND (o.lane, o.id) <= (w.lane, 9223372036854775807)
           AND o.attempts > 0 AND o.key <> '' AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NOT NULL
           AND ($4::text[] = '{}' OR o.topic = ANY ($4::text[]))
         ORDER BY o.lane, o.id LIMIT $3::bigint)
       UNION ALL
       (SELECT o.lane, o.id, o.key, o.topic, true, 0
          FROM {outbox} o
         WHERE $5::bool AND (o.lane, o.id) > (w.lane, w.cursor) AND (o.lane, o.id) <= (w.lane, 9223372036854775807)
           AND o.dead_at IS NOT NULL AND o.published_at IS NULL AND o.key <> ''
           AND ($4::text[] = '{}' OR o.topic = ANY ($4::text[]))
         ORDER BY o.lane, o.id LIMIT $3::bigint)
        ORDER BY id LIMIT $3::bigint) h`

	// Sweep lists pending messages at or below the cursors of some lanes, from a position in each. It is the safety net of
	// Fetch for rows that were made pending again by other means.
	//
	// Arguments: lanes, positions, ids up to which to read, limit per lane, topics (empty = all).
	Sweep = `SELECT r.lane, r.id, r.key, r.topic
  FROM unnest($1::bigint[]::smallint[], $2::bigint[], $3::bigint[]) AS w(lane, cursor, upto)
 CROSS JOIN LATERAL (
       SELECT o.lane, o.id, o.key, o.topic FROM {outbox} o
        WHERE (o.lane, o.id) > (w.lane, w.cursor) AND (o.lane, o.id) <= (w.lane, w.upto)
          AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL
          AND ($5::text[] = '{}' OR o.topic = ANY ($5::text[]))
        ORDER BY o.lane, o.id LIMIT $4::bigint) r`

	// Pending returns the ids whose messages are pending, whenever they are due.
	//
	// Arguments: ids, ascending.
	Pending = `SELECT id FROM {outbox} WHERE ` + oneOf + ` AND published_at IS NULL AND dead_at IS NULL`
)
