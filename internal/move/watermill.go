package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	wforwarder "github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/envelope"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// WatermillConfig names the tables of Watermill's forwarder, made by watermill-sql v3 or v4. The zero value has the
// defaults of the forwarder and watermill-sql.
type WatermillConfig struct {
	// Topic is the forwarder's ForwarderTopic; default "forwarder_topic".
	Topic string
	// MessagesTable and OffsetsTable are names in SQL, quoted if necessary; default "watermill_" and "watermill_offsets_"
	// followed by the topic. PostgreSQLQueueSchema has no offsets.
	MessagesTable, OffsetsTable string
	// ConsumerGroup is the group of the forwarder's subscriber, whose offset determines which messages are pending;
	// default "".
	ConsumerGroup string
	// Marshaler is the marshaler of the envelopes; default JSON.
	Marshaler wforwarder.Marshaler
	// UnreadableAsDead stores rows without a valid envelope as dead messages, with the reason, under the forwarder's
	// topic; default off: such a row ends the move. Invalid characters in their metadata are replaced by U+FFFD.
	UnreadableAsDead bool

	// BatchSize is the number of messages in one transaction and in memory; default 500.
	BatchSize int
	// LockTimeout is how long a batch waits for locked rows; default 10 s, -1 no limit. The error names the session
	// that may hold the lock.
	LockTimeout time.Duration
	// Actor and Reason are stored in the audit log; default "outboxctl", and no reason.
	Actor, Reason string
	// DryRun reads and checks everything and moves nothing; default off.
	DryRun bool
	// Progress is called after each batch; default none.
	Progress func(ctx context.Context, r Result)
}

func (c *WatermillConfig) setDefaults() {
	if c.Topic == "" {
		c.Topic = envelope.DefaultTopic
	}
	if c.MessagesTable == "" {
		c.MessagesTable = sqltext.Quote("watermill_" + c.Topic)
	}
	if c.OffsetsTable == "" {
		c.OffsetsTable = sqltext.Quote("watermill_offsets_" + c.Topic)
	}
}

func (c *WatermillConfig) options() (options, error) {
	o := options{
		batchSize: c.BatchSize, lockTimeout: c.LockTimeout, dryRun: c.DryRun, progress: c.Progress,
		act: act{actor: c.Actor, action: actImport, reason: c.Reason, what: "from " + c.MessagesTable},
	}
	if c.UnreadableAsDead {
		o.deadTopic = c.Topic
	}
	return o, o.check("WatermillConfig")
}

// FromWatermill moves the unsent messages of Watermill's forwarder into the outbox of pub, whose Key provides the
// ordering keys. Watermill's forwarder may run meanwhile; stop it for good once it has nothing left to send.
// FromWatermill returns when none are left, or an error of the database or the context, or one that names the row or
// the field at fault. Call it again after any error, including outbox.ErrCommitUnknown: nothing is moved twice.
func FromWatermill(ctx context.Context, pub *outbox.Publisher, cfg WatermillConfig) (Result, error) {
	r, err := fromWatermill(ctx, (*core.Publisher)(pub), cfg)
	if err != nil {
		return r, fmt.Errorf("from Watermill: %w", err)
	}
	return r, nil
}

func fromWatermill(ctx context.Context, pub *core.Publisher, cfg WatermillConfig) (Result, error) {
	cfg.setDefaults()
	o, err := cfg.options()
	if err != nil {
		return Result{}, err
	}
	envelopes, err := envelope.New(cfg.Marshaler)
	if err != nil {
		return Result{}, err
	}
	table, err := cfg.inspect(ctx, pub.DB())
	if err != nil {
		return Result{}, err
	}
	rows := rows{watermillTable: table, envelopes: envelopes, dryRun: cfg.DryRun}
	if table.queue {
		return run(ctx, pub.DB(), o, &queue{rows: rows}, intoOutbox(pub, o))
	}
	log := &log{rows: rows, group: cfg.ConsumerGroup}
	if err := log.check(ctx, pub.DB()); err != nil {
		return Result{}, err
	}
	return run(ctx, pub.DB(), o, log, intoOutbox(pub, o))
}

