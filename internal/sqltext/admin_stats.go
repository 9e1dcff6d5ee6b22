package sqltext

// The statements of admin.Stats. Their counts are bounded, and are lower bounds if there are many rows: a page must
// load quickly however much there is to count. Statements called Exact are not bounded.
const (
	// Now is the time on the database's clock.
	Now = `SELECT clock_timestamp()`

	// CountDead returns, by topic, the number of dead messages, whether it is a lower bound, the age of the first in
	// seconds, and how many of them failed more than three times.
	//
	// Arguments: largest count per topic, and of all together.
	CountDead = countTopics + isDead + countNext + isDead + counted + isDead + countedEnd

	// CountFailing counts failing messages, which wait for another attempt, like CountDead.
	//
	// Arguments: as for CountDead.
	CountFailing = countTopics + isFailing + countNext + isFailing + counted + isFailing + countedEnd

	// CountReady counts ready messages by topic and state, the oldest of each lane, including those of blocked keys. It
	// cannot use an index by topic, because every writer would pay for one.
	//
	// Arguments: largest count per lane.
	CountReady = readyOfLanes + `$1` + ofLanes + `$1` + countedLanes

	// CountDelayed counts messages with a due time set by their sender, even if that has passed, in order of that time.
	//
	// Arguments: as for CountReady.
	CountDelayed = delayedOfLanes + `$1` + ofLanes + `$1` + countedLanes

	// CountOutboxExact counts all unsettled messages by state and topic, and those that failed more than three times.
	CountOutboxExact = `SELECT c.state, c.topic, count(*),
       coalesce(extract(epoch FROM clock_timestamp() - min(c.since)), 0)::float8,
       count(*) FILTER (WHERE c.attempts > 3)
  FROM (SELECT ` + pendingState + ` AS state, o.topic, o.attempts, ` + pendingSince + ` FROM {outbox} o
         WHERE o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL
        UNION ALL
        SELECT ` + pendingState + `, o.topic, o.attempts, ` + pendingSince + ` FROM {outbox} o
         WHERE o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NOT NULL
        UNION ALL
        SELECT 'dead', o.topic, o.attempts, ` + createdAt + ` FROM {outbox} o WHERE ` + isDead + `) c
 GROUP BY c.state, c.topic`

	// Rates estimates the number of messages published per second in the last minute, by topic. It reads the newest rows
	// and, for a backlog, the rows before the ready ones. If the rows do not reach back a minute, the rate is over the
	// time that they cover.
	//
	// Arguments: rows to read in each place.
	Rates = `WITH place AS MATERIALIZED (
    SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY r.id) AS id
      FROM generate_series(0, 63) AS s(lane) CROSS JOIN LATERAL (
           SELECT o.id FROM {outbox} o
            WHERE o.lane = s.lane AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL
            ORDER BY o.lane, o.id LIMIT 1) r
), scanned AS MATERIALIZED (
    (SELECT 1 AS part, o.id, o.topic, CASE WHEN o.dead_at IS NULL THEN o.published_at END AS at FROM {outbox} o
      ORDER BY o.id DESC LIMIT $1::bigint)
    UNION ALL
    (SELECT 2, o.id, o.topic, CASE WHEN o.dead_at IS NULL THEN o.published_at END FROM place p CROSS JOIN LATERAL (
            SELECT o.id, o.topic, o.dead_at, o.published_at FROM {outbox} o WHERE o.id < p.id ORDER BY o.id DESC
              LIMIT $1::bigint) o)
), part AS (
    SELECT l.part, min(l.id) AS low,
           CASE WHEN count(*) < $1::bigint THEN 60
             ELSE greatest(1, least(60, extract(epoch FROM clock_timestamp() - min(l.at)))) END::float8 AS seconds
      FROM scanned l GROUP BY l.part
)
SELECT l.topic, sum(1 / p.seconds)::float8 FROM scanned l JOIN part p ON p.part = l.part
 WHERE l.at > clock_timestamp() - interval '1 minute'
   AND (l.part = 1 OR l.id < coalesce((SELECT low FROM part WHERE part = 1), 0))
 GROUP BY l.topic`

	// PublishedTopics lists the topics of the newest published messages, each with the time of its last publish.
	PublishedTopics = `SELECT o.topic, max(o.published_at)
  FROM (SELECT topic, published_at, dead_at FROM {outbox} ORDER BY id DESC LIMIT 10000) o
 WHERE o.published_at IS NOT NULL AND o.dead_at IS NULL GROUP BY o.topic`

	// Forwarders lists forwarders and the number of lanes that each owns.
	Forwarders = `SELECT f.name, f.scope, array_to_json(f.topics)::text, coalesce(l.lanes, 0),
       extract(epoch FROM f.expires_at - clock_timestamp())::float8, f.waiting_since
  FROM {forwarders} f LEFT JOIN (SELECT owner, count(*) AS lanes FROM {lanes} GROUP BY owner) l ON l.owner = f.id
 ORDER BY f.name, f.id`

	// Unread counts the lanes of each scope that no running forwarder owns.
	Unread = `SELECT l.scope, count(*) FROM {lanes} l
 WHERE NOT EXISTS (SELECT FROM {forwarders} f WHERE f.id = l.owner AND ` + isRunning + `)
 GROUP BY l.scope ORDER BY l.scope`

	// Pauses lists why topics are paused: by an operator, or by live forwarders.
	Pauses = pauses + ` ORDER BY t.topic, t.forwarder`

	pauses = `SELECT t.topic, coalesce(f.name, 'operator'), ` + pausedAt + `, coalesce(t.reason, '')
  FROM {outbox_topics} t LEFT JOIN {forwarders} f ON f.id = t.forwarder AND f.expires_at > clock_timestamp()
 WHERE f.id IS NOT NULL OR t.forwarder = '00000000-0000-0000-0000-000000000000'`

	pausedAt = `least(greatest(t.paused_at, timestamptz '1970-01-02 00:00Z'), timestamptz '9999-12-30 00:00Z')`

	countTopics = `WITH RECURSIVE topics(topic) AS (
    SELECT * FROM (SELECT o.topic FROM {outbox} o WHERE `
	countNext = ` ORDER BY o.topic LIMIT 1) first
    UNION ALL
    SELECT (SELECT o.topic FROM {outbox} o WHERE o.topic > t.topic AND `
	counted = ` ORDER BY o.topic LIMIT 1) FROM topics t WHERE t.topic IS NOT NULL
), bound AS MATERIALIZED (
    SELECT greatest(1, least($1::bigint, $2::bigint / greatest(1, count(*)))) AS n FROM topics
)
SELECT t.topic, c.n, c.scanned >= bound.n, coalesce(c.oldest, 0), c.often
  FROM topics t CROSS JOIN bound CROSS JOIN LATERAL (
       SELECT count(*) AS scanned, count(*) FILTER (WHERE r.counts) AS n,
         extract(epoch FROM clock_timestamp() - min(r.created_at) FILTER (WHERE r.counts))::float8 AS oldest,
         count(*) FILTER (WHERE r.attempts > 3) AS often
         FROM (SELECT o.attempts, ` + wentWrong + ` AS counts,
           ` + createdAt + ` FROM {outbox} o WHERE o.topic >= t.topic AND (o.topic, o.id) <= (t.topic, ` +
		`9223372036854775807) AND `
	countedEnd = ` ORDER BY o.topic, o.id LIMIT bound.n) r) c
 WHERE t.topic IS NOT NULL AND c.n > 0`

	readyOfLanes = `WITH scanned AS MATERIALIZED (
    SELECT s.lane, r.*
      FROM generate_series(0, 63) AS s(lane) CROSS JOIN LATERAL (
           SELECT o.topic, ` + pendingState + ` AS state, ` + pendingSince + ` FROM {outbox} o
            WHERE o.lane = s.lane AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL
            ORDER BY o.lane, o.id LIMIT `
	delayedOfLanes = `WITH scanned AS MATERIALIZED (
    SELECT s.lane, r.*
      FROM generate_series(0, 63) AS s(lane) CROSS JOIN LATERAL (
           SELECT o.topic, ` + pendingState + ` AS state, ` + pendingSince + ` FROM {outbox} o
            WHERE o.lane = s.lane AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NOT NULL
            ORDER BY o.lane, o.due_at, o.id LIMIT `
	ofLanes = `::bigint) r
)
SELECT l.topic, count(*), (SELECT bool_or(n >= `
	countedLanes = `::bigint) FROM (SELECT count(*) AS n FROM scanned GROUP BY lane) f),
       extract(epoch FROM clock_timestamp() - min(l.since))::float8, l.state
  FROM scanned l GROUP BY l.topic, l.state`

	pendingSince = `least(greatest(CASE WHEN NOT ` + failed + ` AND o.due_at <= statement_timestamp()
  AND isfinite(o.due_at)
  THEN o.due_at ELSE o.created_at END, timestamptz '1970-01-02 00:00Z'), timestamptz '9999-12-30 00:00Z') AS since`
)
