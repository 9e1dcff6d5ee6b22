package outbox

import (
	"database/sql"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/observe"
)

// DB is a handle on a Postgres database and one set of tables. Create one for each pool and share it: commits through a
// handle wake its forwarder immediately. It is safe for concurrent use and does not close the pool. Several handles may
// share a pool, each with its own tables; they share transactions.
type DB core.DB

// DBConfig configures a handle. The zero value is ready for use.
type DBConfig struct {
	// Name is the database's name in logs and metrics; default: its real name with FromPgx, "postgres" with FromSQL.
	Name string
	// Tables are the names of the tables; default: outbox and others in the search path. Set Tables.Outbox for a second
	// outbox in the same schema.
	Tables Tables
	// Observers are notified of work done through the handle; default none. Each implements interfaces of package observe.
	Observers []observe.Observer
	// DisableNotify stops commits from notifying other processes; default off. They find messages at their next poll.
	// Set it if commits wait for each other in NOTIFY.
	DisableNotify bool
}

// Tables are the names of the tables. The zero value is the defaults in the connection's search path. A name has at
// most 40 ASCII letters, digits, _, $ and -, and begins with a letter or _. It is always quoted, so it is
// case-sensitive. Derived names may be longer. Services that share a schema must each choose a different Outbox.
type Tables struct {
	// Schema of all tables; default: the connection's search_path. Set it if your code changes the search_path of its
	// sessions.
	Schema     string
	Outbox     string // default "outbox"
	Lanes      string // default: Outbox + "_lanes"
	Forwarders string // default: Outbox + "_forwarders"
	Migrations string // default: Outbox + "_migrations"
	Inbox      string // default: "inbox" with the default Outbox, else Outbox + "_inbox"
	Queue      string // default: "inbox_queue" with the default Outbox, else Outbox + "_queue"
	Audit      string // default: Outbox + "_audit"
	// Idempotency is for responses to HTTP requests, of package idempotency; default: Outbox + "_idempotency".
	Idempotency string
}

// FromPgx makes a handle on a pgx pool. It does no I/O. It returns ErrNoDB for a nil pool, or an error that
// names an invalid field. Parts without their own logger use this one; nil logs nothing.
func FromPgx(pool *pgxpool.Pool, cfg DBConfig, logger watermill.LoggerAdapter) (*DB, error) {
	if pool == nil {
		return nil, ErrNoDB
	}
	return newDB(drive.NewPgx(pool), cfg, logger)
}

// FromSQL makes a handle on a database/sql pool of any Postgres driver, such as pgx's stdlib or lib/pq. Otherwise it is
// like FromPgx. With pgx's stdlib keep the description cache on (description_cache_capacity, 512 by default), or
// statements outside transactions fail.
func FromSQL(pool *sql.DB, cfg DBConfig, logger watermill.LoggerAdapter) (*DB, error) {
	if pool == nil {
		return nil, ErrNoDB
	}
	return newDB(drive.NewSQL(pool), cfg, logger)
}

func newDB(pool drive.Pool, cfg DBConfig, logger watermill.LoggerAdapter) (*DB, error) {
	db, err := core.NewDB(pool, core.Config{
		Name: cfg.Name, Tables: sqltext.Tables(cfg.Tables), Observers: cfg.Observers, DisableNotify: cfg.DisableNotify,
	}, logger)
	return (*DB)(db), err
}

// Name returns the name of the database in logs and metrics, "" for a nil handle.
func (db *DB) Name() string { return (*core.DB)(db).Name() }

// Tables returns the names of the tables, defaults filled in.
func (db *DB) Tables() Tables { return Tables((*core.DB)(db).Tables()) }

// Wake makes forwarders everywhere poll for messages now. It is for messages whose COMMIT this module did not see:
// written in a transaction of WithPgxTx or WithSQLTx, or by plain SQL. Without it they are found at the next poll.
func (db *DB) Wake() { (*core.DB)(db).Wake() }
