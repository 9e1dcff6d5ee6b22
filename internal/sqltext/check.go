package sqltext

// The statements of Check read the catalogs alone, so they answer at once however large the tables are.
// They take names of relations as they are written in SQL, quoted and with the schema if there is one.
const (
	// CheckServer says what kind of server answers, and with which settings: their values one after the other, with |
	// between them. One that the server does not know is empty.
	//
	// Arguments: names of settings.
	CheckServer = `SELECT pg_catalog.current_setting('server_version_num')::bigint, pg_catalog.pg_is_in_recovery(),
       (SELECT string_agg(coalesce(pg_catalog.current_setting(n.name, true), ''), '|' ORDER BY n.at)
          FROM pg_catalog.unnest($1::text[]) WITH ORDINALITY AS n(name, at))`

	// CheckProduct says what answers. It is asked first: what is no PostgreSQL may not know the functions of the others.
	CheckProduct = `SELECT version()`

	// CheckRole names the role that asks, and whether it may use a schema, if it exists. It has the catalogs described in
	// the words that are compared with, and bounds how long is waited for a lock, to the end of the transaction.
	//
	// Arguments: schema.
	CheckRole = `SELECT current_user::text,
       coalesce((SELECT pg_catalog.has_schema_privilege(n.oid, 'USAGE') FROM pg_catalog.pg_namespace n
         WHERE n.nspname = $1::text), true),
       pg_catalog.set_config('quote_all_identifiers', 'off', true) || pg_catalog.set_config('bytea_output', 'hex', true)
         || pg_catalog.set_config('standard_conforming_strings', 'on', true)
         || pg_catalog.set_config('lock_timeout', '5s', true)`

	// CheckPatience bounds how long is waited for the locks of CheckAlive, to the end of the transaction.
	CheckPatience = `SELECT pg_catalog.set_config('lock_timeout', '2s', true)`

	// CheckHolder says which session has one of some tables, or a partition of one, for itself, or waits for that, so that
	// others wait behind it: the table, the pid, the role and the application, which are empty if this role may not know.
	//
	// Arguments: names.
	CheckHolder = `WITH RECURSIVE parts(oid) AS (SELECT pg_catalog.to_regclass(n.name)::oid FROM pg_catalog.unnest($1::text[]) AS n(name)
    UNION SELECT i.inhrelid FROM parts p JOIN pg_catalog.pg_inherits i ON i.inhparent = p.oid)
SELECT c.oid::pg_catalog.regclass::text, coalesce(k.pid, 0)::bigint, coalesce(a.usename::text, ''), coalesce(a.application_name, '')
  FROM parts p JOIN pg_catalog.pg_class c ON c.oid = p.oid
  JOIN pg_catalog.pg_locks k ON k.locktype = 'relation' AND k.mode = 'AccessExclusiveLock'
   AND (k.relation IN (c.oid, c.reltoastrelid) OR k.relation IN (SELECT x.indexrelid FROM pg_catalog.pg_index x
     WHERE x.indrelid IN (c.oid, c.reltoastrelid)))
  LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = k.pid
 WHERE k.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
   AND k.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
 ORDER BY k.granted DESC, c.relkind = 'p' DESC, k.pid LIMIT 1`

	// CheckElsewhere lists the schemas that have a table of some name.
	//
	// Arguments: name, not quoted.
	CheckElsewhere = `SELECT n.nspname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n
       ON n.oid = c.relnamespace
 WHERE c.relname = $1::text AND c.relkind IN ('r', 'p') ORDER BY 1`

	// CheckPrivileges lists the privileges that a role lacks on relations that exist. One on a single column is enough to
	// count as there.
	//
	// Arguments: names, privileges, role.
	CheckPrivileges = `SELECT n.name, n.privilege
  FROM unnest($1::text[], $2::text[]) AS n(name, privilege)
  JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(n.name)
  JOIN pg_catalog.pg_roles r ON r.rolname = $3::text
 WHERE NOT CASE WHEN c.relkind = 'S' THEN pg_catalog.has_sequence_privilege(r.oid, c.oid, n.privilege)
                WHEN n.privilege = 'DELETE' THEN pg_catalog.has_table_privilege(r.oid, c.oid, n.privilege)
                ELSE pg_catalog.has_any_column_privilege(r.oid, c.oid, n.privilege) END`

	// CheckRelations describes relations; one that is missing has no row. The text is how this session
	// prints the relation within an expression.
	//
	// Arguments: names.
	CheckRelations = `SELECT n.name, c.relkind::text, c.relpersistence::text, c.oid::pg_catalog.regclass::text,
       pg_catalog.array_to_string(c.reloptions, ','), pg_catalog.row_security_active(c.oid)
  FROM pg_catalog.unnest($1::text[]) AS n(name)
  JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(n.name)`

	// CheckColumns describes their columns.
	//
	// Arguments: names.
	CheckColumns = `SELECT n.name, a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull,
       a.attgenerated <> '', a.attidentity <> '', coalesce(pg_catalog.pg_get_expr(d.adbin, d.adrelid), '')
  FROM pg_catalog.unnest($1::text[]) AS n(name)
  JOIN pg_catalog.pg_attribute a ON a.attrelid = pg_catalog.to_regclass(n.name)
  LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
 WHERE a.attnum > 0 AND NOT a.attisdropped`

	// CheckIndexes describes their indexes: whether each is unique (at once, not at commit), whether it is complete, its
	// method, its columns with their sort options, its predicate, and whether somebody is building an index on its table,
	// or on one that this role may not see.
	//
	// Arguments: names.
	CheckIndexes = `SELECT n.name, i.relname::text, x.indisunique AND x.indimmediate, x.indisvalid AND x.indisready,
       m.amname::text,
       pg_catalog.array_to_string(ARRAY(
           SELECT pg_catalog.pg_get_indexdef(x.indexrelid, k, false)
                  || CASE WHEN x.indoption[k - 1] = 0 THEN '' ELSE ' option ' || x.indoption[k - 1]::text END
             FROM pg_catalog.generate_series(1, x.indnkeyatts::int) AS k ORDER BY k), ', '),
       coalesce(pg_catalog.pg_get_expr(x.indpred, x.indrelid), ''),
       EXISTS (SELECT FROM pg_catalog.pg_stat_progress_create_index p WHERE (p.relid = x.indrelid OR p.relid IS NULL)
         AND p.datname = pg_catalog.current_database())
  FROM pg_catalog.unnest($1::text[]) AS n(name)
  JOIN pg_catalog.pg_index x ON x.indrelid = pg_catalog.to_regclass(n.name)
  JOIN pg_catalog.pg_class i ON i.oid = x.indexrelid
  JOIN pg_catalog.pg_am m ON m.oid = i.relam`

	// Deserted is what schema.Inspect says if CheckAlive finds no forwarder, and a message that waits. admin.Doctor knows
	// more of that.
	Deserted = "has no running forwarder, and messages have been ready for more than a minute"

	// CheckAlive says whether a forwarder lives, and whether the first message that is ready has been for more than a
	// minute.
	CheckAlive = `SELECT EXISTS (SELECT FROM {forwarders} f WHERE f.expires_at > clock_timestamp()),
       coalesce((SELECT o.created_at < clock_timestamp() - interval '1 minute' FROM {outbox} o
                  WHERE o.published_at IS NULL AND o.dead_at IS NULL AND o.due_at IS NULL
                  ORDER BY o.lane, o.id LIMIT 1), false)`

	// CheckSequences describes sequences; one that is missing has no row.
	//
	// Arguments: names.
	CheckSequences = `SELECT n.name, s.seqincrement, s.seqcache, s.seqcycle, pg_catalog.format_type(s.seqtypid, NULL)
  FROM pg_catalog.unnest($1::text[]) AS n(name)
  JOIN pg_catalog.pg_sequence s ON s.seqrelid = pg_catalog.to_regclass(n.name)`

	// CheckBounds lists the checks of ids that are there for a moment while leaves are made: the table and the name of the
	// check, as SQL, whether it is one of the default, the first id that it refuses, the first that it takes again, and
	// the last id that was handed out, 0 if none was or the role may not know. To describe a check waits for its table,
	// and fails if that is dropped meanwhile: so it describes those alone.
	//
	// Arguments: name of the check on an outbox that is one table.
	CheckBounds = `WITH d AS MATERIALIZED (SELECT k.conname, t.relispartition AS of_default, pg_get_constraintdef(k.oid) AS def,
               quote_ident(n.nspname) || '.' || quote_ident(t.relname) AS sql
          FROM pg_constraint k JOIN pg_class t ON t.oid = k.conrelid JOIN pg_namespace n ON n.oid = t.relnamespace
         WHERE k.contype = 'c'
           AND (t.oid = to_regclass({outbox_text}) AND k.conname = $1::text
             OR k.conname = t.relname || '_bound' AND EXISTS (SELECT FROM pg_inherits i
                 WHERE i.inhrelid = t.oid AND i.inhparent = to_regclass({outbox_text}))))
SELECT d.sql, quote_ident(d.conname), d.of_default,
       substring(d.def from '< ''?([0-9]+)')::bigint,
       coalesce(substring(d.def from '>= ''?([0-9]+)')::bigint, 9223372036854775807),
       coalesce(CASE WHEN has_sequence_privilege(to_regclass({outbox_id_seq_text}), 'SELECT, USAGE')
         THEN pg_sequence_last_value(to_regclass({outbox_id_seq_text})) END, 0)
  FROM d
 WHERE d.def ~ '< ''?[0-9]'
 ORDER BY d.sql`
)
