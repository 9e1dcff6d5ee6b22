package sqltext

// The statements that split an outbox that is one table into partitions, and join them again. {whole} is the outbox
// with its schema, {leaf} the partition that has its rows.
const (
	// PartitionLock has the table for itself at once, or not at all: others would queue up behind a lock that waits.
	// Without ONLY it has all partitions too.
	PartitionLock = `LOCK TABLE {outbox} IN ACCESS EXCLUSIVE MODE NOWAIT`

	// PartitionObstacles lists what depends on the very table and cannot go with its name, or what partitions cannot have.
	PartitionObstacles = `WITH t AS (SELECT c.oid, c.relkind, c.reltype, c.relname, n.nspname FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass({outbox_text}))
SELECT pg_describe_object(d.classid, d.objid, d.objsubid) FROM t JOIN pg_depend d
    ON d.refclassid = 'pg_class'::regclass AND d.refobjid = t.oid OR d.refclassid = 'pg_type'::regclass AND d.refobjid = t.reltype
 WHERE d.classid IN ('pg_rewrite'::regclass, 'pg_proc'::regclass, 'pg_publication_rel'::regclass)
    OR d.refclassid = 'pg_type'::regclass AND d.deptype = 'n'
 UNION SELECT pg_describe_object('pg_constraint'::regclass, c.oid, 0) FROM t JOIN pg_constraint c
    ON c.contype = 'f' AND t.oid IN (c.conrelid, c.confrelid)
 UNION SELECT pg_describe_object('pg_class'::regclass, i.inhrelid, 0) || ', which inherits' FROM t JOIN pg_inherits i
    ON t.relkind <> 'p' AND t.oid IN (i.inhparent, i.inhrelid)
 UNION SELECT pg_describe_object('pg_class'::regclass, x.indexrelid, 0) ||
              CASE WHEN x.indisvalid THEN ', which is unique without id' ELSE ', which is invalid' END
  FROM t JOIN pg_index x ON x.indrelid = t.oid
  LEFT JOIN pg_attribute a ON a.attrelid = t.oid AND a.attname = 'id'
 WHERE NOT x.indisvalid OR (x.indisunique OR x.indisexclusion) AND NOT a.attnum = ANY (x.indkey)
 UNION SELECT pg_describe_object('pg_constraint'::regclass, c.oid, 0) || ', which is NOT VALID' FROM t JOIN pg_constraint c
    ON c.conrelid = t.oid AND c.contype = 'c' AND NOT c.convalidated AND c.conname <> t.relname || '_below'
 UNION SELECT pg_describe_object('pg_class'::regclass, s.oid, 0) || ', which belongs to a column' FROM t JOIN pg_depend d
    ON d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = t.oid AND d.deptype IN ('a', 'i')
  JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S' AND s.oid <> to_regclass({outbox_id_seq_text})
 UNION SELECT 'publication ' || quote_ident(b.pubname) || ', which is of all tables or a schema'
  FROM t JOIN pg_publication_tables b ON b.schemaname = t.nspname AND b.tablename = t.relname
 WHERE NOT EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
                    WHERE p.pubname = b.pubname AND r.prrelid = t.oid)
 ORDER BY 1`

	// PartitionGranted lists the roles to whom ALTER DEFAULT PRIVILEGES grants tables that the current role makes, as SQL.
	// Nobody but the owner is to use a partition by its own name.
	PartitionGranted = `SELECT DISTINCT CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
  FROM pg_class t, pg_roles r, pg_default_acl d, aclexplode(d.defaclacl) a
 WHERE t.oid = to_regclass({outbox_text}) AND r.rolname = current_user AND d.defaclrole = r.oid AND d.defaclobjtype = 'r'
   AND d.defaclnamespace IN (0, t.relnamespace) AND a.grantee NOT IN (d.defaclrole, t.relowner) ORDER BY 1`

	// PartitionBelow describes the check that no id reaches the end of the first partition: whether it is validated, its
	// end (0 = there is none), the highest id that is stored, and the storage options of the table with | between them.
	//
	// Arguments: name of the constraint.
	PartitionBelow = `SELECT coalesce(c.convalidated, false),
       coalesce(substring(pg_get_constraintdef(c.oid) from '< ''?([0-9]+)')::bigint, 0),
       coalesce((SELECT max(o.id) FROM {outbox} o), 0), coalesce(array_to_string(t.reloptions, '|'), '')
  FROM (SELECT c.oid, c.reloptions FROM pg_class c WHERE c.oid = to_regclass({outbox_text})) t
  LEFT JOIN pg_constraint c ON c.conrelid = t.oid AND c.contype = 'c' AND c.conname = $1::text`

	// PartitionBound has ATTACH find the rows to be where they should without reading them.
	PartitionBound = `ALTER TABLE {whole} ADD CONSTRAINT {below} CHECK (id IS NOT NULL AND id < {end}) NOT VALID`

	// PartitionValidate reads the table once, and no writer waits for it.
	PartitionValidate = `ALTER TABLE {whole} VALIDATE CONSTRAINT {below}`
	PartitionUnbound  = `ALTER TABLE {whole} DROP CONSTRAINT IF EXISTS {below}`

	// PartitionIndexes lists the indexes of the table as statements: what makes each of them, in the same tablespace, and
	// what gives it a name after the partition.
	//
	// Arguments: name of the outbox, name of the partition.
	PartitionIndexes = `SELECT CASE WHEN k.oid IS NULL THEN pg_get_indexdef(i.oid)
            ELSE format('ALTER TABLE %s ADD CONSTRAINT %I %s', x.indrelid::regclass, k.conname, pg_get_constraintdef(k.oid)) END ||
         coalesce((SELECT format('; ALTER INDEX %I.%I SET TABLESPACE %I', n.nspname, i.relname, s.spcname)
                     FROM pg_tablespace s WHERE s.oid = i.reltablespace), ''),
       format('ALTER INDEX %I.%I RENAME TO %I', n.nspname, i.relname,
         CASE WHEN starts_with(i.relname, $1::text || '_') THEN $2::text || substr(i.relname, length($1::text) + 1)
              ELSE left(i.relname, 50) || '_p0' END)
  FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_namespace n ON n.oid = i.relnamespace
  LEFT JOIN pg_constraint k ON k.conindid = i.oid AND k.conrelid = x.indrelid
 WHERE x.indrelid = to_regclass({outbox_text}) ORDER BY x.indisprimary DESC, i.relname`

	// PartitionIndexesBack lists statements that give the indexes of a partition the names of those of the whole table.
	//
	// Arguments: the partition as SQL.
	PartitionIndexesBack = `SELECT format('ALTER INDEX %I.%I RENAME TO %I', n.nspname, i.relname, p.relname)
  FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_namespace n ON n.oid = i.relnamespace
  JOIN pg_inherits h ON h.inhrelid = i.oid JOIN pg_class p ON p.oid = h.inhparent
 WHERE x.indrelid = to_regclass($1::text) ORDER BY i.relname`

	// PartitionRights lists statements that give a table what belongs to the name of the outbox: privileges, row
	// security, triggers, replica identity and comment.
	PartitionRights = `WITH t AS (SELECT c.*, format('%I.%I', n.nspname, c.relname) AS sql
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass({outbox_text})),
  rights AS (SELECT a.*, '' AS of FROM t, aclexplode(t.relacl) a
    UNION ALL SELECT a.*, format(' (%I)', c.attname) FROM t JOIN pg_attribute c ON c.attrelid = t.oid AND NOT c.attisdropped,
      aclexplode(c.attacl) a)
SELECT s.statement FROM t, LATERAL (
    SELECT 1, format('GRANT %s%s ON TABLE %s TO %s', r.privilege_type, r.of, t.sql,
             CASE r.grantee WHEN 0 THEN 'PUBLIC' ELSE r.grantee::regrole::text END) ||
           CASE WHEN r.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END FROM rights r WHERE r.grantee <> t.relowner
    UNION ALL SELECT 2, format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', t.sql) WHERE t.relrowsecurity
    UNION ALL SELECT 2, format('ALTER TABLE %s FORCE ROW LEVEL SECURITY', t.sql) WHERE t.relforcerowsecurity
    UNION ALL SELECT 2, format('CREATE POLICY %I ON %s AS %s FOR %s TO %s', p.polname, t.sql,
             CASE WHEN p.polpermissive THEN 'PERMISSIVE' ELSE 'RESTRICTIVE' END,
             CASE p.polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE' WHEN 'd' THEN 'DELETE'
               ELSE 'ALL' END,
             (SELECT string_agg(CASE u WHEN 0 THEN 'PUBLIC' ELSE u::regrole::text END, ', ') FROM unnest(p.polroles) u)) ||
           coalesce(' USING (' || pg_get_expr(p.polqual, t.oid) || ')', '') ||
           coalesce(' WITH CHECK (' || pg_get_expr(p.polwithcheck, t.oid) || ')', '') FROM pg_policy p WHERE p.polrelid = t.oid
    UNION ALL SELECT 3, pg_get_triggerdef(g.oid) FROM pg_trigger g WHERE g.tgrelid = t.oid AND NOT g.tgisinternal
    UNION ALL SELECT 4, format('ALTER TABLE %s %s TRIGGER %I', t.sql,
             CASE g.tgenabled WHEN 'D' THEN 'DISABLE' WHEN 'R' THEN 'ENABLE REPLICA' ELSE 'ENABLE ALWAYS' END, g.tgname)
      FROM pg_trigger g WHERE g.tgrelid = t.oid AND NOT g.tgisinternal AND g.tgenabled <> 'O'
    UNION ALL SELECT 5, format('ALTER TABLE %s REPLICA IDENTITY %s', t.sql, CASE t.relreplident WHEN 'f' THEN 'FULL'
             WHEN 'n' THEN 'NOTHING' ELSE 'USING INDEX ' || (SELECT quote_ident(i.relname) FROM pg_index x
               JOIN pg_class i ON i.oid = x.indexrelid WHERE x.indrelid = t.oid AND x.indisreplident) END)
      WHERE t.relreplident <> 'd'
    UNION ALL SELECT 6, format('COMMENT ON TABLE %s IS %L', t.sql, obj_description(t.oid, 'pg_class'))
      WHERE obj_description(t.oid, 'pg_class') IS NOT NULL
  ) s (step, statement) ORDER BY s.step, s.statement`

	// PartitionStrip lists statements that take from the table what PartitionRights lists. Nobody but the owner is to use
	// a partition by its own name.
	PartitionStrip = `WITH t AS (SELECT c.*, format('%I.%I', n.nspname, c.relname) AS sql
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass({outbox_text}))
SELECT format('DROP TRIGGER %I ON %s', g.tgname, t.sql) FROM t JOIN pg_trigger g ON g.tgrelid = t.oid AND NOT g.tgisinternal
 UNION ALL SELECT format('DROP POLICY %I ON %s', p.polname, t.sql) FROM t JOIN pg_policy p ON p.polrelid = t.oid
 UNION ALL SELECT format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY', t.sql) FROM t
 UNION ALL SELECT DISTINCT format('REVOKE ALL ON TABLE %s FROM %s CASCADE', t.sql,
       CASE r.grantee WHEN 0 THEN 'PUBLIC' ELSE r.grantee::regrole::text END)
  FROM t, LATERAL (SELECT a.grantee FROM aclexplode(t.relacl) a
    UNION SELECT a.grantee FROM pg_attribute c, aclexplode(c.attacl) a WHERE c.attrelid = t.oid) r
 WHERE r.grantee <> t.relowner`

	// PartitionSwap puts a table in partitions in the place of the outbox, which becomes its first partition. What makes
	// the same checks of its rows is what it was, so nothing is read.
	PartitionSwap = `ALTER TABLE {whole} RENAME TO {name};
CREATE TABLE {whole} (LIKE {leaf} INCLUDING ALL EXCLUDING INDEXES) PARTITION BY RANGE (id){tablespace};
ALTER TABLE {whole} OWNER TO {owner};
ALTER TABLE {whole} DROP CONSTRAINT {below};
ALTER SEQUENCE {outbox_id_seq} OWNED BY {whole}.id`

	// PartitionAttach is the end of it, once the indexes are there.
	PartitionAttach = `ALTER TABLE {whole} ATTACH PARTITION {leaf} FOR VALUES FROM (MINVALUE) TO ({end});
ALTER TABLE {leaf} DROP CONSTRAINT {below}`

	// PartitionAhead makes one of the other partitions, {of} being its bounds.
	PartitionAhead = `CREATE TABLE {leaf} PARTITION OF {whole} {of}{options}; ALTER TABLE {leaf} OWNER TO {owner}`

	// PartitionBack puts the partition that has all rows in the place of the whole table; the others hold nothing. {bound}
	// is a check that a roll may have left, which would refuse ids for good.
	PartitionBack = `ALTER SEQUENCE {outbox_id_seq} OWNED BY NONE;
ALTER TABLE {whole} DETACH PARTITION {leaf};
ALTER TABLE {leaf} DROP CONSTRAINT IF EXISTS {bound};
DROP TABLE {whole};
ALTER TABLE {leaf} RENAME TO {name};
ALTER SEQUENCE {outbox_id_seq} OWNED BY {whole}.id`

	// PartitionFirst has a row for a partition that is not empty.
	PartitionFirst = `SELECT o.id FROM ONLY {leaf} o ORDER BY o.id LIMIT 1`
)