// watermillTable describes an existing table of watermill-sql.
type watermillTable struct {
	queue   bool // false: it is a log
	delays  bool // its subscriber delays rows and requires a time in each
	payload string
	fill    *strings.Replacer

	messages, offsets string // in SQL; a queue has no offsets
}

// inspect reads the schema of the tables.
func (c *WatermillConfig) inspect(ctx context.Context, db *core.DB) (t watermillTable, err error) {
	messages, columns, err := describe(ctx, db, c.MessagesTable)
	if err != nil {
		return t, fmt.Errorf("WatermillConfig.MessagesTable: %w", err)
	}
	t.payload, t.queue = columns["payload"], columns["acked"] != ""
	if t.payload == "" || columns["offset"] == "" || !t.queue && columns["transaction_id"] == "" {
		return t, fmt.Errorf("WatermillConfig.MessagesTable: %s is not a table of watermill-sql, which has the "+
			"columns offset, uuid, payload, metadata, "+
			"and transaction_id or acked", c.MessagesTable)
	}
	t.messages = messages
	names := []string{"{messages}", messages}
	if t.queue {
		err = drive.Collect(ctx, db, func(rows drive.Rows) error {
			return rows.Scan(&t.delays)
		}, sqltext.QueueDelays, messages)
	} else {
		offsets, _, err := describe(ctx, db, c.OffsetsTable)
		if err != nil {
			return t, fmt.Errorf("WatermillConfig.OffsetsTable: %w: it records what is pending; if nothing ever "+
				"subscribed, start Watermill's forwarder once", err)
		}
		t.offsets = offsets
		names = append(names, "{offsets}", offsets)
	}
	t.fill = strings.NewReplacer(names...)
	return t, err
}

func describe(ctx context.Context, db *core.DB, table string) (name string, columns map[string]string, err error) {
	columns = map[string]string{}
	err = drive.Collect(ctx, db, func(rows drive.Rows) error {
		var column, kind string
		err := rows.Scan(&name, &column, &kind)
		columns[column] = kind
		return err
	}, sqltext.DescribeTable, table)
	if err == nil && name == "" {
		err = fmt.Errorf("there is no table %s in this database: check the name and the search_path", table)
	}
	return name, columns, err
}

// reading returns the statement with the payload of a row as bytea.
func (t watermillTable) reading(statement string) string {
	return t.fill.Replace(strings.ReplaceAll(statement, "{payload}", asBytes("m.payload", t.payload)))
}

// asBytes converts an expression of type kind to bytea. JSON and text become UTF-8, whatever the encoding of the
// database.
func asBytes(expr, kind string) string {
	if kind == "bytea" {
		return expr
	}
	return "convert_to((" + expr + ")::text, 'UTF8')"
}

// storeDead stores a message as dead.
func storeDead(ctx context.Context, db *core.DB, o options, it item, why error) error {
	if o.dryRun {
		return nil
	}
	q, err := db.Tx(ctx)
	if err != nil {
		return err
	}
	metadata := make(message.Metadata, len(it.raw.Metadata))
	for k, v := range it.raw.Metadata {
		metadata[text.Valid(k)] = text.Valid(v)
	}
	encoded, err := json.Marshal(metadata)
	if err != nil {
		return err
	}
	_, err = q.Exec(ctx, db.Render(sqltext.InsertDead), it.raw.UUID, it.topic, []byte(it.raw.Payload), string(encoded),
		text.OfError(why))
	return err
}

// Cause: a dump or logical replication copied the ids.
var errForeign = errors.New("the table has transaction ids that this server has not assigned yet, so it was restored " +
	"from another server, and watermill-sql delivers nothing from it: see docs/guides/moving.md, \"After a restore\"")
