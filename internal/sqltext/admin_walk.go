package sqltext

// The walks of package admin find messages in an order that pages can follow. A walk looks at so many rows and no
// more, whatever the filter refuses of them, and then says from where the next one goes on: so each is quick however
// many rows there are, and a page may be empty with more to come.
//
// Where an index has the messages by topic or by lane, a walk looks at some of each and merges them. It is
// complete up to the horizon: the first of the places at which it stopped looking at one of them.
//
// One result says where the horizon is, if there is one; the others are those that fit, in order. Times come as in
// JSON: else their text is that of the session's DateStyle, which may name zones that mean another one when it is read
// again.
//
// Arguments of all walks of the outbox: topic, key, part of the error text (empty = any), times between which the
// message was written (RFC 3339 text, empty = any), id after which the walk goes on, id up to which it looks, how many
// rows of each topic or lane it looks at, how many of those that fit it returns.
const (
	// WalkIndexes has the statements of a transaction go by indexes. Of a table that was never analyzed, or is not as it
	// was, the planner may think that all of a topic is few rows, and sort them; and to compile a statement takes longer
	// than to run it. A plan for any arguments, which a connection makes after a few times, would look for one topic
	// through those before it.
	WalkIndexes = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_sort', 'off', true),
       set_config('jit', 'off', true), set_config('plan_cache_mode', 'force_custom_plan', true)`

	// WalkDead walks dead messages, newest first.
	WalkDead = walkDead + newestOfTopic + topicsEnd + walkedDown

	// WalkDeadUp walks them oldest first, as acts do: what is made pending again leaves in the order in which it falls
	// due.
	WalkDeadUp = walkDead + oldestOfTopic + topicsEnd + walkedUp

	// WalkFailing walks messages that failed and wait for another attempt, oldest first: what has blocked its key for
	// longest.
	WalkFailing = walkFailing + oldestOfTopic + topicsEnd + walkedUp

	// WalkReady walks messages that are ready, oldest first.
	WalkReady = `WITH looked AS MATERIALIZED (
    SELECT s.lane::text AS source, r.*
      FROM generate_series(0, 63) AS s(lane) CROSS JOIN LATERAL (
           SELECT ` + looked + ` AND NOT ` + failed + ` AS fits FROM {outbox} o
            WHERE (o.lane, o.id) > (s.lane, $6::bigint) AND (o.lane, o.id) <= (s.lane, $7::bigint)
              AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL
            ORDER BY o.lane, o.id LIMIT $8::bigint) r
     WHERE $2::text = '' OR s.lane = hashtext($2::text) & 63` + walkedUp

	// WalkDelayed walks messages that wait for a time of their sender's choice, in the order of these times. Those
	// that failed are in the same index, and passed by.
	//
	// One argument more: the time that belongs to the id after which it goes on.
	WalkDelayed = walkWaiting + `>` + walkedWaiting

	// WalkDue walks messages whose time has come, likewise: they were delayed, or an operator sends them again.
	//
	// Arguments: those of WalkDelayed.
	WalkDue = walkWaiting + `<=` + walkedWaiting

	walkWaiting = `WITH looked AS MATERIALIZED (
    SELECT s.lane::text AS source, r.*
      FROM generate_series(0, 63) AS s(lane) CROSS JOIN LATERAL (
           SELECT o.id, o.due_at, o.key, o.last_error, ` + fits + ` AND NOT ` + failed + ` AS fits FROM {outbox} o
            WHERE (o.lane, o.due_at, o.id) > (s.lane, $10::timestamptz, $6::bigint) AND o.lane <= s.lane
              AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NOT NULL AND o.due_at `
	walkedWaiting = ` statement_timestamp()
            ORDER BY o.lane, o.due_at, o.id LIMIT $8::bigint) r
     WHERE $2::text = '' OR s.lane = hashtext($2::text) & 63
), horizon AS (
    SELECT f.due_at, f.id
      FROM (SELECT DISTINCT ON (l.source) l.due_at, l.id, count(*) OVER (PARTITION BY l.source) AS n
              FROM looked l ORDER BY l.source, l.due_at DESC, l.id DESC) f
     WHERE f.n >= $8::bigint ORDER BY f.due_at, f.id LIMIT 1
)
(SELECT true, h.id, to_json(h.due_at) #>> '{}', ''::text, ''::text FROM horizon h)
UNION ALL
(SELECT false, l.id, to_json(l.due_at) #>> '{}', l.key, coalesce(left(l.last_error, 1024), '')
   FROM looked l LEFT JOIN horizon h ON true
  WHERE l.fits AND (h.id IS NULL OR (l.due_at, l.id) <= (h.due_at, h.id)) ORDER BY l.due_at, l.id LIMIT $9::bigint)`

	// WalkRows walks all messages, or what is settled, newest first.
	//
	// One argument more: states (empty = all).
	WalkRows = rowsHorizon + `o.id < $6::bigint ORDER BY o.id DESC` + rowsWithin +
		`o.id < $6::bigint AND o.id >= coalesce((SELECT h.id FROM horizon h), '-9223372036854775808')` + rowsThatFit +
		` ORDER BY o.id DESC LIMIT $9::bigint)`

	// WalkRowsUp walks them oldest first.
	//
	// Arguments: those of WalkRows.
	WalkRowsUp = rowsHorizon + `o.id > $6::bigint AND o.id <= $7::bigint ORDER BY o.id` + rowsWithin +
		`o.id > $6::bigint AND o.id <= least($7::bigint, coalesce((SELECT h.id FROM horizon h), '9223372036854775807'))` +
		rowsThatFit + ` ORDER BY o.id LIMIT $9::bigint)`

	// WalkIDs walks messages that are named, oldest first.
	//
	// Arguments: those of WalkRows; ids.
	WalkIDs = walkRows + `o.id = ANY ($11::bigint[]) AND o.id > $6::bigint ORDER BY o.id LIMIT $8::bigint) r` + walkedUp

	// GroupDead counts the newest dead messages of each topic by topic and error. With many topics it looks at fewer of
	// each.
	//
	// Arguments: those of WalkDead, of which the last is how many groups it returns; how many messages it looks at of all
	// topics together.
	GroupDead = topics + isDead + nextTopic + isDead + groupTopic + isDead + ` AND ` + newestOfTopic +
		groupTopicEnd + grouped

	// GroupFailing does the same to messages that failed and wait.
	//
	// Arguments: those of GroupDead.
	GroupFailing = topics + isFailing + nextTopic + isFailing + groupTopic + isFailing + ` AND ` + newestOfTopic +
		groupTopicEnd + grouped

	// OutboxState is the state of a row of the outbox. A discarded row has both times.
	OutboxState = `CASE WHEN o.published_at IS NOT NULL THEN CASE WHEN o.dead_at IS NULL THEN 'done' ELSE 'discarded' END
                WHEN o.dead_at IS NOT NULL THEN 'dead' ELSE ` + pendingState + ` END`

	// What was delayed and is due is ready. So is what an operator sends again: it counts an attempt, see RequeueOutbox,
	// and has no error.
	pendingState = `CASE WHEN ` + failed + ` THEN 'failing' WHEN o.due_at > statement_timestamp() THEN 'delayed' ` +
		`ELSE 'ready' END`
	failed = `(o.attempts > 0 AND o.last_error IS NOT NULL)`

	looked = `o.id, o.key, o.last_error, ` + createdAt + `, ` + fits

	fits = `(($1::text = '' OR o.topic = $1::text) AND ($2::text = '' OR o.key = $2::text)
              AND ($3::text = '' OR position(lower($3::text) IN lower(o.last_error)) > 0)
              AND ($4::text = '' OR o.created_at >= nullif($4::text, '')::timestamptz)
              AND ($5::text = '' OR o.created_at < nullif($5::text, '')::timestamptz) AND o.id <= $7::bigint)`

	// These are the words of the indexes by topic.
	isDead    = `o.dead_at >= '-infinity' AND o.published_at IS NULL`
	isFailing = `o.attempts >= 1 AND o.published_at IS NULL AND o.dead_at IS NULL`
	// Among the latter are messages that are sent again. However many they are, a step looks at so many and no more.
	wentWrong = `(o.dead_at IS NOT NULL OR o.last_error IS NOT NULL)`

	walkDead    = topics + isDead + nextTopic + isDead + ofTopic + isDead + ` AND `
	walkFailing = topics + isFailing + nextTopic + isFailing + ofTopic + isFailing + ` AND `

	// Topic and id are compared and ordered by both, as lane and id are in Fetch: only the index by topic can deliver that
	// order.
	newestOfTopic = `o.topic >= t.topic AND (o.topic, o.id) < (t.topic, $6::bigint) ORDER BY o.topic DESC, o.id DESC`
	oldestOfTopic = `(o.topic, o.id) > (t.topic, $6::bigint) AND (o.topic, o.id) <= (t.topic, $7::bigint) ` +
		`ORDER BY o.topic, o.id`

	// Each topic is found by one step down the index.
	topics = `WITH RECURSIVE topics(topic) AS (
    SELECT * FROM (SELECT o.topic FROM {outbox} o
                    WHERE ($1::text = '' OR o.topic = $1::text) AND `
	nextTopic = ` ORDER BY o.topic LIMIT 1) first
    UNION ALL
    SELECT (SELECT o.topic FROM {outbox} o
             WHERE o.topic > t.topic AND `
	topicsFound = ` ORDER BY o.topic LIMIT 1)
      FROM topics t WHERE t.topic IS NOT NULL AND $1::text = ''
)`
	ofTopic = topicsFound + `, looked AS MATERIALIZED (
    SELECT t.topic AS source, r.*
      FROM topics t CROSS JOIN LATERAL (
           SELECT ` + looked + ` AND ` + wentWrong + ` AS fits FROM {outbox} o
            WHERE `
	topicsEnd = ` LIMIT $8::bigint) r
     WHERE t.topic IS NOT NULL`

	groupTopic = topicsFound + `, bound AS MATERIALIZED (
    SELECT greatest(1, least($8::bigint, $10::bigint / greatest(1, count(t.topic)))) AS n FROM topics t
), looked AS MATERIALIZED (
    SELECT t.topic AS source, bound.n AS most, r.*
      FROM topics t CROSS JOIN bound CROSS JOIN LATERAL (
           SELECT ` + looked + ` AND ` + wentWrong + ` AS fits FROM {outbox} o
            WHERE `
	groupTopicEnd = ` LIMIT bound.n) r
     WHERE t.topic IS NOT NULL`

	// Where one index has all rows in order, the horizon is known before any of them is looked at: the few that fit are
	// then read as fast as the server can.
	rowsHorizon = `WITH horizon AS MATERIALIZED (
    SELECT o.id FROM {outbox} o WHERE `
	rowsWithin = ` OFFSET $8::bigint - 1 LIMIT 1
)
(SELECT true, h.id, ''::text, ''::text, ''::text FROM horizon h)
UNION ALL
(SELECT false, o.id, ''::text, o.key, coalesce(left(o.last_error, 1024), '') FROM {outbox} o
  WHERE `
	rowsThatFit = ` AND ` + fits + ` AND ($10::text[] = '{}' OR ` + OutboxState + ` = ANY ($10::text[]))`

	walkRows = `WITH looked AS MATERIALIZED (
    SELECT ''::text AS source, r.*
      FROM (SELECT o.id, o.key, o.last_error, ` + fits + ` AND ($10::text[] = '{}' OR ` + OutboxState + ` = ANY ($10::text[])) AS fits
              FROM {outbox} o WHERE `

	walkedUp = `
), horizon AS (
    SELECT min(f.id) AS id FROM (SELECT max(l.id) AS id FROM looked l GROUP BY l.source HAVING count(*) >= $8::bigint) f
)
(SELECT true, h.id, ''::text, ''::text, ''::text FROM horizon h WHERE h.id IS NOT NULL)
UNION ALL
(SELECT false, l.id, ''::text, l.key, coalesce(left(l.last_error, 1024), '')
   FROM looked l CROSS JOIN horizon h
  WHERE l.fits AND (h.id IS NULL OR l.id <= h.id) ORDER BY l.id LIMIT $9::bigint)`

	walkedDown = `
), horizon AS (
    SELECT max(f.id) AS id FROM (SELECT min(l.id) AS id FROM looked l GROUP BY l.source HAVING count(*) >= $8::bigint) f
)
(SELECT true, h.id, ''::text, ''::text, ''::text FROM horizon h WHERE h.id IS NOT NULL)
UNION ALL
(SELECT false, l.id, ''::text, l.key, coalesce(left(l.last_error, 1024), '')
   FROM looked l CROSS JOIN horizon h
  WHERE l.fits AND (h.id IS NULL OR l.id >= h.id) ORDER BY l.id DESC LIMIT $9::bigint)`

	grouped = `
), sources AS (
    SELECT l.source, count(*) >= max(l.most) AS more FROM looked l GROUP BY l.source
)
SELECT l.source, coalesce(left(l.last_error, 1024), '') AS error, count(*), min(l.created_at), max(l.created_at), s.more
  FROM looked l JOIN sources s ON s.source = l.source
 WHERE l.fits GROUP BY l.source, error, s.more ORDER BY count(*) DESC LIMIT $9::bigint`
)
