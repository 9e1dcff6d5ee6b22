package sqltext

// Constants that Fetch and FetchMore add to the lane of a row, to show why it was returned.
const (
	FromHeader   = 0
	FromID       = 64
	FromReady    = 128
	FromDue      = 192
	FromIDDead   = 256 // dead, and requested by id or by key
	FromDeferred = 320 // deferred, and may be continued

	WithoutPayload = 512  // added to the others: too large, so payload and metadata were left out
	Untried        = 1024 // added to the others: no attempt has failed since a requeue, which set attempts to 1
)

// The statements with which the forwarder reads the outbox in exact order. Package forwarder explains the protocol that
// all statements of the files forward_*.go implement.
const (
	// Fetch reads, under one snapshot, the new rows in the lanes of one owner. Its first result is a header with the
	// snapshot and values derived from it; then come the rows past each lane's cursor. The first column is the row's lane
	// plus one of the constants From..., because each further column costs time.
	//
	// The order of evaluation matters: the snapshot is the statement's, and the data flow between materialized CTEs forces
	// the sequence to be read after it, and the next transaction id after that (age() adds the distance from the
	// snapshot's xmax to it). A row id that is handed out after the sequence was read is above seq, and a transaction id
	// that was handed out before next_xid was read is below it.
	//
	// rewind is the lowest bound of a tracked transaction that this snapshot no longer shows in progress. All rows of such
	// a transaction lie above its bound, so each lane starts there.
	//
	// Rows are compared as (lane, id) rather than by lane = ... AND id > ..., and ordered by both, because only the
	// partial index can deliver that order. Ordered by id alone, the planner may choose to walk the primary key through
	// all published rows.
	//
	// Each lane is read over the same stretch of ids past its cursor. So lanes that start at the same place, as after a
	// long transaction, share the pages of the table that they read: a page of many published rows is loaded once, not
	// once per lane.
	//
	// Arguments by lane have a value for each of the 64 lanes, in order, so that a lane finds its value by its number.
	// Otherwise a generic plan would compare each lane with each argument.
	//
	// Arguments: scope, owner; tracked transaction ids and their bounds; lower ends of tracked segments and their bounds;
	// by lane its epoch (0 = not to be read), cursor, limit, and how much that grows if the lane starts below its cursor;
	// topics (empty = all); how many ids past its cursor a lane is read; how large a row may be to come as a whole.
	//
	// The payload of larger rows is NULL, so the size of the result is bounded; FetchPayloads reads it. Computing its size
	// reads none of it, wherever it is stored. Their metadata are reduced to the generation, which shows whether the
	// message was requeued again.
	Fetch = fetchHeader + fetchReady

	// FetchRange is the variant of Fetch for lanes that all start in one place and own most of the rows that follow. It
	// reads that range of the primary key once instead of the index of each lane, which costs a third less per row because
	// the rows of a page are visited together. The limit is the sum of the lanes' limits.
	//
	// Arguments: as for Fetch.
	FetchRange = fetchHeader + fetchRange

	// FetchApart is the variant of Fetch for the connection that only reads. It compares ids on their own as well as in
	// rows, so that it reads only the partitions that it needs. On other connections, where the planner may sort, it
	// underestimates a range and would sort the rows of the primary key.
	//
	// Arguments: as for Fetch.
	FetchApart = fetchHeader + fetchReadyApart

	// FetchMoreApart is the variant of FetchMore for the connection that only reads.
	//
	// Arguments: as for FetchMore.
	FetchMoreApart = fetchHeader + fetchReadyApart + fetchByID + fetchDue + fetchDeferredApart

	// FetchMore also reads rows by id, due rows, and deferred rows. It is separate from Fetch because most reads need none
	// of these and the statement is planned each time.
	//
	// Arguments: as for Fetch; ids, ascending; whether to include dead rows among them; by lane the largest number of
	// due rows (empty array to leave them out), and topics whose due rows to leave out, unless these block their keys; by
	// lane the first id, the last id and the largest number of deferred rows (empty array to leave them out), the lanes to
	// read for all keys, as bits, and the keys for the other lanes; keys whose due rows to leave out in the same way. Dead
	// rows of the keys for the other lanes are returned as if requested by id.
	FetchMore = fetchHeader + fetchReady + fetchByID + fetchDue + fetchDeferred

	// FetchRangeMore is FetchRange with the additional rows of FetchMore.
	//
	// Arguments: as for FetchMore.
	FetchRangeMore = fetchHeader + fetchRange + fetchByID + fetchDue + fetchDeferredApart

	fetchHeader = `WITH clock AS MATERIALIZED (
    SELECT s.last_value - (NOT s.is_called)::int AS seq, pg_current_snapshot() AS snap, clock_timestamp() AS at
      FROM {outbox_id_seq} s
     WHERE ` + isReadCommitted + ` AND ` + isUTF8 + `
), now AS MATERIALIZED (
    SELECT seq, snap, at, xmax, xmax + age(xmax_xid) AS next_xid
      FROM (SELECT seq, snap, at, pg_snapshot_xmax(snap)::text::bigint AS xmax, pg_snapshot_xmax(snap)::xid AS xmax_xid
              FROM clock) c
), rewind AS MATERIALIZED (
    SELECT min(t.bound) AS id FROM (
        SELECT x.bound FROM now CROSS JOIN unnest($3::bigint[], $4::bigint[]) AS x(xid, bound)
         WHERE pg_visible_in_snapshot(x.xid::text::xid8, now.snap)
        UNION ALL
        SELECT g.bound FROM now CROSS JOIN unnest($5::bigint[], $6::bigint[]) AS g(lo, bound)
         WHERE g.lo < now.xmax
    ) t
), owned AS MATERIALIZED (
    SELECT l.lane, least(w.cursor, rewind.id) AS cursor, now.at,
           w.lim + CASE WHEN rewind.id < w.cursor THEN w.rewound ELSE 0 END AS lim
      FROM rewind CROSS JOIN now CROSS JOIN {lanes} l
     CROSS JOIN LATERAL (SELECT ($8::bigint[])[l.lane + 1], ($9::bigint[])[l.lane + 1],
       ($10::bigint[])[l.lane + 1]) AS w(cursor, lim, rewound)
     WHERE l.scope = $1::text AND l.owner = $2::uuid AND l.epoch = ($7::bigint[])[l.lane + 1]
)
SELECT 0::smallint AS lane, now.seq AS id, now.snap::text AS uuid, coalesce({life}, '') AS topic,
       concat_ws(' ', now.next_xid, coalesce(rewind.id, -1), pg_is_in_recovery()::int,
                 (SELECT coalesce(bit_or(1::bigint << owned.lane), 0) FROM owned)) AS key,
       NULL::bytea AS payload, NULL::jsonb AS metadata, now.at AS created_at, 0 AS attempts
  FROM now CROSS JOIN rewind`

	// Values that clients cannot read, such as infinity, must not stop the read.
	createdAt = `least(greatest(o.created_at, timestamptz '1970-01-02 00:00Z'), timestamptz '9999-12-30 00:00Z') ` +
		`AS created_at`

	// A compressed value may be larger than its size here; values under a kilobyte are hardly ever compressed.
	size  = `coalesce(octet_length(o.payload), 0) + octet_length(o.metadata::text)`
	whole = `coalesce(octet_length(o.payload), 0) <= $13::bigint AND (pg_column_size(o.metadata) < 1000 OR ` + size +
		` <= $13::bigint) AS whole`

	content = `CASE WHEN r.whole THEN r.payload END, CASE WHEN r.whole THEN r.metadata
       ELSE jsonb_build_object('outbox_generation', r.metadata->'outbox_generation') END, r.created_at, r.attempts`

	fetchReady = readyPast + readyOwned

	fetchReadyApart = readyPast + `
          AND o.id > owned.cursor AND o.id <= owned.cursor + $12::bigint` + readyOwned

	readyPast = `
UNION ALL
SELECT r.lane + CASE WHEN r.whole THEN 128 ELSE 640 END::smallint, r.id, r.uuid, r.topic, r.key,
       ` + content + `
  FROM owned CROSS JOIN LATERAL (
       SELECT o.lane, o.id, o.uuid, o.topic, o.key, o.payload, o.metadata, ` + createdAt + `, o.attempts, ` + whole + `
         FROM {outbox} o
        WHERE (o.lane, o.id) > (owned.lane, owned.cursor)
          AND (o.lane, o.id) <= (owned.lane, owned.cursor + $12::bigint)`

	readyOwned = `
          AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL
          AND ($11::text[] = '{}' OR o.topic = ANY ($11::text[]))
        ORDER BY o.lane, o.id LIMIT owned.lim) r`

	fetchRange = `
UNION ALL
SELECT r.lane + CASE WHEN r.whole THEN 128 ELSE 640 END::smallint, r.id, r.uuid, r.topic, r.key,
       ` + content + `
  FROM (SELECT min(owned.cursor), sum(owned.lim)::bigint, bit_or(1::bigint << owned.lane) FROM owned) AS w(cursor, lim,
    lanes) CROSS JOIN LATERAL (
       SELECT o.lane, o.id, o.uuid, o.topic, o.key, o.payload, o.metadata, ` + createdAt + `, o.attempts, ` + whole + `
         FROM {outbox} o
        WHERE o.id > w.cursor AND o.id <= w.cursor + $12::bigint AND w.lanes & (1::bigint << o.lane) <> 0
          AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL
          AND ($11::text[] = '{}' OR o.topic = ANY ($11::text[]))
        ORDER BY o.id LIMIT w.lim) r`

	fetchByID = `
UNION ALL
SELECT r.lane + CASE WHEN r.dead THEN 256 ELSE 64 END::smallint + CASE WHEN r.whole THEN 0 ELSE 512 END::smallint +
  CASE WHEN r.untried THEN 1024 ELSE 0 END::smallint, r.id, r.uuid, r.topic, r.key,
       ` + content + `
  FROM (SELECT o.lane, o.id, o.uuid, o.topic, o.key, o.payload, o.metadata, ` + createdAt + `, o.attempts,
    o.dead_at IS NOT NULL AS dead, ` + untried + `, ` + whole + `
          FROM {outbox} o
         WHERE o.id = ANY ($14::bigint[])
           AND o.id BETWEEN ($14::bigint[])[1] AND ($14::bigint[])[cardinality($14::bigint[])]
           AND o.published_at IS NULL AND (o.dead_at IS NULL OR $15::bool)
           AND o.lane IN (SELECT owned.lane FROM owned)) r`

	// A row that blocks its key is read again by id when it is tried. One past the cursor waits for the rows before it.
	fetchDue = `
UNION ALL
SELECT r.lane + CASE WHEN r.whole THEN 192 ELSE 704 END::smallint + CASE WHEN r.untried THEN 1024 ELSE 0 END::smallint,
  r.id, r.uuid, r.topic, r.key,
       ` + content + `
  FROM owned CROSS JOIN LATERAL (
       SELECT o.lane, o.id, o.uuid, o.topic, o.key, o.payload, o.metadata, ` + createdAt + `, o.attempts,
              ` + untried + `, (o.key = '' OR o.attempts = 0 AND o.id <= owned.cursor) AND ` + whole + `
         FROM {outbox} o
        WHERE (o.lane, o.due_at) <= (owned.lane, owned.at) AND o.lane >= owned.lane
          AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NOT NULL
          AND ($11::text[] = '{}' OR o.topic = ANY ($11::text[]))
          AND (o.attempts > 0 AND o.key <> '' OR o.topic <> ALL ($17::text[]) AND o.key <> ALL ($23::text[]))
        ORDER BY o.lane, o.due_at, o.id LIMIT ($16::bigint[])[owned.lane + 1]) r
 WHERE $16::bigint[] <> '{}'`

	fetchDeferred = deferredFrom + deferredOwned + deferredDead

	fetchDeferredApart = deferredFrom + `
          AND o.id >= ($18::bigint[])[owned.lane + 1]
            AND o.id <= ($19::bigint[])[owned.lane + 1]` + deferredOwned + deferredDead

	deferredFrom = `
UNION ALL
SELECT r.lane + CASE WHEN r.whole THEN 320 ELSE 832 END::smallint, r.id, r.uuid, r.topic, r.key,
       ` + content + `
  FROM owned CROSS JOIN LATERAL (
       SELECT o.lane, o.id, o.uuid, o.topic, o.key, o.payload, o.metadata, ` + createdAt + `, o.attempts, ` + whole + `
         FROM {outbox} o
        WHERE (o.lane, o.id) >= (owned.lane, ($18::bigint[])[owned.lane + 1])
          AND (o.lane, o.id) <= (owned.lane, ($19::bigint[])[owned.lane + 1])`

	deferredOwned = `
          AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL
          AND ($11::text[] = '{}' OR o.topic = ANY ($11::text[]))
          AND ($21::bigint & (1::bigint << o.lane) <> 0 OR o.key = ANY ($22::text[]))
        ORDER BY o.lane, o.id LIMIT ($20::bigint[])[owned.lane + 1]) r
 WHERE $20::bigint[] <> '{}'`

	// A row of such a key that was marked dead after it was deferred also blocks the key.
	deferredDead = `
UNION ALL
SELECT r.lane + 256::smallint, r.id, r.uuid, r.topic, r.key, NULL, NULL, r.created_at, r.attempts
  FROM owned CROSS JOIN LATERAL (
       SELECT o.lane, o.id, o.uuid, o.topic, o.key, ` + createdAt + `, o.attempts
         FROM {outbox} o
        WHERE (o.lane, o.id) >= (owned.lane, ($18::bigint[])[owned.lane + 1])
          AND (o.lane, o.id) <= (owned.lane, ($19::bigint[])[owned.lane + 1])
          AND o.dead_at IS NOT NULL AND o.published_at IS NULL
          AND ($11::text[] = '{}' OR o.topic = ANY ($11::text[])) AND o.key = ANY ($22::text[])
        ORDER BY o.lane, o.id LIMIT ($20::bigint[])[owned.lane + 1]) r
 WHERE $15::bool AND $20::bigint[] <> '{}' AND $22::text[] <> '{}'`

	// FetchPayloads reads large payloads that the other reads left out, in the requested order: as many as fit, and the
	// first however large it is. Rows that must no longer be published are missing as well. It is a separate statement
	// because its arguments depend on the results of the others. A standby returns the id -1 first: it may lag behind the
	// others.
	//
	// Arguments: ids; room in bytes.
	FetchPayloads = `SELECT -1::bigint, ''::text, NULL::bytea, NULL::jsonb WHERE pg_is_in_recovery()
UNION ALL
(SELECT s.id, s.uuid, s.payload, s.metadata
  FROM (SELECT o.id, o.uuid, o.payload, o.metadata, w.n,
               row_number() OVER wanted = 1 OR sum(` + size + `) OVER wanted <= $2::bigint AS fits
          FROM unnest($1::bigint[]) WITH ORDINALITY AS w(id, n) JOIN {outbox} o ON o.id = w.id
         WHERE o.published_at IS NULL AND o.dead_at IS NULL
        WINDOW wanted AS (ORDER BY w.n ROWS UNBOUNDED PRECEDING)) s
 WHERE s.fits
 ORDER BY s.n)`

	// Writers lists the transaction ids (the lower 32 bits) that may have written to the outbox: those that hold a
	// writer's lock on it, which lasts to the end of the transaction. A standby has none of these locks, and returns -1.
	Writers = `SELECT -1::bigint WHERE pg_is_in_recovery()
UNION ALL
SELECT x.transactionid::text::bigint FROM pg_locks x
 WHERE x.locktype = 'transactionid' AND x.granted AND x.mode = 'ExclusiveLock'
   AND EXISTS (SELECT FROM pg_locks r
                WHERE r.virtualtransaction = x.virtualtransaction AND r.locktype = 'relation'
                  AND r.relation = {outbox_text}::regclass
                  AND r.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                  AND r.mode <> 'AccessShareLock')`

	// CreateIncarnation names the server's incarnation. It runs when a read found none.
	CreateIncarnation = `INSERT INTO {outbox_life} DEFAULT VALUES ON CONFLICT DO NOTHING`
)
