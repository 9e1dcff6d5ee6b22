package middleware

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/observe"
)

// maxInboxKeyBytes is the maximum size of a message's key.
const maxInboxKeyBytes = 1024

// InboxConfig configures Inbox. Service is required.
type InboxConfig struct {
	// Service names the service; no slash. Required. Replicas share it; another service in the same tables needs
	// another name.
	Service string
	// Consumer names the handler within the service; default: its name in the Router. Service + "/" + Consumer has at
	// most 1 KiB. Keep the old name when you rename a handler, or it handles old messages again. If two handlers share
	// a name, only one of them handles each message.
	Consumer string
	// Key identifies the message; default: its UUID. An empty key, or one over 1 KiB, makes the message poison; an
	// error fails it.
	Key func(msg *message.Message) (string, error)
	// CheckContent compares the payload of a duplicate with the payload that was handled, by SHA-256; default off. A
	// mismatch is acked, logged as an error, reported as observe.Mismatch and passed to OnMismatch. The check costs a
	// round trip for each duplicate.
	CheckContent bool
	// OnMismatch is called in the transaction for each mismatch that CheckContent finds; default none. An error fails the
	// duplicate; once it is dead, only its dead letter is kept.
	OnMismatch func(ctx context.Context, msg *message.Message) error
}

func (c *InboxConfig) setDefaults() {
	if c.Key == nil {
		c.Key = uuidOf
	}
}

func uuidOf(msg *message.Message) (string, error) {
	if msg.UUID == "" {
		return "", outbox.Poison(errors.New("the message has no UUID, so no Watermill publisher sent it: let the " +
			"subscriber's Unmarshaler set one, or return what identifies the message from InboxConfig.Key"))
	}
	return msg.UUID, nil
}

func (c InboxConfig) validate() error {
	if err := checkService("InboxConfig.Service", c.Service); err != nil {
		return err
	}
	if c.Consumer != "" {
		if _, err := consumerOf(c.Service, c.Consumer); err != nil {
			return fmt.Errorf("InboxConfig.Consumer: %w", err)
		}
	}
	return nil
}

// Inbox handles each message once. It records the message in the inbox table, in the handler's transaction, and skips a
// message that is recorded as processed or dead, so that it is acked. It needs a transaction around it, such as Tx, and
// a table made by schema.Migrate.
//
// A copy that arrives while the message is being handled waits for the outcome. A skipped copy does not wait for the
// disk: its transaction is rolled back, unless something else was written in it or the server replicates synchronously.
// With pgx a copy that follows another of the same consumer costs one round trip and no transaction. Each mismatch is
// logged as an error, each duplicate at debug level. If logger is nil, the logger of db is used.
//
// A message of queue.Subscriber has a row in the queue: Inbox marks that row done instead. If its lease expired and it
// has another owner, Inbox returns queue.ErrLeaseLost and nothing is committed.
//
// Inbox returns an error if the handler returns messages and there is no Outbox; outbox.ErrPoison for a message
// without a usable key; outbox.ErrNotStored if a trigger or a rule swallows its row; outbox.ErrNoTx and
// outbox.ErrOtherDB; and errors of the handler, of Key, of OnMismatch and of the database. The constructor returns
// outbox.ErrNoDB or an error that names an invalid field.
func Inbox(db *outbox.DB, cfg InboxConfig, logger watermill.LoggerAdapter) (message.HandlerMiddleware, error) {
	i, err := newInbox(db, cfg, logger)
	if err != nil {
		return nil, err
	}
	return around("Inbox", i.handle), nil
}

func newInbox(db *outbox.DB, cfg InboxConfig, logger watermill.LoggerAdapter) (*inbox, error) {
	cfg.setDefaults()
	if err := errors.Join((*core.DB)(db).Check(), cfg.validate()); err != nil {
		return nil, err
	}
	i := &inbox{db: (*core.DB)(db), cfg: cfg}
	i.logger = i.db.Logger(logger)
	i.claimSQL, i.hashSQL = i.db.Render(sqltext.ClaimInbox), i.db.Render(sqltext.InboxHash)
	i.handledSQL = i.db.Render(sqltext.InboxHandled)
	i.knownSQL = i.db.Render(sqltext.InboxKnown)
	return i, nil
}

type inbox struct {
	db                *core.DB
	cfg               InboxConfig
	logger            watermill.LoggerAdapter
	claimSQL, hashSQL string
	handledSQL        string
	knownSQL          string
	repeated          sync.Map // the consumers whose last message was a duplicate
}

