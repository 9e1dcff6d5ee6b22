// Package parked lists what subscribers of Kafka have parked beside an outbox, for those who show it.
package parked

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// most is how many keys are listed.
const most = 1000

// ErrHidden is returned by Keys if there is a park that the role may not read.
//
// Cause: the role may not read the tables of parked keys.
// Cure: grant it what the reader of schema.Roles has, on those tables.
var ErrHidden = errors.New("the role may not read the tables of parked keys")

// Key is one that a subscriber has parked.
type Key struct {
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

// Keys lists what is parked beside the outbox of a handle, oldest first, at most 1,000 keys. Messages without a key are
// one.
func Keys(ctx context.Context, db *core.DB) ([]Key, error) {
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
		return nil, ErrHidden
	}
	var list []Key
	err = park.Walk(ctx, func(rows drive.Rows) error {
		var k Key
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
	}, park.Render(sqltext.ParkedKeys), int64(most))
	if text.SQLState(err) == text.InsufficientPrivilege {
		err = ErrHidden
	}
	return list, err
}
