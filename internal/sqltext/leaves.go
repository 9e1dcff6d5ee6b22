package sqltext

// The statements on an outbox in partitions: its leaves.
const (
	// Leaves lists the leaves of the outbox: name, as SQL, bounds as CREATE TABLE writes them, bytes of its rows and with
	// its indexes, rows as the last ANALYZE or VACUUM counted them (-1 = never), storage options with | between them. A
	// leaf that is dropped meanwhile is empty.
	Leaves = `SELECT c.relname::text, quote_ident(n.nspname) || '.' || quote_ident(c.relname),
       coalesce(pg_get_expr(c.relpartbound, c.oid), ''), coalesce(pg_relation_size(c.oid), 0),
       coalesce(pg_total_relation_size(c.oid), 0),
       CASE WHEN c.relpages = 0 AND c.reltuples = 0 AND current_setting('server_version_num')::int < 140000 THEN -1
            ELSE c.reltuples END::bigint,
       coalesce(array_to_string(c.reloptions, '|'), '')
  FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE i.inhparent = to_regclass({outbox_text}) ORDER BY c.relname`

	// LeavesParent says of the outbox whether it is in partitions, its schema, its owner, who asks, all as SQL, whether
	// that role has the privileges of the owner, and the last id that was handed out, 0 if none was or the role may not
	// know.
	LeavesParent = `SELECT c.relkind = 'p', c.relnamespace::regnamespace::text, c.relowner::regrole::text,
       quote_ident(current_user), pg_has_role(c.relowner, 'USAGE'),
       coalesce(CASE WHEN has_sequence_privilege(to_regclass({outbox_id_seq_text}), 'SELECT, USAGE')
         THEN pg_sequence_last_value(to_regclass({outbox_id_seq_text})) END, 0)
  FROM pg_class c WHERE c.oid = to_regclass({outbox_text})`
)
