package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	outbox "github.com/millrace-go/watermill-outbox"
)

const (
	topic        = "events"
	keys         = 10_000
	payloadBytes = 500
)

var payload = []byte(`{"text":"` + strings.Repeat("0123456789", payloadBytes/10)[:payloadBytes-11] + `"}`)

// uuidOf encodes the index of a message, so that its receiver can check it without a map.
func uuidOf(i int) string {
	return fmt.Sprintf("%08x-b16b-4000-8000-%012x", uint32(i)*2654435761, i)
}

// indexOf is the inverse of uuidOf; -1 for other UUIDs.
func indexOf(uuid string) int {
	if len(uuid) != 36 {
		return -1
	}
	n := 0
	for _, c := range []byte(uuid[24:]) {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | int(c-'0')
		case c >= 'a' && c <= 'f':
			n = n<<4 | int(c-'a'+10)
		default:
			return -1
		}
	}
	return n
}

func keyOf(i int) string { return fmt.Sprintf("key-%d", i%keys) }

// messageOf returns message i as an application would make it.
func messageOf(i int) *message.Message {
	msg := message.NewMessage(uuidOf(i), payload)
	outbox.SetKey(msg, keyOf(i))
	return msg
}

type copier interface {
	CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error)
}

// load writes messages first to first+n-1 to the outbox, in this order.
func load(ctx context.Context, to copier, first, n int) error {
	return loadKeyed(ctx, to, first, n, keyOf)
}

func loadKeyed(ctx context.Context, to copier, first, n int, key func(int) string) error {
	i := first
	_, err := to.CopyFrom(ctx, pgx.Identifier{"outbox"}, []string{"uuid", "topic", "key", "payload", "metadata"},
		pgx.CopyFromFunc(func() ([]any, error) {
			if i == first+n {
				return nil, nil
			}
			k := key(i)
			row := []any{uuidOf(i), topic, k, payload, `{"` + outbox.MetadataKey + `":"` + k + `"}`}
			i++
			return row, nil
		}))
	if err != nil {
		return fmt.Errorf("load %d messages: %w", n, err)
	}
	return nil
}

// backlog loads n messages and runs ANALYZE, as autovacuum would after a while. Without statistics the planner reads
// the rows of the hand-written loop in the wrong order, which we do not want to measure.
func (d *database) backlog(ctx context.Context, n int) error {
	if err := load(ctx, d.pool, 0, n); err != nil {
		return err
	}
	_, err := d.pool.Exec(ctx, "ANALYZE")
	return err
}
