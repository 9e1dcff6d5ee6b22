package middleware

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/schema"
)

// StackConfig configures Stack. The zero value is ready for use.
type StackConfig struct {
	// Tables are the names of the tables for all parts that do not set their own; default: those of the Publisher.
	Tables schema.Names
	// ExceptHandlers are the names of handlers that the whole stack leaves alone.
	ExceptHandlers []string
	// ProcessDelivered sets the field of that name in Inbox and Outbox.
	ProcessDelivered bool
	// Observer is for all parts that do not set their own.
	Observer Observer
	// Logger is for all parts that do not set their own; default: that of the Publisher.
	Logger watermill.LoggerAdapter

	Outcomes OutcomesConfig
	Tx       TxConfig
	Inbox    InboxConfig
	Outbox   OutboxConfig
}

func (c *StackConfig) setDefaults(pub *outbox.Publisher) {
	var none schema.Names
	if c.Tables == none {
		c.Tables = pub.Tables()
	}
	for _, tables := range []*schema.Names{&c.Outcomes.Tables, &c.Inbox.Tables} {
		if *tables == none {
			*tables = c.Tables
		}
	}
	for _, obs := range []*Observer{&c.Outcomes.Observer, &c.Tx.Observer, &c.Inbox.Observer} {
		if *obs == nil {
			*obs = c.Observer
		}
	}
	if c.Logger == nil {
		c.Logger = pub.Logger()
	}
	for _, logger := range []*watermill.LoggerAdapter{&c.Outcomes.Logger, &c.Tx.Logger, &c.Inbox.Logger} {
		if *logger == nil {
			*logger = c.Logger
		}
	}
	if c.ProcessDelivered {
		c.Inbox.ProcessDelivered, c.Outbox.ProcessDelivered = true, true
	}
}

// Stack returns Outcomes, Tx, Inbox and Outbox in this order, for Router.AddMiddleware or a handler's. Add it once: to the
// Router or to handlers, not both. pub must have been made with db, and write to the table that
// cfg.Tables names, if it names one. If db or pub is nil or the configuration bad, every message fails with an
// error that says so.
func Stack(db *outbox.DB, pub *outbox.Publisher, cfg StackConfig) []message.HandlerMiddleware {
	fail := func(err error) []message.HandlerMiddleware {
		return []message.HandlerMiddleware{refuse("Stack", err)}
	}
	if err := db.Check(); err != nil {
		return fail(err)
	}
	if pub == nil {
		return fail(errNoPublisher)
	}
	if pub.DB() != db {
		return fail(outbox.ErrOtherDB)
	}
	cfg.setDefaults(pub)
	if got, want := pub.Tables().OutboxName(), cfg.Tables.OutboxName(); got != want {
		return fail(fmt.Errorf("the Publisher writes to %s, but StackConfig.Tables names %s", got, want))
	}
	stack := []message.HandlerMiddleware{
		Outcomes(db, cfg.Outcomes),
		Tx(db, cfg.Tx),
		Inbox(db, cfg.Inbox),
		Outbox(pub, cfg.Outbox),
	}
	if len(cfg.ExceptHandlers) > 0 {
		for i, mw := range stack {
			stack[i] = Except(mw, cfg.ExceptHandlers...)
		}
	}
	return stack
}

var errNoPublisher = errors.New("the *outbox.Publisher is nil: make one with outbox.NewPublisher")
