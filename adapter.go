package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/schema"
)

// WithoutTx says what Publish does when the context carries no transaction.
type WithoutTx int

const (
	// RequireTx refuses with ErrNoTx. It is the default: a message that was meant to be atomic with
	// something is not written beside it by accident.
	RequireTx WithoutTx = iota
	// OwnTx writes the messages of the call in a transaction of their own.
	OwnTx
	// PassThrough hands the messages to PublisherConfig.Publisher, or to the publisher that Decorator wraps.
	PassThrough
)

// PublisherConfig configures a Publisher. The zero value is ready for use.
type PublisherConfig struct {
	// Tables are the names of the tables; default: outbox and its companions in the search path.
	Tables schema.Names
	// WithoutTx says what to do without a transaction in the context; default RequireTx.
	WithoutTx WithoutTx
	// Publisher is where PassThrough hands messages to. Decorator sets it.
	Publisher message.Publisher
	// KeyFunc computes the ordering key of messages that have none in MetadataKey; "" means no order.
	// Default AggregateKey. A key is global to the outbox table: messages with the same key on two topics
	// are one sequence. Prefix it with the topic if that is too much.
	KeyFunc func(topic string, msg *message.Message) string
	// MaxPayloadBytes refuses larger payloads with ErrInvalidMessage, before the broker does; default no limit.
	MaxPayloadBytes int
	// DisableNotify keeps commits from notifying forwarders of other processes, which then find the
	// messages at their next poll. Those of this process are woken through memory all the same.
	DisableNotify bool
	// Observer, if not nil, is told of each write.
	Observer WriteObserver
}

func (c *PublisherConfig) setDefaults() {
	c.Tables = c.Tables.WithDefaults()
	if c.KeyFunc == nil {
		c.KeyFunc = AggregateKey
	}
}

func (c PublisherConfig) validate() error {
	if err := c.Tables.Validate(); err != nil {
		return fmt.Errorf("PublisherConfig.Tables: %w", err)
	}
	switch c.WithoutTx {
	case RequireTx, OwnTx:
	case PassThrough:
		if c.Publisher == nil {
			return fmt.Errorf("PublisherConfig.WithoutTx is PassThrough, but PublisherConfig.Publisher is nil")
		}
	default:
		return fmt.Errorf("PublisherConfig.WithoutTx is %d: use RequireTx, OwnTx or PassThrough", c.WithoutTx)
	}
	if c.MaxPayloadBytes < 0 {
		return fmt.Errorf("PublisherConfig.MaxPayloadBytes is %d: use 0 for no limit", c.MaxPayloadBytes)
	}
	return nil
}

// Publisher writes messages into the outbox table, in the transaction that their context carries. It is
// safe for concurrent use; calls that share a transaction must follow one another.
type Publisher struct {
	db                   *DB
	cfg                  PublisherConfig
	table                string
	insert, insertMarked string
	channel              string // "" = do not notify

	aggregateKeys bool // no KeyFunc was given
	logger        watermill.LoggerAdapter
}

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher makes a Publisher. It does no I/O. It returns ErrNoDB, schema.ErrBadName or an error that
// names the field at fault. A nil logger logs nothing.
func NewPublisher(db *DB, cfg PublisherConfig, logger watermill.LoggerAdapter) (*Publisher, error) {
	if err := db.Check(); err != nil {
		return nil, err
	}
	aggregateKeys := cfg.KeyFunc == nil
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	p := &Publisher{
		db: db, cfg: cfg, logger: logger,
		table:  cfg.Tables.OutboxName(),
		insert: cfg.Tables.Render(schema.InsertMessages), insertMarked: cfg.Tables.Render(insertMarked),
		aggregateKeys: aggregateKeys,
	}
	if !cfg.DisableNotify {
		p.channel = cfg.Tables.Channel()
	}
	return p, nil
}

// Decorator makes the publisher that a Router or a component is given write to the outbox wherever the
// message's context carries a transaction; without one cfg.WithoutTx decides, and PassThrough hands the
// messages to the decorated publisher, or to cfg.Publisher if that is set. Close of what it returns does not close the
// decorated publisher; whoever made that does.
//
// It serves publishers that are called inside handlers, such as those of a CQRS bus. What a handler returns
// is published by the Router after every middleware is done, with a context that has no transaction:
// that takes middleware.Outbox.
func Decorator(db *DB, cfg PublisherConfig, logger watermill.LoggerAdapter) message.PublisherDecorator {
	return func(pub message.Publisher) (message.Publisher, error) {
		if cfg.Publisher == nil {
			cfg := cfg
			cfg.Publisher = pub
			return NewPublisher(db, cfg, logger)
		}
		return NewPublisher(db, cfg, logger)
	}
}

// Publish writes the messages in the transaction of their contexts, at once and in their order. It checks
// all of them before it writes any. Publishing nothing is no error.
//
// It returns ErrInvalidMessage, ErrMixedTx, ErrOtherDB, ErrNoTx as PublisherConfig.WithoutTx says, or the
// error of the database, after which Postgres refuses everything else in that transaction. If the transaction in the
// context has ended it returns ErrNoTx whatever WithoutTx says; give such messages a context of OutsideTx.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	ctx := context.Background()
	for i, msg := range msgs {
		if msg == nil {
			return fmt.Errorf("%w: message %d of the call is nil", ErrInvalidMessage, i)
		}
		if i == 0 {
			ctx = msg.Context()
			continue
		}
		s := scopeFrom(msg.Context())
		if !sameTx(scopeFrom(ctx), s) {
			return ErrMixedTx
		}
		if s != nil && len(msgs) > 1 {
			if err := s.use(func() error { return nil }); err != nil {
				return p.over(err)
			}
		}
	}
	return p.PublishContext(ctx, topic, msgs...)
}

