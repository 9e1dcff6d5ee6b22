package middleware

import (
	"errors"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// StackConfig configures Stack. Service is required.
type StackConfig struct {
	// Service names the service in the inbox and in dead letters; no slash. Required. It applies to all parts that do not
	// set their own. Replicas share it; another service needs another name.
	Service string
	// Except are names of handlers that the stack leaves alone; default none.
	Except []string

	ErrorHandler ErrorHandlerConfig
	Tx           TxConfig
	Inbox        InboxConfig
	Outbox       OutboxConfig
}

func (c *StackConfig) setDefaults() {
	for _, service := range []*string{&c.ErrorHandler.Service, &c.Inbox.Service} {
		if *service == "" {
			*service = c.Service
		}
	}
}

// Stack returns ErrorHandler, Tx, Inbox and Outbox in this order, for Router.AddMiddleware or a handler's. Add it once,
// to the Router or to handlers, and put Watermill's Retry and PoisonQueue before it: inside, Retry would repeat the
// handler in an aborted transaction.
//
// All parts work on the database and the tables of pub. If logger is nil, the logger of its handle is used. It returns
// an error if pub is nil, or one that names an invalid field.
func Stack(
	pub *outbox.Publisher, cfg StackConfig, logger watermill.LoggerAdapter,
) ([]message.HandlerMiddleware, error) {
	if pub == nil {
		return nil, errNoPublisher
	}
	if err := checkService("StackConfig.Service", cfg.Service); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	db := (*outbox.DB)((*core.Publisher)(pub).DB())
	errorHandler, errorHandlerErr := newErrorHandler(db, cfg.ErrorHandler, logger)
	tx, txErr := Tx(db, cfg.Tx, logger)
	inbox, inboxErr := newInbox(db, cfg.Inbox, logger)
	out, outErr := Outbox(pub, cfg.Outbox, logger)
	if err := errors.Join(errorHandlerErr, txErr, inboxErr, outErr); err != nil {
		return nil, err
	}
	errorHandler.identify = inbox.identify
	stack := []message.HandlerMiddleware{
		around("ErrorHandler", errorHandler.handle), tx, around("Inbox", inbox.handle), out,
	}
	for i, mw := range stack {
		stack[i] = except(mw, cfg.Except)
	}
	return stack, nil
}

// Cause: StackConfig has no publisher.
var errNoPublisher = errors.New("the *outbox.Publisher is nil: make one with outbox.NewPublisher")

// except applies a middleware to all handlers of a Router except the named ones.
func except(mw message.HandlerMiddleware, handlers []string) message.HandlerMiddleware {
	if len(handlers) == 0 {
		return mw
	}
	return func(next message.HandlerFunc) message.HandlerFunc {
		wrapped := mw(next)
		return func(msg *message.Message) ([]*message.Message, error) {
			if next != nil && msg != nil && slices.Contains(handlers, message.HandlerNameFromCtx(msg.Context())) {
				return next(msg)
			}
			return wrapped(msg)
		}
	}
}
