package sqltext

// Scrape returns the figures for a monitoring system in one statement, because it runs every few seconds; package admin
// uses several. Each row has a kind (outbox, inbox, queue, unhandled, reads, paused, forwarders, lanes), a topic (empty
// = all, in reads), consumer or scope, a state or pauser, the count, whether it is a lower bound, and the age of the
// oldest in seconds.
//
// Arguments: as for CountDead, and the largest count per lane.
const Scrape = `SELECT 'outbox', s.topic, 'dead', s.n::float8, s.more, s.oldest::float8
  FROM (` + CountDead + `) AS s(topic, n, more, oldest)
UNION ALL
SELECT 'outbox', s.topic, 'failing', s.n, s.more, s.oldest
  FROM (` + CountFailing + `) AS s(topic, n, more, oldest)
UNION ALL
SELECT 'outbox', s.topic, s.state, s.n, s.more, s.oldest
  FROM (` + readyOfLanes + `$3` + ofLanes + `$3` + countedLanes + `) AS s(topic, n, more, oldest, state)
  WHERE s.state <> 'failing'
UNION ALL
SELECT 'outbox', s.topic, s.state, s.n, s.more, s.oldest
  FROM (` + delayedOfLanes + `$3` + ofLanes + `$3` + countedLanes + `) AS s(topic, n, more, oldest, state)
  WHERE s.state <> 'failing'
UNION ALL
SELECT 'inbox', s.consumer, 'dead', s.n, s.more, s.oldest
  FROM (` + CountInboxDead + `) AS s(consumer, n, more, oldest)
UNION ALL
SELECT 'inbox', s.consumer, 'failing', s.n, s.more, s.oldest
  FROM (` + CountInboxFailing + `) AS s(consumer, n, more, oldest)
UNION ALL
SELECT 'queue', s.topic, s.state, s.n, s.more, s.oldest
  FROM (` + CountQueue + `) AS s(state, topic, n, more, oldest)
UNION ALL
SELECT 'unhandled', s.topic, '', s.n, false, s.oldest
  FROM (` + QueueUnhandled + `) AS s(topic, n, oldest)
UNION ALL
SELECT 'reads', r.topic, '', 1, false, 0
  FROM {forwarders} f CROSS JOIN LATERAL unnest(CASE f.topics WHEN '{}' THEN ARRAY[''] ELSE f.topics END) AS r(topic)
 WHERE f.expires_at > clock_timestamp() GROUP BY r.topic
UNION ALL
SELECT 'paused', s.topic, CASE s.by WHEN 'operator' THEN 'operator' ELSE 'forwarder' END, count(*), false,
  extract(epoch FROM clock_timestamp() - min(s.since))
  FROM (` + pauses + `) AS s(topic, by, since, reason) GROUP BY 2, 3
UNION ALL
SELECT 'forwarders', '', CASE WHEN f.expires_at > clock_timestamp() THEN 'alive' ELSE 'vanished' END, count(*), false, 0
  FROM {forwarders} f GROUP BY 3
UNION ALL
SELECT 'lanes', l.scope, '', count(f.id), false, 0
  FROM {lanes} l LEFT JOIN {forwarders} f ON f.id = l.owner AND ` + isRunning + ` GROUP BY l.scope`