func sameTx(a, b *scope) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.tx == b.tx
}

// PublishContext is Publish with the transaction of ctx instead of the messages' contexts.
func (p *Publisher) PublishContext(ctx context.Context, topic string, msgs ...*message.Message) error {
	records, err := p.records(topic, msgs)
	if err != nil || len(records) == 0 {
		return err
	}
	s := scopeFrom(ctx)
	if s == nil {
		return p.publishWithoutTx(ctx, topic, msgs)
	}
	var begun time.Time
	err = s.use(func() error {
		if s.tx.db != nil && s.tx.db != p.db {
			return ErrOtherDB
		}
		begun = time.Now()
		return s.write(ctx, p, records)
	})
	if !begun.IsZero() {
		p.observe(ctx, topic, records, time.Since(begun), err)
	}
	return p.over(err)
}

// write writes records at once. It runs in use.
func (s *scope) write(ctx context.Context, p *Publisher, records []record) error {
	for _, stmt := range chunks(p.insertInto(s.tx), records) {
		if _, err := s.tx.q.Exec(ctx, stmt.sql, stmt.args...); err != nil {
			if s.tx.db != nil {
				err = endedError(ctx, checked(err))
			}
			return fmt.Errorf("write to %s: %w", p.table, schema.Explain(err))
		}
	}
	s.wrote(p)
	return nil
}

func (p *Publisher) insertInto(tx *txState) string {
	if tx.q.marked() {
		return p.insertMarked
	}
	return p.insert
}

// over says that WithoutTx does not help a context that is used after its transaction.
func (p *Publisher) over(err error) error {
	if p.cfg.WithoutTx != RequireTx && errors.Is(err, errOver) {
		return fmt.Errorf("%w; PublisherConfig.WithoutTx is for contexts without a transaction", err)
	}
	return err
}

// Capture takes messages that InTx will write together with COMMIT, in the same round trip, if the handle is of pgx and no
// savepoint of the user's own can be open; else it writes them at once. middleware.Outbox captures what a handler
// returns; other code wants PublishContext, whose errors come at once. It checks the messages now and keeps their payloads,
// not copies: leave them as they are until COMMIT. Messages get their ids then, so they come after what the transaction
// publishes by Publish later. It returns ErrNoTx without a transaction, or if that has ended, whatever
// PublisherConfig.WithoutTx says.
func (p *Publisher) Capture(ctx context.Context, topic string, msgs ...*message.Message) error {
	records, err := p.records(topic, msgs)
	if err != nil || len(records) == 0 {
		return err
	}
	s := scopeFrom(ctx)
	if s == nil {
		return ErrNoTx
	}
	later := false
	err = s.use(func() error {
		if s.tx.db != nil && s.tx.db != p.db {
			return ErrOtherDB
		}
		if later = s.tx.q.later(); later {
			s.pending = append(s.pending, capture{p, topic, records})
		}
		return nil
	})
	if err != nil || later {
		return p.over(err)
	}
	return p.PublishContext(ctx, topic, msgs...)
}

// Close does nothing: the database handle belongs to the caller, and a Router closes its publishers while
// handlers still run.
func (p *Publisher) Close() error { return nil }

// DB returns the handle that the publisher writes through.
func (p *Publisher) DB() *DB { return p.db }

// Logger returns the logger of the publisher, which may be one that logs nothing.
func (p *Publisher) Logger() watermill.LoggerAdapter { return p.logger }

// Tables returns the names of the tables that the publisher writes to, every one filled in.
func (p *Publisher) Tables() schema.Names { return p.cfg.Tables }

func (p *Publisher) records(topic string, msgs []*message.Message) ([]record, error) {
	if err := checkTopic(topic); err != nil {
		return nil, err
	}
	records := make([]record, len(msgs))
	for i, msg := range msgs {
		if msg == nil {
			return nil, fmt.Errorf("%w: message %d of the call is nil", ErrInvalidMessage, i)
		}
		key, set := msg.Metadata[MetadataKey]
		if !set {
			if err := p.halfAggregate(msg); err != nil {
				return nil, err
			}
			key = p.cfg.KeyFunc(topic, msg)
		}
		var err error
		if records[i], err = newRecord(topic, msg, key, p.cfg.MaxPayloadBytes); err != nil {
			return nil, err
		}
	}
	return records, nil
}

// halfAggregate refuses a message that is meant to have a key and would get none.
func (p *Publisher) halfAggregate(msg *message.Message) error {
	kind, id := msg.Metadata[MetadataAggregateType], msg.Metadata[MetadataAggregateID]
	if !p.aggregateKeys || (kind == "") == (id == "") {
		return nil
	}
	return fmt.Errorf("%w %q: it has half an aggregate, %s %q and %s %q, and so no key and no order: set both, or metadata %s, which may be empty",
		ErrInvalidMessage, msg.UUID, MetadataAggregateType, kind, MetadataAggregateID, id, MetadataKey)
}

func (p *Publisher) publishWithoutTx(ctx context.Context, topic string, msgs []*message.Message) error {
	switch p.cfg.WithoutTx {
	case OwnTx:
		return InTx(ctx, p.db, func(ctx context.Context) error { return p.Capture(ctx, topic, msgs...) })
	case PassThrough:
		return p.cfg.Publisher.Publish(topic, msgs...)
	}
	return ErrNoTx
}

func (p *Publisher) observe(ctx context.Context, topic string, records []record, took time.Duration, err error) {
	if p.cfg.Observer == nil {
		return
	}
	w := Write{DB: p.db.name, Topic: topic, Messages: len(records), Duration: took, Err: err}
	for _, r := range records {
		w.Bytes += len(r.payload)
	}
	p.cfg.Observer.Written(ctx, w)
}
