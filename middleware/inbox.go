package middleware

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/schema"
)

// MaxKeyBytes is the largest size of an inbox key.
const MaxKeyBytes = 1024

// InboxConfig configures Inbox. The zero value is ready for use.
type InboxConfig struct {
	// Tables are the names of the tables; default: inbox in the search path.
	Tables schema.Names
	// Consumer names who handles the message: each consumer handles it once. Default: the handler's name
	// in its Router. Two services that share the table must differ in it.
	Consumer string
	// Key identifies the message; default: its UUID. An empty key, one that Postgres cannot store, or one of more
	// than MaxKeyBytes makes the message poison.
	Key func(msg *message.Message) string
	// CheckContent compares the SHA-256 of a duplicate's payload with that of the message that was
	// processed. If they differ, the duplicate is acked all the same, logged as an error, told to the
	// Observer as Mismatch, and passed to OnMismatch. It costs a round trip for each duplicate.
	CheckContent bool
	// OnMismatch, if not nil, gets duplicates with other content. It runs in the transaction.
	OnMismatch func(ctx context.Context, msg *message.Message)
	// ProcessDelivered guards messages from our own Subscriber in handlers that publish as well; see
	// OutboxConfig.ProcessDelivered.
	ProcessDelivered bool
	// Observer, if not nil, is told of mismatches.
	Observer Observer
	// Logger, if not nil, gets an error line for each mismatch and a debug line for each duplicate.
	Logger watermill.LoggerAdapter
}

func (c *InboxConfig) setDefaults() {
	c.Tables = c.Tables.WithDefaults()
	if c.Key == nil {
		c.Key = func(msg *message.Message) string { return msg.UUID }
	}
	if c.Logger == nil {
		c.Logger = watermill.NopLogger{}
	}
}

func (c InboxConfig) validate() error {
	if err := c.Tables.Validate(); err != nil {
		return fmt.Errorf("InboxConfig.Tables: %w", err)
	}
	if !schema.Storable(c.Consumer) {
		return errors.New("InboxConfig.Consumer is invalid UTF-8 or holds a NUL")
	}
	return nil
}

// Inbox has each message handled once: it notes the message in the inbox table, in the transaction of the
// handler, and skips one that is noted there as processed or dead, so that it is acked. A copy
// that arrives while another is being handled waits for the outcome. It needs a transaction around it, Tx for
// one, and a table made by schema.Migrate.
//
// It returns ErrUncaptured if messages come out of the handler, because it could not have them sent again after
// their publishing failed; ErrPoison for a message without a usable key; outbox.ErrNoTx and
// outbox.ErrOtherDB; and errors of the handler and the database. If db is nil or the configuration bad, every
// message fails with an error that says so.
//
// A message read from our own outbox (outbox.DeliveryFromContext) in a handler that publishes is let
// through unnoted, for the same reason, unless ProcessDelivered is set.
func Inbox(db *outbox.DB, cfg InboxConfig) message.HandlerMiddleware {
	cfg.setDefaults()
	if err := errors.Join(db.Check(), cfg.validate()); err != nil {
		return refuse("Inbox", err)
	}
	i := &inbox{
		db: db, cfg: cfg,
		claimSQL: cfg.Tables.Render(schema.ClaimInbox),
		hashSQL:  cfg.Tables.Render(schema.InboxHash),
	}
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) { return i.handle(next, msg) }
	}
}

// Revive makes a dead message processable again, with all its attempts: its next delivery is handled. Somebody must
// deliver it, from the dead-letter topic for example. It returns false if there is no such dead message.
func Revive(ctx context.Context, db *outbox.DB, tables schema.Names, consumer, key string) (bool, error) {
	if err := errors.Join(db.Check(), tables.Validate()); err != nil {
		return false, err
	}
	n, err := db.Exec(ctx, tables.Render(schema.ReviveInbox), consumer, key)
	if err != nil {
		return false, fmt.Errorf("revive: %w", schema.Explain(err))
	}
	return n > 0, nil
}

