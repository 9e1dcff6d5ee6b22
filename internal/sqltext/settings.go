package sqltext

// Our statements run in sessions of the user's pool, with the settings of its role. They are written so that few
// settings matter, and set those for the statement's own transaction. docs/run/postgresql.md lists them.
const (
	// CheckSettings reads settings and their sources: 'user' is ALTER ROLE, 'database' ALTER DATABASE.
	//
	// Arguments: names.
	CheckSettings = `SELECT lower(s.name), s.setting, s.source, coalesce(s.unit, ''), current_user::text,
       pg_catalog.current_database()::text
  FROM pg_catalog.pg_settings s WHERE lower(s.name) = ANY ($1::text[]) ORDER BY s.name`

	// OrdinaryTables makes CREATE TABLE create tables that can be updated. A partitioned table must not name the
	// tablespace of the database.
	OrdinaryTables = `SELECT pg_catalog.set_config('default_table_access_method', 'heap', true),
       pg_catalog.set_config('default_tablespace',
         coalesce(nullif(pg_catalog.current_setting('default_tablespace'), s.spcname), ''), true)
  FROM pg_catalog.pg_database d JOIN pg_catalog.pg_tablespace s ON s.oid = d.dattablespace
 WHERE d.datname = pg_catalog.current_database()`

	// NoTimeout disables the timeouts of the role for a transaction that reads a whole table. Servers before 17 have no
	// transaction_timeout.
	NoTimeout = `SELECT set_config('statement_timeout', '0', true), set_config('lock_timeout', '0', true),
       (SELECT set_config(s.name, '0', true) FROM pg_settings s WHERE s.name = 'transaction_timeout')`

	// isUTF8 is true, or fails with text.NotUTF8: the client sends UTF-8, and the server would convert it from another
	// encoding.
	isUTF8 = `ln(CASE WHEN current_setting('client_encoding') IN ('UTF8', current_setting('server_encoding')) THEN 1 ` +
		`ELSE 0 END) = 0`

	// isReadCommitted is true, or fails with text.NotReadCommitted. At other levels a statement that waits for a lock
	// while its table is rewritten has an older snapshot, and sees no rows.
	isReadCommitted = `power(CASE current_setting('transaction_isolation') WHEN 'read committed' THEN 1 ELSE 0 END, ` +
		`-1) = 1`
)
