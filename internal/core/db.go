package core

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/google/uuid"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/meter"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/observe"
)

// ErrNoDB is outbox.ErrNoDB.
var ErrNoDB = errors.New("outbox: no database: pass a handle from FromPgx or FromSQL, made from a pool that is not nil")

// DB is outbox.DB: a handle on a database and one set of tables. Its fields never change; those with mutable state are
// safe for concurrent use.
type DB struct {
	pool      drive.Pool
	name      string
	id        string // tells our own notifications from others'
	tables    sqltext.Tables
	observers []observe.Observer
	logger    watermill.LoggerAdapter
	notifier  notifier
	consumers consumers
	sources   sources
	handlers  handlers
	rendered  sync.Map // rendered statements

	outbox               string // names of the tables in SQL
	insert, insertMarked string
}

// Config is outbox.DBConfig.
type Config struct {
	Name          string
	Tables        sqltext.Tables
	Observers     []observe.Observer
	DisableNotify bool
}

// NewDB returns a handle.
func NewDB(pool drive.Pool, cfg Config, logger watermill.LoggerAdapter) (*DB, error) {
	if err := cfg.Tables.Validate(); err != nil {
		return nil, fmt.Errorf("DBConfig.Tables: %w", err)
	}
	for i, o := range cfg.Observers {
		if !isObserver(o) {
			return nil, fmt.Errorf("DBConfig.Observers[%d] is %T, which has none of the interfaces of package observe", i, o)
		}
	}
	if cfg.Name == "" {
		cfg.Name = pool.Name()
	}
	logger = RedactingLogger(logger)
	db := &DB{
		pool: pool, name: cfg.Name, id: uuid.NewString(), tables: cfg.Tables.WithDefaults(), observers: cfg.Observers,
		logger: logger,
	}
	db.outbox = db.tables.OutboxName()
	db.insert, db.insertMarked = db.tables.Render(sqltext.InsertMessages), db.tables.Render(sqltext.InsertMarked)
	if !cfg.DisableNotify {
		db.notifier.channel = db.tables.Channel()
	}
	return db, nil
}

func isObserver(o observe.Observer) bool {
	if v := reflect.ValueOf(o); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return false
	}
	switch o.(type) {
	case meter.TxObserver, observe.WriteObserver, observe.HandleObserver,
		observe.PublishObserver, observe.DeadObserver, observe.TopicObserver, meter.ForwarderObserver:
		return true
	}
	return false
}

// Check returns ErrNoDB for a nil handle or one that was not made by a constructor.
func (db *DB) Check() error {
	if db == nil || db.pool == nil {
		return ErrNoDB
	}
	return nil
}

// shares reports whether two handles can share transactions because they use the same pool, perhaps with different
// tables.
func (db *DB) shares(other *DB) bool { return db == other || db.Pool() == other.Pool() }

// Pool returns the ID of the pool, which is the same for all handles on it.
func (db *DB) Pool() any { return db.pool.ID() }

// Conns returns the size of the pool, the number of its connections that a forwarder needs, and the number opened
// outside it.
func (db *DB) Conns() drive.Conns {
	if p, ok := db.pool.(drive.Counted); ok {
		return p.Conns()
	}
	return drive.Conns{}
}

// SameOutbox reports whether two handles write to and read from the same outbox table.
func (db *DB) SameOutbox(other *DB) bool { return db.shares(other) && db.outbox == other.outbox }

// Name returns the name of the database in logs and metrics, "" for a nil handle.
func (db *DB) Name() string {
	if db == nil {
		return ""
	}
	return db.name
}

// Tables returns the names of the tables, every one filled in.
func (db *DB) Tables() sqltext.Tables {
	if db == nil {
		return sqltext.Tables{}.WithDefaults()
	}
	return db.tables
}

// Render puts the names of the tables into a statement. The result is cached, so a statement must not contain values.
func (db *DB) Render(statement string) string {
	if db == nil {
		return db.Tables().Render(statement)
	}
	if kept, ok := db.rendered.Load(statement); ok {
		return kept.(string)
	}
	rendered := db.tables.Render(statement)
	db.rendered.Store(statement, rendered)
	return rendered
}

// Logger returns the logger for a part that uses this handle: its own, or else the handle's. Every line has the name of
// the handle.
func (db *DB) Logger(own watermill.LoggerAdapter) watermill.LoggerAdapter {
	if own == nil {
		own = db.logger
	}
	return RedactingLogger(own).With(watermill.LogFields{"db": db.name})
}

// Exec runs one statement outside any transaction and returns the number of affected rows.
func (db *DB) Exec(ctx context.Context, query string, args ...any) (int64, error) {
	if err := db.Check(); err != nil {
		return 0, err
	}
	return db.pool.Exec(ctx, query, args...)
}

// Query runs one query outside any transaction. The rows must be closed.
func (db *DB) Query(ctx context.Context, query string, args ...any) (drive.Rows, error) {
	if err := db.Check(); err != nil {
		return nil, err
	}
	return db.pool.Query(ctx, query, args...)
}

// Dedicated calls Dedicated of the pool.
func (db *DB) Dedicated(ctx context.Context) (drive.Querier, func(), error) {
	if err := db.Check(); err != nil {
		return nil, nil, err
	}
	return db.pool.Dedicated(ctx)
}

// ReaderConn calls ReaderConn of the pool.
func (db *DB) ReaderConn(ctx context.Context) (drive.Querier, func(), error) {
	if err := db.Check(); err != nil {
		return nil, nil, err
	}
	return db.pool.ReaderConn(ctx)
}

// PlanCached calls PlanCached of the pool. The handle must be valid.
func (db *DB) PlanCached() drive.Querier { return db.pool.PlanCached() }

// Reset calls Reset of the pool.
func (db *DB) Reset() {
	if db.Check() == nil {
		db.pool.Reset()
	}
}
