package core

import "github.com/millrace-go/watermill-outbox/internal/sqltext"

// Beside makes a handle on the same pool with tables of its own, which are named after this one's outbox. It has no
// observers: what they count is the application's outbox.
func (db *DB) Beside(suffix string) (*DB, error) {
	if err := db.Check(); err != nil {
		return nil, err
	}
	return NewDB(db.pool, Config{
		Name: db.name, Tables: sqltext.Tables{Schema: db.tables.Schema, Outbox: db.tables.Outbox + suffix},
		DisableNotify: db.wakes.channel == "",
	}, db.logger)
}
