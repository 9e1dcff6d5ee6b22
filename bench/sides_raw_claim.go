package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// A work queue with leases as a good engineer writes it in an afternoon: duplicates by a unique constraint, a status,
// attempts, owner and lease in the row, an index of ready rows, and two statements.
const (
	rawJobs = `CREATE TABLE jobs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source text NOT NULL, message_id text NOT NULL, topic text NOT NULL, payload bytea NOT NULL,
    metadata jsonb NOT NULL DEFAULT '{}',
    status text NOT NULL DEFAULT 'ready', attempts int NOT NULL DEFAULT 0, owner uuid, locked_until timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(), done_at timestamptz,
    UNIQUE (source, message_id)
)`
	rawReady = `CREATE INDEX ON jobs (id) WHERE status = 'ready'`
	rawClaim = `UPDATE jobs SET status = 'claimed', owner = $1, locked_until = now() + interval '30 s'
 WHERE id IN (SELECT id FROM jobs WHERE id > $2 AND status = 'ready' ORDER BY id LIMIT $3 FOR UPDATE SKIP LOCKED)
RETURNING id, message_id, topic, payload, metadata, attempts`
	rawAck = `UPDATE jobs SET status = 'done', done_at = now(), owner = NULL, locked_until = NULL,
    payload = '', metadata = '{}'
 WHERE id = ANY ($1) AND owner = $2`
)

var rawQueue = queueTable{"jobs", "status", "ready"}

// rawClaims reads the ready rows once, with a position in memory. It has no second process and no retries, ignores
// expired leases, and misses late commits.
func (d *database) rawClaims(ctx context.Context) (claims, func(), error) {
	conn, err := pgx.Connect(ctx, d.url)
	if err != nil {
		return nil, nil, err
	}
	done := func() { conn.Close(context.WithoutCancel(ctx)) }
	for _, statement := range []string{rawJobs, rawReady} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			done()
			return nil, nil, err
		}
	}
	owner, low := uuid.New(), int64(0)
	return func(ctx context.Context, pub message.Publisher) error {
		for {
			rows, err := conn.Query(ctx, rawClaim, owner, low, claimBatch)
			if err != nil {
				return err
			}
			var ids []int64
			var batch []rawRow
			for rows.Next() {
				var id int64
				var uuid string
				var row rawRow
				var payload, metadata []byte
				var attempts int
				if err := rows.Scan(&id, &uuid, &row.topic, &payload, &metadata, &attempts); err != nil {
					rows.Close()
					return err
				}
				row.msg = message.NewMessage(uuid, payload)
				if err := json.Unmarshal(metadata, &row.msg.Metadata); err != nil {
					rows.Close()
					return err
				}
				ids, batch, low = append(ids, id), append(batch, row), max(low, id)
			}
			if err := rows.Err(); err != nil || len(ids) == 0 {
				return err
			}
			for _, row := range batch {
				if err := pub.Publish(row.topic, row.msg); err != nil {
					return err
				}
			}
			if tag, err := conn.Exec(ctx, rawAck, ids, owner); err != nil || tag.RowsAffected() < int64(len(ids)) {
				return errors.Join(err, fmt.Errorf("%d of %d jobs were acked", tag.RowsAffected(), len(ids)))
			}
		}
	}, done, nil
}
