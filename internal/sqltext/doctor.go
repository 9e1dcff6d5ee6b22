package sqltext

// The statements of admin.Doctor. They read catalogs and the server's figures, and of our tables at most some thousand
// rows.
const (
	// DoctorRole names the role that asks, whether it sees what the sessions of others do, and in which database.
	DoctorRole = `SELECT current_user::text, pg_has_role('pg_read_all_stats', 'USAGE'), current_database()::text`

	// DoctorSchema names the schema of the outbox.
	DoctorSchema = `SELECT n.nspname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.oid = to_regclass({outbox_text})`

	// DoctorWriters lists the roles that were granted to write messages and that may not take ids for them.
	DoctorWriters = `SELECT DISTINCT r.rolname::text
  FROM pg_class c JOIN LATERAL (
       SELECT x.grantee FROM aclexplode(c.relacl) x WHERE x.privilege_type = 'INSERT'
       UNION ALL
       SELECT x.grantee FROM pg_attribute t CROSS JOIN LATERAL aclexplode(t.attacl) x
        WHERE t.attrelid = c.oid AND t.attname = 'payload' AND x.privilege_type = 'INSERT') g ON true
  JOIN pg_roles r ON r.oid = g.grantee
 WHERE c.oid = to_regclass({outbox_text}) AND NOT has_sequence_privilege(r.oid, to_regclass({outbox_id_seq_text}),
   'USAGE')`

	// DoctorLocks lists sessions whose transactions have had locks on tables for some time, or wait for one of the whole
	// table, with the modes, whether they lock the whole table, and whether they have them. Those of vacuum and analyze
	// stop nothing: the one with which vacuum gives back the end of a table it gives up as soon as a session waits for it.
	//
	// Arguments: tables, seconds.
	DoctorLocks = `SELECT ` + activity + `, l.name, l.modes, l.whole, l.granted
  FROM (SELECT k.pid, n.name, string_agg(DISTINCT k.mode, ', ') AS modes,
               k.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock') AS whole,
                 k.granted
          FROM unnest($1::text[]) AS n(name)
          JOIN pg_locks k ON k.relation = to_regclass(n.name) AND k.locktype = 'relation'
         WHERE k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
           AND k.mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock') AND k.pid NOT IN (` + vacuums + `)
         GROUP BY k.pid, n.name, whole, k.granted) l
  JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE a.pid <> pg_backend_pid() AND (l.granted OR l.whole) AND a.wait_event IS DISTINCT FROM 'SyncRep'
   AND a.xact_start < clock_timestamp() - $2::float8 * interval '1 second'
 ORDER BY a.xact_start LIMIT 20`

	// DoctorSyncRep says how many sessions of this database wait for a synchronous standby to confirm their commit, the
	// longest for how many seconds, and which standbys are meant.
	//
	// Arguments: seconds.
	DoctorSyncRep = `SELECT count(*), coalesce(max(extract(epoch FROM clock_timestamp() - a.state_change)), 0)::float8,
       current_setting('synchronous_standby_names')
  FROM pg_stat_activity a
 WHERE a.datname = current_database() AND a.wait_event = 'SyncRep'
   AND a.query_start < clock_timestamp() - $1::float8 * interval '1 second'`

	// DoctorDiscarded counts the messages of each table that DeadRetention discarded in the last day. It writes at most 72
	// entries a day for each forwarder scope and dispatcher.
	//
	// Arguments: actor.
	DoctorDiscarded = `SELECT a.filter->>'in', sum(a.touched)::bigint
  FROM (SELECT a.* FROM {audit} a ORDER BY a.id DESC LIMIT 10000) a
 WHERE a.actor = $1::text AND a.action = 'discard' AND a.at > statement_timestamp() - interval '1 day'
 GROUP BY 1 HAVING sum(a.touched) > 0 ORDER BY 1`

	// DoctorObstacles lists what operators have put at the tables that may swallow, refuse or hide rows: what it is, on
	// which table, its name. rule and trigger (of any update): they may refuse to settle a row; schema.Inspect says which
	// swallow inserts. unique: an index that refuses rows ours do not. child: a table that inherits. detached: a table
	// that is named as a partition of the outbox, and is none. nodefault: an outbox in partitions without a default.
	// security: row security that is in force for a role that is not the owner. sequence: how many ids are left.
	//
	// Arguments: tables, name of the outbox without its schema.
	DoctorObstacles = `WITH t AS MATERIALIZED (SELECT n.name, c.oid, c.relkind, c.relnamespace, c.relrowsecurity
    FROM unnest($1::text[]) AS n(name) JOIN pg_class c ON c.oid = to_regclass(n.name)),
  parts AS MATERIALIZED (SELECT t.name, t.oid FROM t UNION SELECT t.name, i.inhrelid FROM t JOIN pg_inherits i ON i.inhparent = t.oid)
SELECT 'trigger', p.name, g.tgname::text
  FROM parts p JOIN pg_trigger g ON g.tgrelid = p.oid AND NOT g.tgisinternal AND g.tgenabled <> 'D' AND g.tgtype::int & 16 = 16
   AND g.tgparentid = 0
UNION ALL SELECT 'rule', p.name, r.rulename::text FROM parts p JOIN pg_rewrite r ON r.ev_class = p.oid AND r.ev_enabled <> 'D'
UNION ALL SELECT 'check', t.name, k.conname::text FROM t JOIN pg_class c ON c.oid = t.oid JOIN pg_constraint k ON k.conrelid = t.oid AND k.contype = 'c'
   AND NOT k.convalidated AND k.conname <> c.relname || '_below' WHERE t.relkind = 'r'
UNION ALL SELECT 'unique', t.name, x.indexrelid::regclass::text FROM t JOIN pg_index x ON x.indrelid = t.oid
   AND (x.indisunique OR x.indisexclusion) AND NOT x.indisprimary
UNION ALL SELECT 'child', t.name, i.inhrelid::regclass::text FROM t JOIN pg_inherits i ON i.inhparent = t.oid WHERE t.relkind = 'r'
UNION ALL SELECT 'detached', t.name, c.oid::regclass::text FROM t JOIN pg_class c ON c.relnamespace = t.relnamespace
   AND c.relkind = 'r' AND NOT c.relispartition AND c.relname ~ '_(p[0-9]+|default)$'
   AND regexp_replace(c.relname, '_(p[0-9]+|default)$', '') = $2::text
 WHERE t.relkind = 'p' AND t.oid = to_regclass({outbox_text})
UNION ALL SELECT 'nodefault', t.name, '' FROM t
 WHERE t.relkind = 'p' AND NOT EXISTS (SELECT FROM pg_partitioned_table d WHERE d.partrelid = t.oid AND d.partdefid <> 0)
UNION ALL SELECT 'security', t.name, '' FROM t WHERE t.relrowsecurity
UNION ALL SELECT 'sequence', s.seqrelid::regclass::text, (s.seqmax - coalesce(pg_sequence_last_value(s.seqrelid), 0))::text
  FROM pg_sequence s WHERE s.seqrelid IN (to_regclass({outbox_id_seq_text}), to_regclass({queue_id_seq_text}))
   AND has_sequence_privilege(s.seqrelid, 'SELECT, USAGE')
   AND s.seqmax - coalesce(pg_sequence_last_value(s.seqrelid), 0) < 1000000
ORDER BY 1, 2, 3`

	// DoctorPrepared lists prepared transactions that are older.
	//
	// Arguments: seconds.
	DoctorPrepared = `SELECT p.gid, p.owner::text, extract(epoch FROM clock_timestamp() - p.prepared)::float8
  FROM pg_prepared_xacts p
 WHERE p.database = current_database() AND p.prepared < clock_timestamp() - $1::float8 * interval '1 second'
 ORDER BY p.prepared LIMIT 20`

	// DoctorHorizon lists what keeps dead rows of this database from being removed, the oldest first: what it is, its
	// name, how many transactions ago its snapshot was taken, and the session, whose type is NULL where it may not be
	// seen. A vacuum has a snapshot, and all others disregard it; that is not so while it analyzes. What a standby needs
	// is that of its connection, or of the slot that it uses, and belongs to no database.
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
   LIMIT 5` // a standby also hands on what a session here needs

	vacuums = `SELECT v.pid FROM pg_stat_progress_vacuum v`

	// DoctorTables says of tables how many dead rows they have, how many seconds ago they were
	// vacuumed, or the figures begun, and whether a vacuum is at it. A table in partitions has what they have together,
	// and was vacuumed when that was which has most dead rows.
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

	// A session whose state may not be seen has none.
	activity = `coalesce(a.pid, 0)::bigint, coalesce(a.usename, '')::text, coalesce(a.application_name, ''),
  coalesce(a.state, 'unseen'),
       coalesce(extract(epoch FROM clock_timestamp() - a.xact_start), 0)::float8, coalesce(host(a.client_addr), '')`
)

// What Doctor looks at in our tables.
const (
	// DoctorForwarders lists forwarders with the seconds that are left of their leases, the seconds for which each waits
	// for others, how many lanes it owns, and what it says of itself.
	DoctorForwarders = `SELECT f.id::text, f.name, f.scope, array_to_json(f.topics)::text,
       extract(epoch FROM f.expires_at - clock_timestamp())::float8,
       coalesce(extract(epoch FROM clock_timestamp() - f.waiting_since), 0)::float8, coalesce(l.lanes, 0), f.facts::text
  FROM {forwarders} f LEFT JOIN (SELECT owner, count(*) AS lanes FROM {lanes} GROUP BY owner) l ON l.owner = f.id
 ORDER BY f.expires_at, f.id`

	// DoctorWritten says how many messages a second of a topic were written in the last minute, of the newest rows.
	//
	// Arguments: topic, how many rows to look at.
	DoctorWritten = `WITH looked AS MATERIALIZED (
    SELECT o.topic, o.created_at FROM {outbox} o ORDER BY o.id DESC LIMIT $2::bigint
)
SELECT (count(*) FILTER (WHERE l.topic = $1::text AND l.created_at > clock_timestamp() - interval '1 minute') /
        CASE WHEN count(*) < $2::bigint THEN 60
             ELSE greatest(1,
               least(60, extract(epoch FROM clock_timestamp() - least(min(l.created_at), clock_timestamp()))))
               END)::float8
  FROM looked l`

	// DoctorFailing lists messages that have failed so often.
	//
	// Arguments: how many failing messages to look at, attempts.
	DoctorFailing = `SELECT o.id, o.topic, o.key, o.attempts, coalesce(left(o.last_error, 1024), ''),
       extract(epoch FROM clock_timestamp() - o.created_at)::float8
  FROM (SELECT * FROM (SELECT o.id, o.topic, o.key, o.attempts, o.last_error, ` + createdAt + ` FROM {outbox} o
                        WHERE ` + isFailing + ` ORDER BY o.topic, o.id LIMIT $1::bigint) first
         WHERE first.attempts >= $2::bigint) o ORDER BY o.topic, o.id`

	// DoctorQueue says by topic, of the messages in the queue that are ready first and those that are due for longest: how
	// many are unclaimed and since how many seconds the first is due, how many have an owner whose lease ran out so
	// long ago and since how many seconds the first, how many have lost an owner in that way, how often the one that did
	// most, its source and its id. The topics with the worst trouble come first.
	//
	// Arguments: how many messages to look at in each place, seconds.
	DoctorQueue = `WITH looked AS MATERIALIZED (
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
  FROM looked l GROUP BY l.topic ORDER BY 4 DESC, 6 DESC, 3 DESC, l.topic LIMIT 20`

	// DoctorOldest says how many seconds ago the oldest message was published that is still there, of the rows with the
	// lowest ids.
	//
	// Arguments: how many rows to look at.
	DoctorOldest = `SELECT coalesce(extract(epoch FROM clock_timestamp() - min(o.published_at)), 0)::float8
  FROM (SELECT o.published_at FROM {outbox} o ORDER BY o.id LIMIT $1::bigint) o`

	// DoctorRoles says of roles the statement_timeout in seconds, 0 = none, and whether that is of this database alone.
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

	// DoctorKeys says of the messages of a topic that are ready for longest how many were looked at, how many of them have
	// the key that most have, that key, and how many have a key that a failing message blocks.
	//
	// Arguments: topic, how many to look at in each lane.
	DoctorKeys = `WITH looked AS MATERIALIZED (
    SELECT r.key FROM generate_series(0, 63) AS s(lane) CROSS JOIN LATERAL (
           SELECT o.topic, o.key FROM {outbox} o
            WHERE o.lane = s.lane AND o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL
            ORDER BY o.lane, o.id LIMIT $2::bigint) r
     WHERE r.topic = $1::text
), keys AS (
    SELECT l.key, count(*) AS n FROM looked l WHERE l.key <> '' GROUP BY l.key ORDER BY n DESC, l.key LIMIT 1000
), failing AS MATERIALIZED (
    SELECT DISTINCT f.key FROM (SELECT o.key FROM {outbox} o
                        WHERE ` + isFailing + ` ORDER BY o.topic, o.id LIMIT 1000) f WHERE f.key <> ''
)
SELECT (SELECT count(*) FROM looked), coalesce((SELECT k.n FROM keys k ORDER BY k.n DESC, k.key LIMIT 1), 0),
       coalesce((SELECT k.key FROM keys k ORDER BY k.n DESC, k.key LIMIT 1), ''),
       coalesce((SELECT sum(k.n) FROM keys k JOIN failing f ON f.key = k.key), 0)::bigint`
)