type inbox struct {
	db                *outbox.DB
	cfg               InboxConfig
	claimSQL, hashSQL string
}

// claim is the inbox row of the message being handled. Outcomes uses it after the transaction.
type claim struct {
	tables        schema.Names
	consumer, key string
	failures      int // recorded before this attempt
}

func (i *inbox) handle(next message.HandlerFunc, msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context() // the handler may replace it in the message
	if !i.cfg.ProcessDelivered && isDelivered(msg) && message.PublishTopicFromCtx(ctx) != "" {
		return next(msg)
	}
	q, err := i.db.TxQuerier(ctx)
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", needsTx("Inbox", err))
	}
	consumer := i.cfg.Consumer
	if consumer == "" {
		consumer = message.HandlerNameFromCtx(ctx)
	}
	if consumer == "" {
		return nil, errors.New("inbox: the context has no handler name: set InboxConfig.Consumer outside of a Router")
	}
	key := i.cfg.Key(msg)
	if key == "" || len(key) > MaxKeyBytes || !schema.Storable(key) {
		return nil, Poison(fmt.Errorf("inbox: the message has no usable key: it has %d bytes, must have 1 to %d, and be UTF-8 without NUL",
			len(key), MaxKeyBytes))
	}
	h := currentHandling(msg)
	if h == nil {
		h = &handling{begun: time.Now()}
	}
	if c := h.claim; c != nil && c.consumer == consumer && c.key == key {
		return nil, errors.New("inbox: the message came by twice in one transaction and would be skipped as its own duplicate: " +
			"add middleware.Inbox once, and Watermill's Retry outside of middleware.Tx")
	}
	var hash []byte
	if i.cfg.CheckContent {
		sum := sha256.Sum256(msg.Payload)
		hash = sum[:]
	}

	c := &claim{tables: i.cfg.Tables, consumer: consumer, key: key}
	ours := false
	err = schema.Collect(ctx, q, func(rows schema.Rows) error {
		ours = true
		return rows.Scan(&c.failures)
	}, i.claimSQL, consumer, key, hash)
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", schema.Explain(err))
	}
	h.claim = c
	if !ours {
		h.duplicate = true
		return nil, i.skip(ctx, q, c, hash, msg, h)
	}

	produced, err := next(msg)
	if err == nil && len(produced) > 0 {
		err = fmt.Errorf("inbox: handler %s: %w", consumer, ErrUncaptured)
	}
	return nil, err
}

func (i *inbox) skip(ctx context.Context, q schema.Querier, c *claim, hash []byte, msg *message.Message, h *handling) error {
	fields := watermill.LogFields{"consumer": c.consumer, "message_uuid": msg.UUID, "inbox_key": c.key}
	i.cfg.Logger.Debug("Skipping a message that was handled before", fields)
	if !i.cfg.CheckContent {
		return nil
	}
	var known []byte
	err := schema.Collect(ctx, q, func(rows schema.Rows) error { return rows.Scan(&known) }, i.hashSQL, c.consumer, c.key)
	if err != nil {
		return fmt.Errorf("inbox: compare content: %w", err)
	}
	if known == nil || bytes.Equal(known, hash) {
		return nil
	}
	err = errors.New("a message was skipped whose key was handled before with other content")
	i.cfg.Logger.Error("Inbox content mismatch", err, fields)
	observe(i.cfg.Observer, i.db.Name(), msg, h, Mismatch, err)
	if i.cfg.OnMismatch != nil {
		i.cfg.OnMismatch(ctx, msg)
	}
	return nil
}

// needsTx says which middleware to add when there is no transaction.
func needsTx(name string, err error) error {
	if errors.Is(err, outbox.ErrNoTx) {
		return fmt.Errorf("add middleware.Tx outside of middleware.%s: %w", name, err)
	}
	return err
}
