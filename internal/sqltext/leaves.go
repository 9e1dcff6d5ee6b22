package sqltext

// The statements on an outbox in partitions: its leaves.
const (
	// Leaves lists the leaves of the outbox: name, as SQL, bounds as CREATE TABLE writes them, whether another session, or
	// a prepared transaction, has locked it or a part of it against all others, or waits for that, so that others wait
	// behind it, and unless that is so bytes of its rows and with its indexes; rows as the last ANALYZE or VACUUM counted
	// them (-1 = never), storage options with | between them, whether it is in partitions itself, and statements that have
	// it survive a crash of the server ('' = it does). A leaf that is dropped meanwhile is empty. It waits for no lock,
	// unless one is taken in the very moment in which it asks for sizes.
	Leaves = `WITH RECURSIVE held AS MATERIALIZED (SELECT k.relation FROM pg_locks k
    WHERE k.locktype = 'relation' AND k.mode = 'AccessExclusiveLock' AND k.pid IS DISTINCT FROM pg_backend_pid()
      AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())),
  parts(leaf, oid, level) AS (SELECT i.inhrelid, i.inhrelid, 0 FROM pg_inherits i WHERE i.inhparent = to_regclass({outbox_text})
    UNION ALL SELECT p.leaf, i.inhrelid, p.level + 1 FROM parts p JOIN pg_inherits i ON i.inhparent = p.oid),
  taken AS MATERIALIZED (SELECT p.leaf FROM parts p JOIN pg_class c ON c.oid = p.oid
    WHERE EXISTS (SELECT FROM held h WHERE h.relation IN (c.oid, c.reltoastrelid)
       OR h.relation IN (SELECT x.indexrelid FROM pg_index x WHERE x.indrelid IN (c.oid, c.reltoastrelid))))
SELECT c.relname::text, quote_ident(n.nspname) || '.' || quote_ident(c.relname),
       coalesce(pg_get_expr(c.relpartbound, CASE WHEN l.locked THEN 0 ELSE c.oid END), ''), l.locked,
       CASE WHEN l.locked THEN 0 ELSE coalesce(pg_relation_size(c.oid), 0) END,
       CASE WHEN l.locked THEN 0 ELSE coalesce(pg_total_relation_size(c.oid), 0) END,
       CASE WHEN c.relpages = 0 AND c.reltuples = 0 AND current_setting('server_version_num')::int < 140000 THEN -1
            ELSE c.reltuples END::bigint,
       coalesce(array_to_string(c.reloptions, '|'), ''), c.relkind = 'p',
       coalesce((SELECT string_agg(format('ALTER TABLE %s.%I SET LOGGED', u.relnamespace::regnamespace, u.relname), '; ' ORDER BY p.level, u.relname)
                   FROM parts p JOIN pg_class u ON u.oid = p.oid
                  WHERE p.leaf = c.oid AND u.relpersistence = 'u' AND u.relkind <> 'p'), '')
  FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 CROSS JOIN LATERAL (SELECT c.oid IN (SELECT t.leaf FROM taken t) AS locked) l
 WHERE i.inhparent = to_regclass({outbox_text}) ORDER BY c.relname`

	// LeavesParent says of the outbox whether it is in partitions, its schema, its tablespace as a clause of CREATE TABLE
	// ('' = that of the database), its owner, who asks, all as SQL, the statements that have that role act for the owner
	// ('' = it may), those that have the owner make tables beside it (the same), whether the role may know the last id
	// that was handed out, and that id, 0 if none was or it may not.
	LeavesParent = `SELECT c.relkind = 'p', c.relnamespace::regnamespace::text,
       coalesce((SELECT ' TABLESPACE ' || quote_ident(s.spcname) FROM pg_tablespace s WHERE s.oid = c.reltablespace), ''),
       c.relowner::regrole::text, quote_ident(current_user), CASE WHEN ` + actsForOwner + ` THEN '' ELSE ` + actForOwner + ` END,
       ` + makeTables + `,
       coalesce(has_sequence_privilege(to_regclass({outbox_id_seq_text}), 'SELECT, USAGE'), false),
       coalesce(CASE WHEN has_sequence_privilege(to_regclass({outbox_id_seq_text}), 'SELECT, USAGE')
         THEN pg_sequence_last_value(to_regclass({outbox_id_seq_text})) END, 0)
  FROM pg_class c JOIN pg_roles r ON r.rolname = current_user WHERE c.oid = to_regclass({outbox_text})`

	// actsForOwner says whether role r has the privileges of the owner of c, and may give it tables. Since PostgreSQL 16 a
	// member may have one and not the other.
	actsForOwner = `(pg_has_role(r.oid, c.relowner, 'USAGE') AND pg_has_role(r.oid, c.relowner,
         CASE WHEN current_setting('server_version_num')::int < 160000 THEN 'MEMBER' ELSE 'SET' END))`

	// actForOwner is what has it do so. To grant a role what it was granted changes nothing.
	actForOwner = `CASE WHEN r.rolinherit AND NOT pg_has_role(r.oid, c.relowner, 'MEMBER')
              THEN format('GRANT %s TO %I', c.relowner::regrole, r.rolname)
            WHEN current_setting('server_version_num')::int >= 160000
              THEN format('GRANT %s TO %I WITH INHERIT TRUE, SET TRUE', c.relowner::regrole, r.rolname)
            ELSE format('GRANT %s TO %I; ALTER ROLE %2$I INHERIT', c.relowner::regrole, r.rolname) END`

	// makeTables is what has the owner make tables where c and its indexes are, and so whoever acts for it.
	makeTables = `coalesce((SELECT string_agg(g.statement, '; ' ORDER BY g.statement) FROM (
         SELECT format('GRANT CREATE ON SCHEMA %s TO %s', c.relnamespace::regnamespace, c.relowner::regrole)
          WHERE NOT has_schema_privilege(c.relowner, c.relnamespace, 'CREATE')
         UNION SELECT format('GRANT CREATE ON TABLESPACE %I TO %s', s.spcname, c.relowner::regrole) FROM pg_tablespace s
          WHERE s.oid IN (SELECT t.reltablespace FROM pg_class t WHERE t.oid = c.oid
                             OR t.oid IN (SELECT x.indexrelid FROM pg_index x WHERE x.indrelid = c.oid))
            AND NOT has_tablespace_privilege(c.relowner, s.oid, 'CREATE')) g(statement)
         WHERE NOT r.rolsuper), '')`

	// LeafRows says of each range of ids with rows, by its position: the age in seconds of the row with the lowest id,
	// and whether some of the last 100 were settled before a time and none since. It reads through the outbox, which needs
	// no privileges on the leaves.
	//
	// Arguments: first ids, ids that they end below, time (RFC 3339 text).
	LeafRows = `SELECT r.n, extract(epoch FROM clock_timestamp() - f.created_at)::float8, coalesce(e.due, false)
  FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS r(first, below, n)
 CROSS JOIN LATERAL (SELECT o.created_at FROM {outbox} o WHERE o.id >= r.first AND o.id < r.below
                      ORDER BY o.id LIMIT 1) f
 CROSS JOIN LATERAL (SELECT bool_or(l.published_at < $3::text::timestamptz)
              AND coalesce(bool_and(l.published_at < $3::text::timestamptz), true) AS due
         FROM (SELECT o.published_at FROM {outbox} o WHERE o.id >= r.first AND o.id < r.below
                ORDER BY o.id DESC LIMIT 100) l) e`

	// LeafDead says of each range of ids in which nothing is settled, but something dead, by its position, how many dead
	// messages it has. It reads so many rows of each at most.
	//
	// Arguments: first ids, ids that they end below, rows.
	LeafDead = `SELECT r.n, l.dead
  FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY AS r(first, below, n)
 CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE t.dead_at IS NOT NULL) AS dead, count(t.published_at) AS settled
         FROM (SELECT o.dead_at, o.published_at FROM {outbox} o WHERE o.id >= r.first AND o.id < r.below
                ORDER BY o.id LIMIT $3::bigint) t) l
 WHERE l.dead > 0 AND l.settled = 0 ORDER BY r.n`

	// CountRanges counts the rows of some ranges of ids, at most so many of each.
	//
	// Arguments: first ids, ids that they end below, how many.
	CountRanges = `SELECT count(*) FROM unnest($1::bigint[], $2::bigint[]) AS r(first, below)
 CROSS JOIN LATERAL (SELECT FROM {outbox} o WHERE o.id >= r.first AND o.id < r.below LIMIT $3::bigint) c`

	// Rolls lists the last rolls, the newest first: how many seconds ago it began, the role, the statements that have it
	// act for the outbox's owner ('' = it may, or it did, having become another), the retention in seconds (0 = it emptied
	// nothing), whether it went to its end, and what cut it off.
	Rolls = `SELECT extract(epoch FROM clock_timestamp() - a.at)::float8, a.role,
       coalesce((SELECT ` + actForOwner + ` FROM pg_roles r, pg_class c
                  WHERE r.rolname = a.role AND c.oid = to_regclass({outbox_text}) AND NOT ` + actsForOwner + `
                    AND NOT (a.ended_at IS NOT NULL AND a.outcome = '' AND pg_has_role(r.oid, c.relowner, 'MEMBER'))), ''),
       CASE WHEN a.filter->>'before' ~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z$'
            THEN extract(epoch FROM a.at - (a.filter->>'before')::timestamptz) ELSE 0 END::float8,
       a.ended_at IS NOT NULL AND a.outcome = '', a.outcome
  FROM (SELECT * FROM {audit} ORDER BY id DESC LIMIT 10000) a
 WHERE a.action = 'roll' ORDER BY a.id DESC LIMIT 100`

	// LeafOwners lists the leaves that have another owner than the outbox, as SQL, and the owner of the outbox.
	LeafOwners = `SELECT l.oid::regclass::text, p.relowner::regrole::text FROM pg_class p
  JOIN pg_inherits i ON i.inhparent = p.oid JOIN pg_class l ON l.oid = i.inhrelid
 WHERE p.oid = to_regclass({outbox_text}) AND l.relowner <> p.relowner ORDER BY l.relname`

	// LeafPublications lists publications that send the outbox or its leaves: the name, whether as one table, and which
	// of these tables it names, as SQL; '' = none, since it is of all tables, or of a schema.
	LeafPublications = `WITH parts AS (
    SELECT p.relid, c.relname, n.nspname FROM pg_partition_tree(to_regclass({outbox_text})) p
      JOIN pg_class c ON c.oid = p.relid JOIN pg_namespace n ON n.oid = c.relnamespace
)
SELECT b.pubname::text, b.pubviaroot, coalesce((SELECT string_agg(r.prrelid::regclass::text, ', ' ORDER BY r.prrelid)
         FROM pg_publication_rel r WHERE r.prpubid = b.oid AND r.prrelid IN (SELECT relid FROM parts)), '')
  FROM pg_publication b
 WHERE EXISTS (SELECT FROM pg_publication_tables t JOIN parts p ON p.relname = t.tablename AND p.nspname = t.schemaname
                WHERE t.pubname = b.pubname)
 ORDER BY b.pubname`
)
