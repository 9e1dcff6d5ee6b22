package sqltext

// Our statements are sent by sessions of the user's pool, with the settings of its role. They are written so that few
// settings matter, and those are set for the statement's own transaction where they are others. docs/run/postgresql.md
// lists them.
const (
	// CheckSettings reads settings with what has set them: 'user' is ALTER ROLE, 'database' ALTER DATABASE.
	//
	// Arguments: names.
	CheckSettings = `SELECT lower(s.name), s.setting, s.source, coalesce(s.unit, ''), current_user::text,
       pg_catalog.current_database()::text
  FROM pg_catalog.pg_settings s WHERE lower(s.name) = ANY ($1::text[]) ORDER BY s.name`

	// OrdinaryTables has tables made that can be updated. The tablespace of the database must not be named for one in
	// partitions.
	OrdinaryTables = `SELECT pg_catalog.set_config('default_table_access_method', 'heap', true),
       pg_catalog.set_config('default_tablespace',
         coalesce(nullif(pg_catalog.current_setting('default_tablespace'), s.spcname), ''), true)
  FROM pg_catalog.pg_database d JOIN pg_catalog.pg_tablespace s ON s.oid = d.dattablespace
 WHERE d.datname = pg_catalog.current_database()`

	// NoTimeout lifts the timeouts of the role for a transaction that reads a whole table. Servers before 17 have no
	// transaction_timeout.
	NoTimeout = `SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true),
       (SELECT set_config(s.name, '0', true) FROM pg_settings s WHERE s.name = 'transaction_timeout')`

	// isUTF8 is true, or fails with text.NotUTF8: the client sends UTF-8, and the server would take it for something else
	// and convert it.
	isUTF8 = `ln(CASE WHEN current_setting('client_encoding') IN ('UTF8', current_setting('server_encoding')) THEN 1 ` +
		`ELSE 0 END) = 0`

	// isReadCommitted is true, or fails with text.NotReadCommitted. Elsewhere a statement that waits for a lock on its
	// table, while that is rewritten, has a snapshot of before, and sees none of the rows.
	isReadCommitted = `power(CASE current_setting('transaction_isolation') WHEN 'read committed' THEN 1 ELSE 0 END, ` +
		`-1) = 1`
)
