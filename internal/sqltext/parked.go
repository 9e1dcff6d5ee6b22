package sqltext

const (
	// Parked is what a consumer group has parked of a topic: for each key its oldest message and how many there are. Its
	// bound is that of parked keys, not of the index: few keys are parked, and published rows are deleted at once.
	//
	// Arguments: topic.
	Parked = `SELECT o.key, min(o.id), count(*) FROM {outbox} o
 WHERE o.topic = $1::text AND o.published_at IS NULL AND o.dead_at IS NULL
 GROUP BY o.key`

	// ParkedOf is Parked for some keys, of each of which it counts little more than so many: a key may have very many, and
	// this is asked each second. In their lane those of other keys are few. Messages without a key are in any lane. It is
	// BETWEEN, and not =, so that rows come in the order of (lane, id) from the index of the lane alone: the primary key
	// has that of id, behind all that other keys have.
	//
	// Arguments: topic, keys, how many.
	ParkedOf = `SELECT k.key, min(o.id), count(*)
  FROM unnest($2::text[]) AS k(key)
 CROSS JOIN LATERAL generate_series(CASE WHEN k.key = '' THEN 0 ELSE hashtext(k.key) & 63 END,
                                    CASE WHEN k.key = '' THEN 63 ELSE hashtext(k.key) & 63 END) AS l(lane)
 CROSS JOIN LATERAL (
       (SELECT o.id FROM {outbox} o
         WHERE o.lane BETWEEN l.lane::smallint AND l.lane::smallint AND o.topic = $1::text AND o.key = k.key
           AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL
         ORDER BY o.lane, o.id LIMIT $3::bigint)
        UNION ALL
       SELECT o.id FROM {outbox} o
        WHERE o.lane BETWEEN l.lane::smallint AND l.lane::smallint AND o.topic = $1::text AND o.key = k.key
          AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NOT NULL) o
 GROUP BY k.key`

	// AnyParked says whether a consumer group has anything parked of a topic.
	//
	// Arguments: topic.
	AnyParked = `SELECT EXISTS (SELECT FROM {outbox} o
 WHERE o.topic = $1::text AND o.published_at IS NULL AND o.dead_at IS NULL)`

	// ParkSeen says whether there is a park, and whether the role may read it. It is asked before a statement that names
	// its tables, as most databases have none.
	//
	// Arguments: the name of its table.
	ParkSeen = `SELECT p.park IS NOT NULL, coalesce(has_any_column_privilege(p.park, 'SELECT'), false)
  FROM (SELECT to_regclass($1::text)::oid AS park) p`

	// ParkedKeys lists what all groups have parked, by the oldest message of each key, with how many there are, for how
	// many seconds they have been there, what became of the oldest, and whether a process is there that delivers it.
	//
	// Arguments: how many keys.
	ParkedKeys = `SELECT k.topic, k.key, k.n, extract(epoch FROM clock_timestamp() - o.created_at)::float8, o.created_at,
       o.attempts, coalesce(left(o.last_error, 1024), ''),
       EXISTS (SELECT FROM {forwarders} f
                WHERE f.scope = 'subscriber:' || k.topic AND f.expires_at > clock_timestamp())
  FROM (SELECT o.topic, o.key, min(o.id) AS id, count(*) AS n FROM {outbox} o
         WHERE o.published_at IS NULL AND o.dead_at IS NULL
         GROUP BY o.topic, o.key ORDER BY min(o.id) LIMIT $1::bigint) k
  JOIN {outbox} o ON o.id = k.id
 ORDER BY k.id`
)
