package sqltext

// The statements of Check read only the catalogs, so they are fast however large the tables are. They take names of
// relations as SQL, quoted and with the schema, if any.
const (
	// CheckServer returns the server's version and kind, and the values of settings, separated by |. The value of an
	// unknown setting is empty.
	//
	// Arguments: names of settings.
	CheckServer = `SELECT pg_catalog.current_setting('server_version_num')::bigint, pg_catalog.pg_is_in_recovery(),
       (SELECT string_agg(coalesce(pg_catalog.current_setting(n.name, true), ''), '|' ORDER BY n.at)
          FROM pg_catalog.unnest($1::text[]) WITH ORDINALITY AS n(name, at))`

	// CheckProduct returns the product. It runs first: a product other than PostgreSQL may lack the functions of the
	// other statements.
	CheckProduct = `SELECT version()`

	// CheckRole returns the current role, and whether it may use a schema, if it exists. Until the end of the transaction
	// it makes the catalogs print expressions in the form of the expected facts, and bounds the wait for locks.
	//
	// Arguments: schema.
	CheckRole = `SELECT current_user::text,
       coalesce((SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE') FROM pg_catalog.pg_namespace n
         WHERE n.nspname = $1::text), true),
       pg_catalog.set_config('quote_all_identifiers', 'off', true) || pg_catalog.set_config('bytea_output', 'hex', true)
         || pg_catalog.set_config('standard_conforming_strings', 'on', true)
         || pg_catalog.set_config('lock_timeout', '5s', true)`

	// CheckHolder returns the session that holds an exclusive lock on some tables or their partitions, or waits for one,
	// so that others queue behind it: the table, the pid, the role and the application, empty if this role may not see
	// them.
	//
	// Arguments: names.
	CheckHolder = `WITH RECURSIVE parts(oid) AS (SELECT pg_catalog.to_regclass(n.name)::oid
  FROM pg_catalog.unnest($1::text[]) AS n(name)
    UNION SELECT i.inhrelid FROM parts p JOIN pg_catalog.pg_inherits i ON i.inhparent = p.oid)
SELECT c.oid::pg_catalog.regclass::text, coalesce(k.pid, 0)::bigint, coalesce(a.usename::text, ''),
  coalesce(a.application_name, '')
  FROM parts p JOIN pg_catalog.pg_class c ON c.oid = p.oid
  JOIN pg_catalog.pg_locks k ON k.locktype = 'relation' AND k.mode = 'AccessExclusiveLock'
   AND (k.relation IN (c.oid, c.reltoastrelid) OR k.relation IN (SELECT x.indexrelid FROM pg_catalog.pg_index x
     WHERE x.indrelid IN (c.oid, c.reltoastrelid)))
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = k.pid
 WHERE k.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
   AND k.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
 ORDER BY k.granted DESC, c.relkind = 'p' DESC, k.pid LIMIT 1`

	// CheckElsewhere lists the schemas that have a table with a name.
	//
	// Arguments: name, not quoted.
	CheckElsewhere = `SELECT n.nspname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n
       ON n.oid = c.relnamespace
 WHERE c.relname = $1::text AND c.relkind IN ('r', 'p') ORDER BY 1`

	// CheckPrivileges lists the privileges that roles lack on existing relations and on the schema of the outbox: kind of
	// object, role, object, privilege. A privilege on a single column counts.
	//
	// Arguments: names, privileges, roles, name of the outbox.
	CheckPrivileges = `SELECT '', r.rolname::text, n.name, n.privilege
  FROM unnest($1::text[], $2::text[]) AS n(name, privilege)
  JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(n.name)
  JOIN pg_catalog.pg_roles r ON r.rolname = ANY ($3::text[])
 WHERE NOT CASE WHEN c.relkind = 'S' THEN pg_catalog.has_sequence_privilege(r.oid, c.oid, n.privilege)
                WHEN n.privilege = 'DELETE' THEN pg_catalog.has_table_privilege(r.oid, c.oid, n.privilege)
                ELSE pg_catalog.has_any_column_privilege(r.oid, c.oid, n.privilege) END
UNION ALL
SELECT 'SCHEMA', r.rolname::text, s.nspname::text, 'USAGE'
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace s ON s.oid = c.relnamespace
  JOIN pg_catalog.pg_roles r ON r.rolname = ANY ($3::text[])
 WHERE c.oid = pg_catalog.to_regclass($4::text) AND NOT pg_catalog.has_schema_privilege(r.oid, s.oid, 'USAGE')`

	// CheckCatalog returns the facts of the catalogs about some relations, one per row: relation, kind of fact, name,
	// type, state, text. schema/catalog.txt has the facts of a database that Migrate made. A missing relation has no
	// facts. A partitioned table counts as logged, because it has no rows of its own.
	//
	// Arguments: names.
	CheckCatalog = `WITH r AS MATERIALIZED (SELECT n.name, c.oid, c.relkind, c.relpersistence, c.reloptions
    FROM pg_catalog.unnest($1::text[]) AS n(name) JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(n.name))
SELECT r.name, CASE r.relkind WHEN 'S' THEN 'sequence' ELSE 'table' END, r.oid::pg_catalog.regclass::text,
       CASE WHEN s.seqrelid IS NOT NULL THEN pg_catalog.format_type(s.seqtypid, NULL)
            WHEN r.relkind IN ('r', 'p') THEN 'table' ELSE 'relation of kind ' || r.relkind::text END,
       CASE WHEN r.relkind = 'p' OR r.relpersistence = 'p' THEN 'logged'
            WHEN r.relpersistence = 'u' THEN 'unlogged' ELSE 'temporary' END,
       CASE WHEN s.seqrelid IS NULL THEN coalesce(pg_catalog.array_to_string(r.reloptions, ','), '')
            ELSE 'INCREMENT ' || CASE WHEN s.seqincrement > 0 THEN 1 ELSE s.seqincrement END || ' CACHE ' || s.seqcache
                 || CASE WHEN s.seqcycle THEN ' CYCLE' ELSE ' NO CYCLE' END END
  FROM r LEFT JOIN pg_catalog.pg_sequence s ON s.seqrelid = r.oid
UNION ALL
SELECT r.name, 'row security', '', '', '', '' FROM r WHERE r.relkind <> 'S' AND pg_catalog.row_security_active(r.oid)
UNION ALL
SELECT r.name, 'column', a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod),
       CASE WHEN a.attnotnull THEN 'NOT NULL' ELSE 'NULL' END,
       CASE WHEN a.attidentity <> '' THEN 'IDENTITY' WHEN d.oid IS NULL THEN ''
            WHEN a.attgenerated <> '' THEN 'GENERATED ' ELSE 'DEFAULT ' END
         || coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid), '')
  FROM r JOIN pg_catalog.pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE r.relkind <> 'S'
UNION ALL
SELECT r.name, 'index', i.relname, m.amname || ' (' || pg_catalog.array_to_string(ARRAY(
           SELECT pg_catalog.pg_get_indexdef(x.indexrelid, k, false)
                  || CASE WHEN x.indoption[k - 1] = 0 THEN '' ELSE ' option ' || x.indoption[k - 1]::text END
             FROM pg_catalog.generate_series(1, x.indnkeyatts::int) AS k ORDER BY k), ', ') || ')',
       CASE WHEN x.indisvalid AND x.indisready THEN CASE WHEN x.indisunique AND x.indimmediate THEN 'unique' ELSE '' END
            WHEN EXISTS (SELECT FROM pg_catalog.pg_stat_progress_create_index p
              WHERE (p.relid = x.indrelid OR p.relid IS NULL) AND p.datname = pg_catalog.current_database())
                THEN 'building'
            ELSE 'invalid' END,
       coalesce(pg_catalog.pg_get_expr(x.indpred, x.indrelid), '')
  FROM r JOIN pg_catalog.pg_index x ON x.indrelid = r.oid JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
  JOIN pg_catalog.pg_am m ON m.oid = i.relam
UNION ALL
SELECT r.name, 'insert trigger', pg_catalog.quote_ident(t.tgname), t.tgrelid::pg_catalog.regclass::text, '', ''
  FROM r JOIN pg_catalog.pg_trigger t ON (t.tgrelid = r.oid
        OR t.tgrelid IN (SELECT i.inhrelid FROM pg_catalog.pg_inherits i WHERE i.inhparent = r.oid))
          AND t.tgtype & 7 = 7 AND NOT t.tgisinternal AND t.tgenabled <> 'D'
   AND t.tgparentid = 0
 WHERE r.relkind <> 'S'
UNION ALL
SELECT r.name, 'insert rule', pg_catalog.quote_ident(w.rulename), r.oid::pg_catalog.regclass::text, '', ''
  FROM r JOIN pg_catalog.pg_rewrite w ON w.ev_class = r.oid AND w.ev_type = '3' AND w.is_instead
    AND w.ev_enabled <> 'D'`

	// CheckAlive reports whether a forwarder is alive, and whether the first ready message has been ready for more than
	// a minute.
	CheckAlive = `SELECT EXISTS (SELECT FROM {forwarders} f WHERE f.expires_at > clock_timestamp()),
       coalesce((SELECT o.created_at < clock_timestamp() - interval '1 minute' FROM {outbox} o
                  WHERE o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL
                  ORDER BY o.lane, o.id LIMIT 1), false)`
)
