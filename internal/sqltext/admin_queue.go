package sqltext

const (
	// CountQueue returns, by state and topic, the number of messages, whether it is a lower bound, the age of the oldest
	// in seconds, and how many of them failed more than three times.
	//
	// Arguments: largest count of dead, ready and waiting messages.
	CountQueue = `WITH dead AS MATERIALIZED (
    SELECT 'dead' AS state, q.topic, q.attempts, ` + queueSince + ` FROM {queue} q WHERE q.state = 'dead' ORDER BY q.id
  LIMIT $1::bigint
), ready AS MATERIALIZED (
    SELECT ` + dueState + ` AS state, q.topic, q.attempts, ` + queueSince + ` FROM {queue} q
     WHERE q.state = 'processing' AND q.due_at IS NULL ORDER BY q.id LIMIT $1::bigint
), waiting AS MATERIALIZED (
    SELECT ` + dueState + ` AS state, q.topic, q.attempts, ` + queueSince + ` FROM {queue} q
     WHERE q.state = 'processing' AND q.due_at IS NOT NULL ORDER BY q.due_at, q.id LIMIT $1::bigint
)
SELECT c.state, c.topic, count(*), bool_or(c.more),
  coalesce(extract(epoch FROM clock_timestamp() - min(c.since)), 0)::float8, count(*) FILTER (WHERE c.attempts > 3)
  FROM (SELECT *, (SELECT count(*) >= $1::bigint FROM dead) AS more FROM dead
        UNION ALL SELECT *, (SELECT count(*) >= $1::bigint FROM ready) FROM ready
        UNION ALL SELECT *, (SELECT count(*) >= $1::bigint FROM waiting) FROM waiting) c
 GROUP BY c.state, c.topic`

	// QueueUnhandled lists topics of the queue with messages that have been due for a minute, none of which is or was
	// recently handled, with their number and the age of the first in seconds. No table shows which topics the dispatchers
	// handle, and messages may just wait for a slot. So while a dispatcher works, a topic counts only if a dispatcher has
	// found that it has no handler. Topics paused by an operator are left out.
	QueueUnhandled = `WITH seen AS MATERIALIZED (
    (SELECT q.topic, ` + unhandled + ` AS met, q.owner, q.locked_until, ` + queueSince + ` FROM {queue} q
      WHERE q.state = 'processing' AND q.due_at IS NULL ORDER BY q.id LIMIT 1000)
    UNION ALL
    (SELECT q.topic, ` + unhandled + `, q.owner, q.locked_until, ` + queueSince + ` FROM {queue} q
      WHERE q.state = 'processing' AND q.due_at IS NOT NULL AND q.due_at <= statement_timestamp()
      ORDER BY q.due_at, q.id LIMIT 1000)
    UNION ALL
    SELECT f.topic, f.met, f.owner, f.locked_until, f.since
      FROM (SELECT q.topic, ` + unhandled + ` AS met, q.owner, q.locked_until, ` + queueSince + ` FROM {queue} q
             WHERE q.state = 'processing' AND q.due_at IS NOT NULL AND q.due_at > statement_timestamp()
             ORDER BY q.due_at, q.id LIMIT 1000) f
     WHERE f.met
), lately AS MATERIALIZED (
    SELECT q.topic FROM {queue} q WHERE q.state = 'done' AND q.done_at > statement_timestamp() - interval '1 minute'
     ORDER BY q.done_at DESC LIMIT 10000
)
SELECT w.topic, count(*)::float8, extract(epoch FROM clock_timestamp() - min(w.since))::float8
  FROM seen w
 WHERE w.topic NOT IN (SELECT t.topic FROM {outbox_topics} t
                        WHERE t.forwarder = '00000000-0000-0000-0000-000000000000')
   AND w.topic NOT IN (
       SELECT l.topic FROM lately l
       UNION ALL
       (SELECT q.topic FROM {queue} q WHERE q.state = 'processing' AND q.due_at > statement_timestamp()
         AND q.attempts > 0
         ORDER BY q.due_at, q.id LIMIT 1000))
 GROUP BY w.topic
HAVING min(w.since) < clock_timestamp() - interval '1 minute' AND count(w.owner) FILTER (WHERE NOT w.met) = 0
   AND (bool_or(w.met) OR NOT EXISTS (SELECT FROM lately UNION ALL SELECT FROM seen s
                                       WHERE s.owner IS NOT NULL AND s.locked_until > statement_timestamp()))`

	// NoHandler is the error of a message for which a dispatcher has no handler. The message waits, and is due.
	NoHandler = `no handler for the topic`
	unhandled = `(q.attempts = 0 AND coalesce(q.last_error, '') = '` + NoHandler + `')`

	// QueueRates estimates, from the newest processed messages, the number processed per second in the last minute, by
	// topic.
	//
	// Arguments: rows to read.
	QueueRates = `WITH scanned AS (
    SELECT q.topic, q.done_at FROM {queue} q
     WHERE q.state = 'done' AND q.done_at > statement_timestamp() - interval '1 minute' ORDER BY q.done_at DESC
       LIMIT $1::bigint
)
SELECT l.topic, count(*) / (SELECT CASE WHEN count(*) < $1::bigint THEN 60
                                        ELSE greatest(1, extract(epoch FROM clock_timestamp() - min(done_at)))
                                   END::float8 FROM scanned)
  FROM scanned l GROUP BY l.topic`
)
