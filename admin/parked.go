package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/parked"
)

// ParkedKey is a key of Kafka that a subscriber has parked (subscriber/kafka, ParkConfig): its messages are in a table
// beside the outbox, outbox_parked, and are delivered from there until all of them are handled.
type ParkedKey struct {
	Group     string `json:"group"` // the consumer group
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	// Key is the Kafka message's, or its hash if the outbox cannot store it. Empty: messages without a key, of any
	// partition.
	Key      string `json:"key"`
	Messages int64  `json:"messages"`
	// Since is when the oldest of them was parked, and Age how long ago that is. It had failed before.
	Since time.Time     `json:"since"`
	Age   time.Duration `json:"age"`
	// Attempts is how often the oldest failed since then, and LastError the last of its errors, as far as the middlewares
	// of this library are around the handler.
	Attempts  int    `json:"attempts"`
	LastError string `json:"last_error,omitempty"`
	// Delivered says that a running process delivers them. Where none does, they wait, and so does their key.
	Delivered bool `json:"delivered"`

	rowKey string
}

// ParkedKeys lists what the subscribers of all groups have parked beside this outbox, the oldest first, at most 1,000
// keys. It counts each row that waits there, so it takes longer the more of them there are. There is none, and no
// error, where no subscriber parks. It returns errors of the database.
func (a *Admin) ParkedKeys(ctx context.Context) ([]ParkedKey, error) {
	list, err := a.parkedKeys(ctx)
	if err != nil {
		return nil, fmt.Errorf("parked keys: %w", err)
	}
	return list, nil
}

func (a *Admin) parkedKeys(ctx context.Context) ([]ParkedKey, error) {
	ctx, cancel := a.bound(ctx)
	defer cancel()
	keys, err := parked.Keys(ctx, a.db)
	list := make([]ParkedKey, 0, len(keys))
	for _, k := range keys {
		list = append(list, ParkedKey{
			Group: k.Group, Topic: k.Topic, Partition: k.Partition, Key: k.Key, Messages: k.Messages, Since: k.Since, Age: k.Age,
			Attempts: k.Attempts, LastError: k.LastError, Delivered: k.Delivered, rowKey: k.RowKey,
		})
	}
	return list, explain(err)
}

// parkedForStats leaves out what the role may not see: Doctor says so.
func (a *Admin) parkedForStats(ctx context.Context) ([]ParkedKey, error) {
	list, err := a.parkedKeys(ctx)
	if errors.Is(err, parked.ErrHidden) {
		err = nil
	}
	return list, err
}
