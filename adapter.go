package outbox

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/core"
)

// WithoutTx decides what Publish does without a transaction in the context.
type WithoutTx int

const (
	// RequireTx refuses with ErrNoTx. It is the default, so that no message is written outside a transaction by
	// accident.
	RequireTx = WithoutTx(core.RequireTx)
	// OwnTx writes the messages of the call in their own transaction.
	OwnTx = WithoutTx(core.OwnTx)
	// PassThrough hands the messages to the publisher that Decorator wraps.
	PassThrough = WithoutTx(core.PassThrough)
)

// PublisherConfig configures a Publisher. The zero value is ready for use.
type PublisherConfig struct {
	// WithoutTx decides what Publish does without a transaction: RequireTx (default) refuses, OwnTx begins one,
	// PassThrough publishes directly, during a migration.
	WithoutTx WithoutTx
	// Key returns the ordering key of messages without MetadataKey; "" means no order, an error refuses the message.
	// Default AggregateKey. Messages with the same key on two topics are one sequence.
	Key func(topic string, msg *message.Message) (string, error)
	// MaxPayloadBytes is the maximum size of a payload; default 0, no limit. Set it to the broker's limit: then the writer
	// gets ErrInvalidMessage, instead of the forwarder an error later.
	MaxPayloadBytes int
}

func (c PublisherConfig) core() core.PublisherConfig {
	return core.PublisherConfig{WithoutTx: core.WithoutTx(c.WithoutTx), Key: c.Key, MaxPayloadBytes: c.MaxPayloadBytes}
}

// Publisher writes messages into the outbox table, in the transaction of their context. It is safe for concurrent use;
// calls that share a transaction run one after another.
type Publisher core.Publisher

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher makes a Publisher. It does no I/O. It returns ErrNoDB or an error that names an invalid field. If logger
// is nil, the logger of db is used.
func NewPublisher(db *DB, cfg PublisherConfig, logger watermill.LoggerAdapter) (*Publisher, error) {
	p, err := core.NewPublisher((*core.DB)(db), cfg.core(), logger)
	return (*Publisher)(p), err
}

// Decorator makes a publisher write to the outbox if the message's context carries a transaction. Without one
// cfg.WithoutTx decides; PassThrough hands the messages to the decorated publisher.
//
// It is for publishers that are called inside handlers, such as a CQRS bus's. Messages that a handler returns are
// published by the Router after every middleware, without a transaction in the context: use middleware.Outbox for them.
// Close does not close the decorated publisher. It returns the same errors as NewPublisher.
func Decorator(db *DB, cfg PublisherConfig, logger watermill.LoggerAdapter) (message.PublisherDecorator, error) {
	decorate, err := core.Decorator((*core.DB)(db), cfg.core(), logger)
	if err != nil {
		return nil, err
	}
	return func(pub message.Publisher) (message.Publisher, error) {
		p, err := decorate(pub)
		if err != nil {
			return nil, err
		}
		return (*Publisher)(p), nil
	}, nil
}

// Publish writes the messages in the transaction of their contexts, in their order. It checks all of them before it
// writes any. Publishing no messages is not an error.
//
// It returns ErrInvalidMessage, ErrOtherDB, ErrNoTx depending on PublisherConfig.WithoutTx, an error of
// PublisherConfig.Key, or the database's, after which Postgres refuses all further statements of the transaction. It
// returns ErrNoTx if the transaction in the context has ended (use OutsideTx), and ErrTxEnded if the handler ended it.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	return (*core.Publisher)(p).Publish(topic, msgs...)
}

// PublishContext writes the messages in the transaction of ctx instead of their own contexts. Otherwise it is like
// Publish.
func (p *Publisher) PublishContext(ctx context.Context, topic string, msgs ...*message.Message) error {
	return (*core.Publisher)(p).PublishContext(ctx, topic, msgs...)
}

// Close does nothing: the handle belongs to the caller, and a Router closes its publishers while handlers still run.
func (p *Publisher) Close() error { return nil }
