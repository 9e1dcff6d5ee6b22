package sqltext

// The statements of admin.Doctor. They read catalogs and the server's statistics, and at most some thousand rows of our
// tables.
const (
	// DoctorRole returns the current role, whether it sees the activity of other sessions, and the database.
	DoctorRole = `SELECT current_user::text, pg_has_role('pg_read_all_stats', 'USAGE'), current_database()::text`

	// DoctorSchema returns the schema of the outbox.
	DoctorSchema = `SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = to_regclass({outbox_text})`

	// DoctorWriters lists roles that may write messages but may not draw ids for them.
	DoctorWriters = `SELECT DISTINCT r.rolname::text
  FROM pg_class c JOIN LATERAL (
       SELECT x.grantee FROM aclexplode(c.relacl) x WHERE x.privilege_type = 'INSERT'
       UNION ALL
       SELECT x.grantee FROM pg_attribute t CROSS JOIN LATERAL aclexplode(t.attacl) x
        WHERE t.attrelid = c.oid AND t.attname = 'payload' AND x.privilege_type = 'INSERT') g ON true
  JOIN pg_roles r ON r.oid = g.grantee
 WHERE c.oid = to_regclass({outbox_text}) AND NOT has_sequence_privilege(r.oid, to_regclass({outbox_id_seq_text}),
   'USAGE')`

	// DoctorLocks lists sessions whose transactions have held locks on tables for some time, or wait for a lock on the
	// whole table, or have or wait for a lock on a whole partition, at any depth: the modes, whether they lock the whole
	// table, and whether they are granted. It leaves out vacuum and analyze, which block nothing: vacuum gives up its lock
	// for truncating a table as soon as a session waits for it.
	//
	// Arguments: tables, seconds.
	DoctorLocks = `SELECT ` + activity + `, l.name, l.modes, l.whole, l.granted
  FROM (SELECT k.pid, t.name, string_agg(DISTINCT k.mode, ', ') AS modes, w.whole, k.granted
          FROM (WITH RECURSIVE parts(oid, name, part) AS (
                SELECT to_regclass(n.name)::oid, n.name, false FROM unnest($1::text[]) AS n(name)
                 UNION SELECT i.inhrelid, i.inhrelid::regclass::text, true
                  FROM parts p JOIN pg_inherits i ON i.inhparent = p.oid) SELECT * FROM parts) t
          JOIN pg_locks k ON k.relation = t.oid AND k.locktype = 'relation'
         CROSS JOIN LATERAL (SELECT k.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                 'AccessExclusiveLock') AS whole) w
         WHERE k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
           AND k.mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock') AND k.pid NOT IN (` + vacuums + `)
           AND (w.whole OR NOT t.part)
         GROUP BY k.pid, t.name, w.whole, k.granted) l
  JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE a.pid <> pg_backend_pid() AND (l.granted OR l.whole) AND a.wait_event IS DISTINCT FROM 'SyncRep'
   AND a.xact_start < clock_timestamp() - $2::float8 * interval '1 second'
 ORDER BY a.xact_start LIMIT 20`

	// DoctorSyncRep returns the number of sessions of this database that wait for a synchronous standby to confirm a
	// commit, the longest wait in seconds, and the setting that names the standbys.
	//
	// Arguments: seconds.
	DoctorSyncRep = `SELECT count(*), coalesce(max(extract(epoch FROM clock_timestamp() - a.state_change)), 0)::float8,
       current_setting('synchronous_standby_names')
  FROM pg_stat_activity a
 WHERE a.datname = current_database() AND a.wait_event = 'SyncRep'
   AND a.query_start < clock_timestamp() - $1::float8 * interval '1 second'`

	// DoctorDiscarded counts the messages of each table that DeadRetention discarded in the last day. Each forwarder scope
	// and dispatcher writes an entry for each table and hour, and one for each second of work on a backlog.
	//
	// Arguments: actor.
	DoctorDiscarded = `SELECT a.filter->>'in', sum(a.touched)::bigint
  FROM (SELECT a.* FROM {audit} a ORDER BY a.id DESC LIMIT 10000) a
 WHERE a.actor = $1::text AND a.action = 'discard' AND a.at > statement_timestamp() - interval '1 day'
 GROUP BY 1 HAVING sum(a.touched) > 0 ORDER BY 1`

	// DoctorObstacles lists user-made objects on the tables that may swallow, refuse or hide rows: kind, table, name. rule
	// and trigger (of any update): they may refuse to settle a row; schema.Check reports those that swallow inserts.
	// unique: an index that refuses rows that ours accept; unique constraint: such an index of a constraint. child: a
	// table that inherits. detached: a table that has the name of a partition of the outbox, but is not attached.
	// nodefault: a partitioned outbox without a default. security: row security that applies to a role that is not the
	// owner. sequence: the number of ids left.
	//
	// Arguments: tables, name of the outbox without its schema.
	DoctorObstacles = `WITH t AS MATERIALIZED (SELECT n.name, c.oid, c.relkind, c.relnamespace, c.relrowsecurity
    FROM unnest($1::text[]) AS n(name) JOIN pg_class c ON c.oid = to_regclass(n.name)),
  parts AS MATERIALIZED (SELECT t.name, t.oid FROM t UNION SELECT t.name, i.inhrelid FROM t
    JOIN pg_inherits i ON i.inhparent = t.oid)
SELECT 'trigger', p.name, g.tgname::text
  FROM parts p JOIN pg_trigger g ON g.tgrelid = p.oid AND NOT g.tgisinternal AND g.tgenabled <> 'D'
    AND g.tgtype::int & 16 = 16
   AND g.tgparentid = 0
UNION ALL SELECT 'rule', p.name, r.rulename::text FROM parts p JOIN pg_rewrite r ON r.ev_class = p.oid
  AND r.ev_enabled <> 'D'
UNION ALL SELECT 'check', t.name, k.conname::text FROM t JOIN pg_class c ON c.oid = t.oid
  JOIN pg_constraint k ON k.conrelid = t.oid AND k.contype = 'c'
   AND NOT k.convalidated AND k.conname <> c.relname || '_below' WHERE t.relkind = 'r'
UNION ALL SELECT CASE WHEN k.oid IS NULL THEN 'unique' ELSE 'unique constraint' END, t.name,
       coalesce(quote_ident(k.conname), x.indexrelid::regclass::text)
  FROM t JOIN pg_index x ON x.indrelid = t.oid AND (x.indisunique OR x.indisexclusion) AND NOT x.indisprimary
  LEFT JOIN pg_constraint k ON k.conrelid = t.oid AND k.conindid = x.indexrelid AND k.contype IN ('u', 'x')
UNION ALL SELECT 'child', t.name, i.inhrelid::regclass::text FROM t JOIN pg_inherits i ON i.inhparent = t.oid
  WHERE t.relkind = 'r'
UNION ALL SELECT 'detached', t.name, c.oid::regclass::text FROM t JOIN pg_class c ON c.relnamespace = t.relnamespace
   AND c.relkind = 'r' AND NOT c.relispartition AND c.relname ~ '_(p[0-9]+|default)$'
   AND regexp_replace(c.relname, '_(p[0-9]+|default)$', '') = $2::text
 WHERE t.relkind = 'p' AND t.oid = to_regclass({outbox_text})
UNION ALL SELECT 'nodefault', t.name, '' FROM t
 WHERE t.relkind = 'p' AND NOT EXISTS (SELECT FROM pg_partitioned_table d WHERE d.partrelid = t.oid
   AND d.partdefid <> 0)
UNION ALL SELECT 'security', t.name, '' FROM t WHERE t.relrowsecurity
UNION ALL SELECT 'sequence', s.seqrelid::regclass::text, (s.seqmax - coalesce(pg_sequence_last_value(s.seqrelid),
  0))::text
  FROM pg_sequence s WHERE s.seqrelid IN (to_regclass({outbox_id_seq_text}), to_regclass({queue_id_seq_text}))
   AND has_sequence_privilege(s.seqrelid, 'SELECT, USAGE')
   AND s.seqmax - coalesce(pg_sequence_last_value(s.seqrelid), 0) < 1000000
ORDER BY 1, 2, 3`

	// DoctorPrepared lists prepared transactions older than this many seconds.
	//
	// Arguments: seconds.
	DoctorPrepared = `SELECT p.gid, p.owner::text, extract(epoch FROM clock_timestamp() - p.prepared)::float8
  FROM pg_prepared_xacts p
 WHERE p.database = current_database() AND p.prepared < clock_timestamp() - $1::float8 * interval '1 second'
 ORDER BY p.prepared LIMIT 20`

	// DoctorHorizon lists the snapshots that keep dead rows of this database from being removed, oldest first: the kind,
	// the name, how many transactions ago it was taken, and the session, whose type is NULL if the role may not see it.
	// Other sessions disregard the snapshot of a vacuum, except while it analyzes. The horizon of a standby is held by its
	// connection, or by the slot that it uses, and belongs to no database.
	//
	// Arguments: how many transactions ago at least.
	DoctorHorizon = `SELECT h.kind, h.name, h.xids, ` + activity + `
  FROM (SELECT CASE WHEN s.datname IS NULL THEN 'standby' WHEN s.backend_type = 'autovacuum worker' THEN 'analyze'
    ELSE 'session' END AS kind,
               ''::text AS name, s.pid, greatest(age(s.backend_xmin), age(s.backend_xid))::bigint AS xids
          FROM pg_stat_activity s
         WHERE s.pid <> pg_backend_pid() AND (s.datname = current_database() OR s.datname IS NULL
           AND s.backend_type = 'walsender')
           AND s.backend_type IS DISTINCT FROM 'parallel worker' AND s.pid NOT IN (` + vacuums + `)
        UNION ALL
        SELECT CASE WHEN r.active THEN 'standby' ELSE 'slot' END, r.slot_name::text, r.active_pid, age(r.xmin)::bigint
          FROM pg_replication_slots r
        UNION ALL
        SELECT 'prepared', p.gid, NULL, age(p.transaction)::bigint FROM pg_prepared_xacts p
          WHERE p.database = current_database()) h
  LEFT JOIN pg_stat_activity a ON a.pid = h.pid
 WHERE h.xids >= $1::bigint ORDER BY h.xids DESC, h.kind = 'standby'
   LIMIT 5` // a standby also replays changes that a session here still needs

	vacuums = `SELECT v.pid FROM pg_stat_progress_vacuum v`

	// DoctorTables returns for each table the number of dead rows, the seconds since its last vacuum or since the
	// statistics began, and whether a vacuum is running. For a partitioned table it returns the sum of its partitions, and
	// the vacuum time of the partition with the most dead rows.
	//
	// Arguments: tables.
	DoctorTables = `SELECT n.name, sum(s.n_dead_tup)::bigint,
       (array_agg(extract(epoch FROM clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum, d.stats_reset,
         pg_postmaster_start_time()))::float8 ORDER BY s.n_dead_tup DESC))[1],
       bool_or(s.relid IN (SELECT v.relid FROM pg_stat_progress_vacuum v WHERE v.relid IS NOT NULL
         AND v.datname = current_database()))
  FROM unnest($1::text[]) WITH ORDINALITY AS n(name, at)
 CROSS JOIN LATERAL (
       SELECT to_regclass(n.name)::oid AS relid UNION ALL
       SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = to_regclass(n.name)) p
  JOIN pg_stat_all_tables s ON s.relid = p.relid
  LEFT JOIN pg_stat_database d ON d.datname = current_database()
 GROUP BY n.name, n.at ORDER BY n.at`

	// The state of a session is NULL if it may not be seen.
	activity = `coalesce(a.pid, 0)::bigint, coalesce(a.usename, '')::text, coalesce(a.application_name, ''),
  coalesce(a.state, 'unseen'),
       coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8, coalesce(host(a.client_addr), '')`
)

