package sqltext

// The statements of package trend and of estimates. The kept rows are the history: each has the times when it was
// written and published. So nothing else is stored, and sampling rows by id costs the same however many there are.
const (
	// TrendBounds returns the smallest id, the first id written at or after a time, and the largest id. Ids ascend in the
	// order of writing, so it searches by bisection.
	//
	// Arguments: the time (RFC 3339 text).
	TrendBounds = `WITH RECURSIVE ends AS MATERIALIZED (
    SELECT coalesce((SELECT o.id FROM {outbox} o ORDER BY o.id LIMIT 1), 1) AS lo,
           coalesce((SELECT o.id FROM {outbox} o ORDER BY o.id DESC LIMIT 1), 0) AS hi
), search(lo, hi) AS (
    SELECT e.lo, e.hi + 1 FROM ends e
    UNION ALL
    SELECT CASE WHEN m.early THEN s.mid + 1 ELSE s.lo END, CASE WHEN m.early THEN s.hi ELSE s.mid END
      FROM (SELECT lo, hi, (lo + hi) / 2 AS mid FROM search WHERE lo < hi) s CROSS JOIN LATERAL (
           SELECT coalesce((SELECT o.created_at < $1::text::timestamptz FROM {outbox} o
                             WHERE o.id >= s.mid ORDER BY o.id LIMIT 1), false) AS early) m
)
SELECT e.lo, (SELECT max(s.lo) FROM search s), e.hi FROM ends e`

	// TrendSample reads rows with random ids, or all rows if there are few, and counts them by topic and by the steps
	// in which they were written and published.
	//
	// Arguments: first and last id, number of ids, start of the first step (RFC 3339 text), seconds of a step.
	TrendSample = `WITH pick AS MATERIALIZED ( -- by itself, as no index is looked through for what is random
    SELECT CASE WHEN $2::bigint - $1::bigint < $3::bigint THEN $1::bigint + i
           ELSE $1::bigint + floor(random() * ($2::bigint - $1::bigint + 1))::bigint END AS id
      FROM generate_series(0, least($3::bigint, $2::bigint - $1::bigint + 1) - 1) AS i
)
SELECT r.topic, floor(extract(epoch FROM r.created_at - $4::text::timestamptz) / $5::float8)::bigint,
       coalesce(floor(extract(epoch FROM r.published_at - $4::text::timestamptz) / $5::float8)::bigint, -1), count(*)
  FROM pick p CROSS JOIN LATERAL (
       SELECT o.topic, greatest(o.created_at, timestamptz '1970-01-02 00:00Z') AS created_at,
              CASE WHEN o.dead_at IS NULL THEN greatest(o.published_at, timestamptz '1970-01-02 00:00Z') END
                AS published_at
         FROM {outbox} o WHERE o.id = p.id LIMIT 1) r
 GROUP BY 1, 2, 3`

	// OutboxPages returns the number of pages of the outbox.
	OutboxPages = `SELECT (pg_relation_size({outbox_text}::regclass) + coalesce((SELECT sum(pg_relation_size(i.inhrelid))
  FROM pg_inherits i WHERE i.inhparent = {outbox_text}::regclass), 0))::bigint / current_setting('block_size')::bigint`

	// SampleOutbox counts unsettled messages in a sample of the pages, by topic and state.
	//
	// Arguments: percentage of the pages.
	SampleOutbox = `SELECT o.topic, ` + OutboxState + `, count(*) FROM {outbox} o TABLESAMPLE SYSTEM ($1::float8::real)
 WHERE o.published_at IS NULL GROUP BY 1, 2`

	// QueuePages and SampleQueue do the same for the queue.
	QueuePages  = `SELECT pg_relation_size(to_regclass('{queue}')) / current_setting('block_size')::bigint`
	SampleQueue = `SELECT q.topic, ` + QueueState + `, count(*) FROM {queue} q TABLESAMPLE SYSTEM ($1::float8::real)
 WHERE q.state IN ('processing', 'dead') GROUP BY 1, 2`
)
