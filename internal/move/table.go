package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// TableConfig describes your own outbox table. Pending, Done and the fields of Columns are SQL that is inserted into
// statements unchanged: never take them from input. Prefix a column with m. if its name is ambiguous.
type TableConfig struct {
	// Table is the table's name in SQL. Required.
	Table string
	// ID is the column that identifies and orders rows; default "id".
	ID string
	// Pending is the condition of unsent rows, such as "sent_at IS NULL". Required.
	Pending string
	// Done marks a row as sent: assignments such as "sent_at = now()", or "DELETE". Required. Afterwards Pending must be
	// false.
	Done    string
	Columns Columns

	// BatchSize is the number of messages in one transaction and in memory; default 500.
	BatchSize int
	// LockTimeout is how long a batch waits for locked rows; default 10 s, -1 no limit.
	LockTimeout time.Duration
	// Actor and Reason are stored in the audit log; default "outboxctl", and no reason.
	Actor, Reason string
	// DryRun reads and checks everything and moves nothing; default off.
	DryRun bool
	// Progress is called after each batch; default none.
	Progress func(ctx context.Context, r Result)
}

// Columns are SQL expressions over the columns of a row, usually just column names.
type Columns struct {
	// UUID is the message's UUID, which should be the ID that the relay sent; default: a random one.
	UUID string
	// Topic is the topic. Required. A constant is an SQL literal, such as "'orders'".
	Topic string
	// Key is the ordering key; default: the key that PublisherConfig.Key returns.
	Key string
	// Payload is the payload. Required. Types other than bytea are sent as text.
	Payload string
	// Metadata is a JSON object; default: none. Values other than strings are stored as JSON text; null values are
	// omitted.
	Metadata string
	// DueAt is the time before which the message is not sent, a timestamptz or NULL; default: no delay.
	DueAt string
}

// FromTable moves the unsent messages of your own outbox table into the outbox of pub, in the order of their IDs. Stop
// the relay of the table first, because it may send rows that are being moved. FromTable returns errors as
// FromWatermill does, and an error if Done leaves rows pending. Call it again after any error.
func FromTable(ctx context.Context, pub *outbox.Publisher, cfg TableConfig) (Result, error) {
	r, err := fromTable(ctx, (*core.Publisher)(pub), cfg)
	if err != nil {
		return r, fmt.Errorf("from table %s: %w", cfg.Table, err)
	}
	return r, nil
}

func fromTable(ctx context.Context, pub *core.Publisher, cfg TableConfig) (Result, error) {
	if cfg.ID == "" {
		cfg.ID = "id"
	}
	o := options{
		batchSize: cfg.BatchSize, lockTimeout: cfg.LockTimeout, dryRun: cfg.DryRun, progress: cfg.Progress,
		act: act{actor: cfg.Actor, action: actImport, reason: cfg.Reason, what: "from table " + cfg.Table},
	}
	if err := errors.Join(cfg.validate(), o.check("TableConfig")); err != nil {
		return Result{}, err
	}
	t, err := cfg.inspect(ctx, pub.DB())
	if err != nil {
		return Result{}, err
	}
	return run(ctx, pub.DB(), o, t, intoOutbox(pub, o))
}

func (c *TableConfig) validate() error {
	var errs []error
	for _, f := range []struct{ field, value, why string }{
		{"Table", c.Table, "the table"}, {"Pending", c.Pending, `a condition such as "sent_at IS NULL"`},
		{"Done", c.Done, `the assignment that marks a row as sent, such as "sent_at = now()", or "DELETE"`},
		{"Columns.Topic", c.Columns.Topic, "the column of the topic, or a constant such as \"'orders'\""},
		{"Columns.Payload", c.Columns.Payload, "the column of the payload"},
	} {
		if strings.TrimSpace(f.value) == "" {
			errs = append(errs, fmt.Errorf("TableConfig.%s is empty: it needs %s", f.field, f.why))
		}
	}
	return errors.Join(errs...)
}

// ownTable is the user's table.
type ownTable struct {
	id     string // the name of its column
	fill   *strings.Replacer
	change string // statement that marks rows as sent
	last   string // ID of the last row read, as text; "" = none
}

var _ side = (*ownTable)(nil)

