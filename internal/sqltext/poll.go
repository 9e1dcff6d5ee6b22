package sqltext

// The statements that poll an outbox without a forwarder for work.
const (
	// PollOutbox returns the last id drawn from the sequence, the lowest transaction id in progress, the next one to be
	// assigned, whether the server is a standby, whether a message above a given id is ready, and the seconds until the
	// next one is due (NULL: no message waits). The last two are read only if the id differs from the argument, or on
	// request, when all ready messages count. So an idle outbox costs one row. The id, the snapshot and the next
	// transaction id are taken in the order that Fetch explains.
	//
	// Arguments: the last id seen, whether to read everything, topics (empty = all).
	PollOutbox = `WITH clock AS MATERIALIZED (
    SELECT s.last_value - (NOT s.is_called)::int AS seq, pg_current_snapshot() AS snap FROM {outbox_id_seq} s
), now AS MATERIALIZED (
    SELECT seq, xmin, xmax + age(xmax_xid) AS next_xid, $2::bool OR seq <> $1::bigint AS changed
      FROM (SELECT seq, pg_snapshot_xmin(snap)::text::bigint AS xmin, pg_snapshot_xmax(snap)::text::bigint AS xmax,
                   pg_snapshot_xmax(snap)::xid AS xmax_xid FROM clock) c
)
SELECT now.seq, now.xmin, now.next_xid, pg_is_in_recovery(),
       CASE WHEN now.changed THEN EXISTS (
           SELECT FROM generate_series(0, 63) AS w(lane) CROSS JOIN LATERAL (
                  SELECT FROM {outbox} o
                   WHERE (o.lane, o.id) > (w.lane::smallint, CASE WHEN $2::bool THEN -1 ELSE $1::bigint END)
                     AND (o.lane, o.id) <= (w.lane::smallint, 9223372036854775807)
                     AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL
                     AND ($3::text[] = '{}' OR o.topic = ANY ($3::text[]))
                   ORDER BY o.lane, o.id LIMIT 1) r) ELSE false END,
       CASE WHEN now.changed THEN (
           SELECT CASE WHEN min(r.due_at) = 'infinity' THEN NULL WHEN min(r.due_at) = '-infinity' THEN 0
                       ELSE extract(epoch FROM min(r.due_at) - clock_timestamp()) END
             FROM generate_series(0, 63) AS w(lane) CROSS JOIN LATERAL (
                  SELECT o.due_at FROM {outbox} o
                   WHERE (o.lane, o.due_at) >= (w.lane::smallint, '-infinity'::timestamptz)
                     AND (o.lane, o.due_at) <= (w.lane::smallint, 'infinity'::timestamptz)
                     AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NOT NULL
                     AND ($3::text[] = '{}' OR o.topic = ANY ($3::text[]))
                   ORDER BY o.lane, o.due_at LIMIT 1) r) END::float8
  FROM now`

	// PollOutboxes returns the last ids drawn from many sequences of one database; 0 for a sequence that is missing or
	// that the role may not read, whose own poll then returns the error.
	//
	// Arguments: sequences, as SQL.
	PollOutboxes = `SELECT coalesce(CASE WHEN has_sequence_privilege(s.id, 'SELECT') THEN pg_sequence_last_value(s.id) END, 0)
  FROM (SELECT n.ord, to_regclass(n.name) AS id FROM unnest($1::text[]) WITH ORDINALITY AS n(name, ord)) s
 ORDER BY s.ord`

	// PollQueues returns for each of many queues of one database the last id drawn, 0 if it cannot be read, and the
	// number of counted row updates, which is delayed and may be lost.
	//
	// Arguments: sequences and tables, as SQL.
	PollQueues = `SELECT coalesce(CASE WHEN has_sequence_privilege(s.sequence,
       'SELECT') THEN pg_sequence_last_value(s.sequence) END, 0),
       coalesce(pg_stat_get_tuples_updated(s.relation), 0)
  FROM (SELECT n.ord, to_regclass(n.sequence) AS sequence, to_regclass(n.relation) AS relation
          FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS n(sequence, relation, ord)) s
 ORDER BY s.ord`

	// RestOfQueue returns the last id drawn, whether an unfinished message does not wait, and the seconds until the next
	// one is due (NULL: no message waits).
	RestOfQueue = `WITH clock AS MATERIALIZED (SELECT last_value - (NOT is_called)::int AS last FROM {queue_id_seq})
SELECT c.last,
       EXISTS (SELECT FROM {queue} q WHERE q.state = 'processing' AND q.due_at IS NULL)
       OR EXISTS (SELECT FROM {queue} q WHERE q.due_at <= statement_timestamp() AND q.state = 'processing'
         AND q.due_at IS NOT NULL),
       (SELECT CASE WHEN isfinite(w.due_at) THEN extract(epoch FROM w.due_at - clock_timestamp()) END
          FROM (SELECT q.due_at FROM {queue} q
                 WHERE q.due_at > statement_timestamp() AND q.state = 'processing' AND q.due_at IS NOT NULL
                 ORDER BY q.due_at, q.id LIMIT 1) w)::float8
  FROM clock c`
)
