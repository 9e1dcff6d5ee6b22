package move

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/envelope"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// Cause: a forwarder of the outbox runs or may run.
// Cure: stop it.
var errForwarderRuns = errors.New("move: a forwarder of this outbox runs: stop all of them first; " +
	"one that was killed counts until its LeaseTTL has passed")

// ToWatermill moves unsent messages from the outbox into the table of Watermill's forwarder, which may have the schema
// DefaultPostgreSQLSchema or PostgreSQLQueueSchema; dead messages stay. Stop all forwarders of the outbox first. Stop
// the writers too, or call it again for what they write. If the table cannot delay messages, delayed ones stay until
// they are due: Result.Left counts them. Ordering keys become metadata; Watermill's forwarder sends all messages in a
// single sequence. It returns errors as FromWatermill does, and one
// while a forwarder of the outbox runs or may run.
func ToWatermill(ctx context.Context, db *outbox.DB, cfg WatermillConfig) (Result, error) {
	r, err := toWatermill(ctx, (*core.DB)(db), cfg)
	if err != nil {
		return r, fmt.Errorf("to Watermill: %w", err)
	}
	return r, nil
}

func toWatermill(ctx context.Context, db *core.DB, cfg WatermillConfig) (Result, error) {
	if err := db.Check(); err != nil {
		return Result{}, err
	}
	cfg.setDefaults()
	o, err := cfg.options()
	if err != nil {
		return Result{}, err
	}
	envelopes, err := envelope.New(cfg.Marshaler)
	if err != nil {
		return Result{}, err
	}
	table, err := cfg.inspect(ctx, db)
	if err != nil {
		return Result{}, err
	}
	if !table.queue {
		if err := (&log{rows: rows{watermillTable: table}, group: cfg.ConsumerGroup}).local(ctx, db); err != nil {
			return Result{}, err
		}
	}
	w := writer{watermillTable: table, db: db, envelopes: envelopes, dryRun: cfg.DryRun}
	o.act.action, o.act.what = actExport, "to "+cfg.MessagesTable
	return run(ctx, db, o, &ours{db: db, delayed: table.delays}, w.put)
}

// ours is our own outbox as the source of a move.
type ours struct {
	db      *core.DB
	delayed bool // delayed messages are moved too
	last    int64
}

var _ side = (*ours)(nil)

func (o *ours) pending(ctx context.Context, q drive.Querier) (n int64, err error) {
	err = drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&n) }, o.db.Render(sqltext.CountPending))
	return n, err
}

func (o *ours) take(ctx context.Context, q drive.Querier, limit int) (items []item, err error) {
	if err := o.alone(ctx, q); err != nil {
		return nil, err
	}
	err = drive.Collect(ctx, q, func(rows drive.Rows) error {
		var it item
		var uuid, key, metadata string
		var payload []byte
		if err := rows.Scan(&it.id, &uuid, &it.topic, &key, &payload, &metadata, &it.due); err != nil {
			return err
		}
		it.row = fmt.Sprintf("message with id %d, uuid %q", it.id, uuid)
		it.msg = message.NewMessage(uuid, payload)
		if err := json.Unmarshal([]byte(metadata), &it.msg.Metadata); err != nil {
			return fmt.Errorf("%s: metadata: %w", it.row, err)
		}
		if it.msg.Metadata == nil { // the JSON was null
			it.msg.Metadata = message.Metadata{}
		}
		core.SetKey(it.msg, key)
		items = append(items, it)
		return nil
	}, o.db.Render(sqltext.ReadPending), o.last, o.delayed, limit)
	if n := len(items); n > 0 {
		o.last = items[n-1].id
	}
	return items, lockingRows(err)
}

// alone ensures that no forwarder runs, and that none starts before the batch ends.
func (o *ours) alone(ctx context.Context, q drive.Querier) error {
	if _, err := q.Exec(ctx, o.db.Render(sqltext.LockForwarders)); err != nil {
		return err
	}
	var names []string
	err := drive.Collect(ctx, q, func(rows drive.Rows) error {
		var name string
		err := rows.Scan(&name)
		names = append(names, name)
		return err
	}, o.db.Render(sqltext.LiveForwarders))
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("%w: %s", errForwarderRuns, strings.Join(names, ", "))
	}
	return err
}

func (o *ours) lock() lock {
	return lock{
		of: "message with id", in: "the outbox", by: "wait until it has ended",
		statement: o.db.Render(sqltext.PendingHolder), args: []any{o.last, o.delayed},
	}
}

func (o *ours) done(ctx context.Context, q drive.Querier, taken []item) error {
	ids := make([]int64, len(taken))
	for i, it := range taken {
		ids[i] = it.id
	}
	_, err := q.Exec(ctx, o.db.Render(sqltext.DeleteRows), ids)
	return err
}

// writer writes messages as the publisher of Watermill's forwarder does.
type writer struct {
	watermillTable
	db        *core.DB
	envelopes *envelope.Envelopes
	dryRun    bool
}

func (w *writer) put(ctx context.Context, r *Result, items []item) error {
	n := len(items)
	uuids, payloads, metadata := make([]string, n), make([][]byte, n), make([]string, n)
	for i, it := range items {
		sealed, err := w.envelopes.Seal(it.topic, it.msg)
		if err != nil {
			return fmt.Errorf("%s: %w", it.row, err)
		}
		if strings.HasPrefix(w.payload, "json") && !json.Valid(sealed.Payload) {
			return fmt.Errorf("%s: WatermillConfig.Marshaler does not write JSON, and the payload column of the table has "+
				"type %s", it.row, w.payload)
		}
		if w.delays {
			sealed.Metadata.Set(delay.DelayedUntilKey, cmp.Or(it.due, envelope.NoDelay))
		}
		encoded, err := json.Marshal(sealed.Metadata)
		if err != nil {
			return fmt.Errorf("%s: %w", it.row, err)
		}
		uuids[i], payloads[i], metadata[i] = sealed.UUID, sealed.Payload, string(encoded)
		r.count(it.topic)
	}
	if w.dryRun {
		return nil
	}
	q, err := w.db.Tx(ctx)
	if err != nil {
		return err
	}
	_, err = q.Exec(ctx, w.writing(), uuids, payloads, metadata)
	return err
}

func (w *writer) writing() string {
	statement, payload := sqltext.WriteLog, "m.payload"
	if w.queue {
		statement = sqltext.WriteQueue
	}
	if w.watermillTable.payload != "bytea" {
		payload = "convert_from(m.payload, 'UTF8')::" + w.watermillTable.payload
	}
	return w.fill.Replace(strings.ReplaceAll(statement, "{payload}", payload))
}
