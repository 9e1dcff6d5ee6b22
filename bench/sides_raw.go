package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
)

const rawBatch = 1000

// rawLoop measures an afternoon's work of a good engineer: one connection, a low-water mark, one UPDATE or DELETE per
// 1,000 messages. It has no concurrency, no second process and no retries, and misses late commits.
func (b *bench) rawLoop(n int, settle string) func(context.Context) (measured, error) {
	return func(ctx context.Context) (measured, error) {
		d, err := b.newDatabase(ctx)
		if err != nil {
			return measured{}, err
		}
		defer d.drop()
		if err := d.backlog(ctx, n); err != nil {
			return measured{}, err
		}
		conn, err := pgx.Connect(ctx, d.url)
		if err != nil {
			return measured{}, err
		}
		defer conn.Close(ctx)
		s := newSink(n)
		begun := time.Now()
		if err := rawDrain(ctx, conn, s, settle); err != nil {
			return measured{}, err
		}
		took := time.Since(begun)
		return measured{value: perSecond(n, took)}, errors.Join(s.check(), d.settled(ctx))
	}
}

const (
	rawRead = `SELECT id, uuid, topic, payload, metadata FROM outbox
 WHERE id > $1 AND published_at IS NULL AND dead_at IS NULL AND due_at IS NULL ORDER BY id LIMIT $2`
	rawMark   = `UPDATE outbox SET published_at = clock_timestamp() WHERE id = ANY ($1)`
	rawDelete = `DELETE FROM outbox WHERE id = ANY ($1)`
)

type rawRow struct {
	topic string
	msg   *message.Message
}

func rawDrain(ctx context.Context, conn *pgx.Conn, pub message.Publisher, settle string) error {
	low := int64(0)
	ids, batch := make([]int64, 0, rawBatch), make([]rawRow, 0, rawBatch)
	for {
		ids, batch = ids[:0], batch[:0]
		rows, err := conn.Query(ctx, rawRead, low, rawBatch)
		if err != nil {
			return err
		}
		for rows.Next() {
			var id int64
			var uuid, topic string
			var payload, metadata []byte
			if err := rows.Scan(&id, &uuid, &topic, &payload, &metadata); err != nil {
				return err
			}
			msg := message.NewMessage(uuid, payload)
			if err := json.Unmarshal(metadata, &msg.Metadata); err != nil {
				return err
			}
			ids, batch = append(ids, id), append(batch, rawRow{topic, msg})
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if len(batch) == 0 {
			return nil
		}
		for _, r := range batch {
			if err := pub.Publish(r.topic, r.msg); err != nil {
				return err
			}
		}
		if _, err := conn.Exec(ctx, settle, ids); err != nil {
			return err
		}
		low = ids[len(ids)-1]
	}
}
