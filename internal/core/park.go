package core

import "github.com/millrace-go/watermill-outbox/internal/sqltext"

const parkSuffix = "_parked"

// Park makes a handle on the same pool whose tables are those of parked keys, which are named after this one's outbox.
// It has no observers: what they count is the application's outbox.
func (db *DB) Park() (*DB, error) {
	if err := db.Check(); err != nil {
		return nil, err
	}
	return NewDB(db.pool, Config{
		Name: db.name, Tables: sqltext.Tables{Schema: db.tables.Schema, Outbox: db.tables.Outbox + parkSuffix},
		DisableNotify: db.wakes.channel == "",
	}, db.logger)
}

// ParkTopic is the topic of the rows in the park: a consumer group and a topic of Kafka, which has no slash.
func ParkTopic(group, topic string) string { return group + "/" + topic }