func (i *inbox) handle(next message.HandlerFunc, msg *message.Message) ([]*message.Message, error) {
	ctx := msg.Context() // the handler may replace it in the message
	q, err := i.db.Tx(ctx)
	if err != nil {
		return nil, checkTx(err, "Inbox")
	}
	h := currentHandling(msg)
	if h == nil {
		h = &handling{started: time.Now()}
		ctx, h.work = core.TakeWork(msg)
		msg.SetContext(ctx)
	}
	if h.work != nil {
		switch known, err := i.ack(ctx, h); {
		case err != nil:
			return nil, err
		case known:
			return i.handleOnce(next, msg, "of a stored message")
		}
	}
	h.calling = inboxKey
	c, err := i.identify(ctx, msg)
	if err != nil {
		return nil, err
	}
	h.calling = noCallback
	i.db.Consumes(c.consumer, message.SubscribeTopicFromCtx(ctx))
	i.db.ReadsFrom(ctx)
	if h.claim != nil && h.claim.consumer == c.consumer && h.claim.key == c.key {
		return nil, errTwice
	}
	ours, standby, err := i.take(ctx, q, c)
	if err != nil {
		if h.begun && refused(err) { // caused by what OnBegin did to the transaction
			h.calling = onBegin
		}
		return nil, fmt.Errorf("inbox: %w", text.Explain(err))
	}
	h.claim = c
	if !ours {
		h.duplicate = true
		if !standby {
			core.MarkReadOnly(ctx)
		}
		return nil, i.skip(ctx, q, c, msg, h)
	}

	return i.handleOnce(next, msg, c.consumer)
}

// handleOnce calls the handler of a recorded message, and fails if it returns messages.
func (i *inbox) handleOnce(next message.HandlerFunc, msg *message.Message, who string) ([]*message.Message, error) {
	produced, err := next(msg)
	if err == nil && len(produced) > 0 {
		err = fmt.Errorf("inbox: handler %s: %w", who, errUncaptured)
	}
	return nil, err
}

var errTwice = &wiringError{
	text: "inbox: the message passed middleware.Inbox twice in one transaction, and would be skipped as its own " +
		"duplicate: add middleware.Inbox once, and Watermill's Retry outside middleware.Tx",
}

// ack marks a message of queue.Subscriber done in the transaction; nothing else needs to be recorded. It returns false
// if its row is in another database: then the message is recorded like any other.
func (i *inbox) ack(ctx context.Context, h *handling) (bool, error) {
	if h.acked {
		return false, errTwice
	}
	switch acked, err := h.work.Ack(ctx); {
	case errors.Is(err, outbox.ErrOtherDB):
		return false, nil
	case err != nil && refused(err):
		return false, fmt.Errorf("inbox: %w", text.Explain(err))
	case err != nil:
		return false, fmt.Errorf("inbox: %w: %w", core.ErrNotBegun, text.Explain(err))
	case !acked:
		return false, fmt.Errorf("middleware.Inbox: %w", core.ErrLeaseLost)
	}
	h.acked = true
	return true, nil
}

// refused reports whether the database refused the statement because of its environment: a missing table or privilege,
// or an aborted transaction. TxConfig.OnBegin may have caused that for this message. Other errors are not the message's
// fault.
func refused(err error) bool {
	state := text.SQLState(err)
	return strings.HasPrefix(state, "42") || state == "25P02"
}

func (i *inbox) skip(ctx context.Context, q drive.Querier, c *claim, msg *message.Message, h *handling) error {
	fields := fieldsOf(ctx, msg).Add(watermill.LogFields{"consumer": c.consumer, "inbox_key": c.key})
	i.logger.Debug("skipping a message that was handled before", fields)
	if !i.cfg.CheckContent {
		return nil
	}
	var known []byte
	err := drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&known) }, i.hashSQL, c.consumer, c.key)
	if err != nil {
		return fmt.Errorf("inbox: compare content: %w", err)
	}
	if known == nil || bytes.Equal(known, c.hash) {
		return nil
	}
	err = errors.New("skipped: its key was handled before with different content")
	// Cause: the second message with the ID was skipped.
	// Cure: correct the sender, or handle it in InboxConfig.OnMismatch.
	i.logger.Error("message ID reused with different content", err, fields)
	ended(ctx, i.db, i.cfg.Service, msg, h, observe.Mismatch, err)
	if i.cfg.OnMismatch == nil {
		return nil
	}
	h.calling = onMismatch
	err = i.cfg.OnMismatch(ctx, msg)
	if err == nil {
		err = ctx.Err() // it used up the time
	}
	if err != nil {
		return fmt.Errorf("inbox: OnMismatch: %w", err)
	}
	h.calling = noCallback
	return nil
}
