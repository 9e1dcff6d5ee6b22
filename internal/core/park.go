package core

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

const (
	parkSuffix = "_parked"
	mostParked = 1000 // keys that are listed
)

// ErrParkHidden is returned by ParkedKeys if there is a park that the role may not read.
//
// Cause: the role may not read the tables of parked keys.
// Cure: grant it what the reader of schema.Roles has, on those tables.
var ErrParkHidden = errors.New("the role may not read the tables of parked keys")

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

// ParkedKey is a key that a subscriber has parked.
type ParkedKey struct {
	Group, Topic string
	Partition    int32
	Key          string // empty: messages without a key, of any partition
	RowKey       string // the ordering key of the rows: the partition, a slash and the key
	Messages     int64
	Age          time.Duration // since the oldest was parked
	Since        time.Time
	Attempts     int // of the oldest, since then
	LastError    string
	Delivered    bool // a running process delivers it
}

// ParkedKeys lists what is parked beside this outbox, oldest first, at most 1,000 keys. Messages without a key are one.
func (db *DB) ParkedKeys(ctx context.Context) ([]ParkedKey, error) {
	if err := db.Check(); err != nil {
		return nil, err
	}
	park, err := db.Park()
	if err != nil {
		return nil, nil // its name would be too long, so there is none
	}
	var there, mayRead bool
	err = db.Walk(ctx, func(rows drive.Rows) error { return rows.Scan(&there, &mayRead) },
		sqltext.ParkSeen, park.Render("{outbox}"))
	switch {
	case err != nil || !there:
		return nil, err
	case !mayRead:
		return nil, ErrParkHidden
	}
	var list []ParkedKey
	err = park.Walk(ctx, func(rows drive.Rows) error {
		var k ParkedKey
		var topic string
		var age float64
		err := rows.Scan(&topic, &k.RowKey, &k.Messages, &age, &k.Since, &k.Attempts, &k.LastError, &k.Delivered)
		if i := strings.LastIndexByte(topic, '/'); i >= 0 {
			k.Group, k.Topic = topic[:i], topic[i+1:]
		}
		partition, key, _ := strings.Cut(k.RowKey, "/")
		n, _ := strconv.ParseInt(partition, 10, 32)
		k.Partition, k.Key, k.Age = int32(n), key, time.Duration(age*float64(time.Second))
		list = append(list, k)
		return err
	}, park.Render(sqltext.ParkedKeys), int64(mostParked))
	if text.SQLState(err) == text.InsufficientPrivilege {
		err = ErrParkHidden
	}
	return list, err
}