// inspect reads the types of the expressions, which also finds mistakes in them.
func (c *TableConfig) inspect(ctx context.Context, db *core.DB) (*ownTable, error) {
	name, columns, err := describe(ctx, db, c.Table)
	if err != nil {
		return nil, fmt.Errorf("TableConfig.Table: %w", err)
	}
	id := columns[c.ID]
	if id == "" {
		return nil, fmt.Errorf("TableConfig.ID: the table has no column %q", c.ID)
	}
	t := &ownTable{id: c.ID}
	or := func(expr, def string) string {
		if expr == "" {
			return def
		}
		return "(" + expr + ")"
	}
	fill := []string{
		"{table}", name, "{id}", sqltext.Quote(c.ID), "{id_type}", id, "{pending}", "(" + c.Pending + ")",
		"{assignments}", c.Done,
		"{uuid}", or(c.Columns.UUID, "''"), "{topic}", or(c.Columns.Topic, ""), "{key}", or(c.Columns.Key, "''"),
		"{metadata}", or(c.Columns.Metadata, "NULL"), "{due}", or(c.Columns.DueAt, "NULL") + "::timestamptz",
	}
	t.fill = strings.NewReplacer(append(fill, "{payload}", or(c.Columns.Payload, ""))...)
	kind := ""
	err = drive.Collect(ctx, db, func(rows drive.Rows) error {
		return rows.Scan(&kind)
	}, t.fill.Replace(sqltext.PayloadType))
	if err != nil {
		return nil, fmt.Errorf("TableConfig.Columns.Payload: %w", err)
	}
	t.fill = strings.NewReplacer(append(fill, "{payload}", asBytes(or(c.Columns.Payload, ""), kind))...)
	t.change = sqltext.MarkOwn
	if strings.EqualFold(strings.TrimSpace(c.Done), "DELETE") {
		t.change = sqltext.DeleteOwn
	}
	return t, nil
}

func (t *ownTable) pending(ctx context.Context, q drive.Querier) (n int64, err error) {
	err = drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&n) }, t.fill.Replace(sqltext.CountOwn))
	return n, err
}

func (t *ownTable) take(ctx context.Context, q drive.Querier, limit int) (items []item, err error) {
	err = drive.Collect(ctx, q, func(rows drive.Rows) error {
		var it item
		var id, uuid, key, metadata string
		var due float64
		var payload []byte
		if err := rows.Scan(&id, &uuid, &it.topic, &key, &payload, &metadata, &due); err != nil {
			return err
		}
		it.row, t.last = fmt.Sprintf("row with %s %s", t.id, id), id
		it.raw = message.NewMessage(id, payload)
		if uuid == "" {
			uuid = watermill.NewUUID()
		}
		it.msg = message.NewMessage(uuid, payload)
		it.err = json.Unmarshal([]byte(metadata), &it.msg.Metadata)
		if key != "" {
			outbox.SetKey(it.msg, key)
		}
		if due >= 0 {
			outbox.SetDueAt(it.msg, time.UnixMicro(int64(due*1e6)))
		}
		items = append(items, it)
		return nil
	}, t.fill.Replace(sqltext.ReadOwn), t.after(), limit)
	return items, lockingRows(err)
}

// after returns the last ID read, or NULL.
func (t *ownTable) after() any {
	if t.last == "" {
		return nil
	}
	return t.last
}

func (t *ownTable) done(ctx context.Context, q drive.Querier, taken []item) error {
	ids := make([]string, len(taken))
	for i, it := range taken {
		ids[i] = it.raw.UUID
	}
	changed, left := 0, 0
	err := drive.Collect(ctx, q, func(rows drive.Rows) error {
		var pending bool
		err := rows.Scan(&pending)
		if changed++; pending {
			left++
		}
		return err
	}, t.fill.Replace(t.change), ids)
	switch {
	case err != nil:
		return err
	case changed != len(ids):
		return fmt.Errorf("%d rows changed, not %d: TableConfig.ID must be unique", changed, len(ids))
	case left > 0:
		return fmt.Errorf("%d of the %d rows still fit TableConfig.Pending after TableConfig.Done, "+
			"so each call would move them again: "+
			"change one of the two", left, changed)
	}
	return nil
}

func (t *ownTable) lock() lock {
	return lock{
		of: "row with " + t.id, in: t.fill.Replace("{table}"), by: "stop the relay of the table",
		statement: t.fill.Replace(sqltext.OwnHolder), args: []any{t.after()},
	}
}