// The statements of Doctor on our own tables.
const (
	// DoctorForwarders lists forwarders with the seconds left of their leases, how many seconds each has waited for
	// others, the number of lanes that it owns, and the facts that it wrote about itself.
	DoctorForwarders = `SELECT f.id::text, f.name, f.scope, array_to_json(f.topics)::text,
       extract(epoch FROM f.expires_at - clock_timestamp())::float8,
       coalesce(extract(epoch FROM clock_timestamp() - f.waiting_since), 0)::float8, coalesce(l.lanes, 0), f.facts::text
  FROM {forwarders} f LEFT JOIN (SELECT owner, count(*) AS lanes FROM {lanes} GROUP BY owner) l ON l.owner = f.id
 ORDER BY f.expires_at, f.id`

	// DoctorWritten estimates from the newest rows the number of messages of a topic written per second in the last
	// minute.
	//
	// Arguments: topic, rows to read.
	DoctorWritten = `WITH scanned AS MATERIALIZED (
    SELECT o.topic, o.created_at FROM {outbox} o ORDER BY o.id DESC LIMIT $2::bigint
)
SELECT (count(*) FILTER (WHERE l.topic = $1::text AND l.created_at > clock_timestamp() - interval '1 minute') /
        CASE WHEN count(*) < $2::bigint THEN 60
             ELSE greatest(1,
               least(60, extract(epoch FROM clock_timestamp() - least(min(l.created_at), clock_timestamp()))))
               END)::float8
  FROM scanned l`

	// DoctorFailing lists messages that have failed at least this many times.
	//
	// Arguments: failing messages to read, attempts.
	DoctorFailing = `SELECT o.id, o.topic, o.key, o.attempts, coalesce(left(o.last_error, 1024), ''),
       extract(epoch FROM clock_timestamp() - o.created_at)::float8
  FROM (SELECT * FROM (SELECT o.id, o.topic, o.key, o.attempts, o.last_error, ` + createdAt + ` FROM {outbox} o
                        WHERE ` + isFailing + ` ORDER BY o.topic, o.id LIMIT $1::bigint) first
         WHERE first.attempts >= $2::bigint) o ORDER BY o.topic, o.id`

	// DoctorQueue reads the queue's first ready messages and those due for longest, and returns by topic: the number of
	// unclaimed ones and the seconds since the first was due; the number with an owner whose lease expired this long
	// ago, and the seconds since the first; the number that lost an owner in that way, the most times one did, and its
	// source and id. The topics with the worst trouble come first.
	//
	// Arguments: messages to read in each place, seconds.
	DoctorQueue = `WITH scanned AS MATERIALIZED (
    (SELECT q.topic, ` + firstSeenAt + `, q.due_at, q.owner, q.locked_until, q.crashes, q.source,
            q.message_id, false AS later
       FROM {queue} q
      WHERE q.state = 'processing' AND q.due_at IS NULL ORDER BY q.id LIMIT $1::bigint)
    UNION ALL
    (SELECT q.topic, ` + firstSeenAt + `, q.due_at, q.owner, q.locked_until, q.crashes, q.source,
            q.message_id, false
       FROM {queue} q
      WHERE q.state = 'processing' AND q.due_at IS NOT NULL AND q.due_at <= statement_timestamp() ORDER BY q.due_at,
        q.id LIMIT $1::bigint)
    UNION ALL -- what waits for another attempt after a crash is not due
    SELECT w.* FROM (SELECT q.topic, ` + firstSeenAt + `, q.due_at, q.owner, q.locked_until, q.crashes, q.source,
                            q.message_id, true
                       FROM {queue} q
                      WHERE q.state = 'processing' AND q.due_at IS NOT NULL AND q.due_at > statement_timestamp()
                      ORDER BY q.due_at, q.id LIMIT $1::bigint) w
     WHERE w.crashes > 0
)
SELECT l.topic, count(*) FILTER (WHERE l.owner IS NULL AND NOT l.later),
       coalesce(extract(epoch
         FROM clock_timestamp() - min(coalesce(nullif(l.due_at, '-infinity'),
         l.first_seen_at)) FILTER (WHERE l.owner IS NULL AND NOT l.later)), 0)::float8,
       count(*) FILTER (WHERE l.locked_until < clock_timestamp() - $2::float8 * interval '1 second'),
       coalesce(extract(epoch FROM clock_timestamp() - min(l.locked_until) FILTER (WHERE isfinite(l.locked_until))),
         0)::float8,
       count(*) FILTER (WHERE l.crashes > 0), coalesce(max(l.crashes), 0)::int,
       coalesce((array_agg(l.source ORDER BY l.crashes DESC))[1], ''),
       coalesce((array_agg(l.message_id ORDER BY l.crashes DESC))[1], '')
  FROM scanned l GROUP BY l.topic ORDER BY 4 DESC, 6 DESC, 3 DESC, l.topic LIMIT 20`

	// DoctorOldest returns the age in seconds of the oldest retained published message among the rows with the lowest ids.
	//
	// Arguments: rows to read.
	DoctorOldest = `SELECT coalesce(extract(epoch FROM clock_timestamp() - min(o.published_at)), 0)::float8
  FROM (SELECT o.published_at FROM {outbox} o ORDER BY o.id LIMIT $1::bigint) o`

	// DoctorRoles returns the statement_timeout of roles in seconds, 0 = none, and whether it applies to this database
	// only.
	//
	// Arguments: roles.
	DoctorRoles = `SELECT r.rolname::text, coalesce(t.seconds, 0)::float8, coalesce(t.here, false)
  FROM pg_roles r LEFT JOIN LATERAL (
       SELECT CASE WHEN v.value ~ '^[0-9]+$' THEN v.value::float8 / 1000 ELSE extract(epoch FROM v.value::interval) END
                AS seconds, s.setdatabase <> 0 AS here
         FROM pg_db_role_setting s CROSS JOIN LATERAL unnest(s.setconfig) AS c(line)
        CROSS JOIN LATERAL (SELECT split_part(c.line, '=', 2) AS value) v
        WHERE s.setrole = r.oid AND c.line LIKE 'statement_timeout=%'
          AND s.setdatabase IN (0, (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()))
        ORDER BY s.setdatabase DESC LIMIT 1) t ON true
 WHERE r.rolname = ANY ($1::text[]) ORDER BY 1`

	// DoctorKeys reads the messages of a topic that have been ready the longest, and returns their number, the number with
	// the most frequent key, that key, and the number blocked by a failing message of their key.
	//
	// Arguments: topic, messages to read in each lane.
	DoctorKeys = `WITH scanned AS MATERIALIZED (
    SELECT r.key FROM generate_series(0, 63) AS s(lane) CROSS JOIN LATERAL (
           SELECT o.topic, o.key FROM {outbox} o
            WHERE o.lane = s.lane AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL
            ORDER BY o.lane, o.id LIMIT $2::bigint) r
     WHERE r.topic = $1::text
), keys AS (
    SELECT l.key, count(*) AS n FROM scanned l WHERE l.key <> '' GROUP BY l.key ORDER BY n DESC, l.key LIMIT 1000
), failing AS MATERIALIZED (
    SELECT DISTINCT f.key FROM (SELECT o.key FROM {outbox} o
                        WHERE ` + isFailing + ` ORDER BY o.topic, o.id LIMIT 1000) f WHERE f.key <> ''
)
SELECT (SELECT count(*) FROM scanned), coalesce((SELECT k.n FROM keys k ORDER BY k.n DESC, k.key LIMIT 1), 0),
       coalesce((SELECT k.key FROM keys k ORDER BY k.n DESC, k.key LIMIT 1), ''),
       coalesce((SELECT sum(k.n) FROM keys k JOIN failing f ON f.key = k.key), 0)::bigint`
)
