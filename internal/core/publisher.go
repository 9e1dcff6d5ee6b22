package core

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Errors of publishers, which package outbox exports.
var ErrMixedTx = errors.New("outbox: the messages of one call carry different transactions: " +
	"publish them in separate calls")

// WithoutTx is outbox.WithoutTx.
type WithoutTx int

// The values of WithoutTx.
const (
	RequireTx WithoutTx = iota
	OwnTx
	PassThrough
)

// PublisherConfig is outbox.PublisherConfig.
type PublisherConfig struct {
	WithoutTx       WithoutTx
	Key             func(topic string, msg *message.Message) (string, error)
	MaxPayloadBytes int
}

func (c PublisherConfig) validate(decorates bool) error {
	switch {
	case c.WithoutTx == PassThrough && !decorates:
		return errors.New("PublisherConfig.WithoutTx is PassThrough, which needs a publisher to pass messages to: " +
			"use Decorator")
	case c.WithoutTx < RequireTx || c.WithoutTx > PassThrough:
		return fmt.Errorf("PublisherConfig.WithoutTx is %d: use RequireTx, OwnTx or PassThrough", c.WithoutTx)
	case c.MaxPayloadBytes < 0:
		return fmt.Errorf("PublisherConfig.MaxPayloadBytes is %d: use 0 for no limit", c.MaxPayloadBytes)
	}
	return nil
}

// Publisher is outbox.Publisher.
type Publisher struct {
	db        *DB
	cfg       PublisherConfig
	logger    watermill.LoggerAdapter
	decorated message.Publisher // nil = none
	throttle  *Throttle
}

// NewPublisher returns a Publisher.
func NewPublisher(db *DB, cfg PublisherConfig, logger watermill.LoggerAdapter) (*Publisher, error) {
	return newPublisher(db, cfg, logger, false)
}

func newPublisher(db *DB, cfg PublisherConfig, logger watermill.LoggerAdapter, decorates bool) (*Publisher, error) {
	if err := db.Check(); err != nil {
		return nil, err
	}
	if err := cfg.validate(decorates); err != nil {
		return nil, err
	}
	if cfg.Key == nil {
		cfg.Key = AggregateKey
	}
	return &Publisher{db: db, cfg: cfg, logger: db.Logger(logger), throttle: &Throttle{}}, nil
}

// Decorator returns a function that wraps a publisher in a Publisher.
func Decorator(
	db *DB, cfg PublisherConfig, logger watermill.LoggerAdapter,
) (func(message.Publisher) (*Publisher, error), error) {
	p, err := newPublisher(db, cfg, logger, true)
	if err != nil {
		return nil, err
	}
	return func(pub message.Publisher) (*Publisher, error) {
		if pub == nil {
			return nil, errors.New("outbox: Decorator: the publisher to decorate is nil")
		}
		decorating := *p
		decorating.decorated = pub
		return &decorating, nil
	}, nil
}

// DB returns the handle that the publisher writes through.
func (p *Publisher) DB() *DB { return p.db }

// Logger returns the publisher's logger.
func (p *Publisher) Logger() watermill.LoggerAdapter { return p.logger }

// Decorated returns the publisher that messages are passed on to, or nil.
func (p *Publisher) Decorated() message.Publisher { return p.decorated }

// Publish is outbox.Publisher.Publish.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	ctx, err := ContextOf(msgs)
	if err != nil {
		return p.over(err)
	}
	return p.publish(ctx, topic, msgs, ErrBareMessage)
}

// ContextOf returns the context of the first message, or ErrMixedTx if another message carries another transaction.
func ContextOf(msgs []*message.Message) (context.Context, error) {
	ctx := context.Background()
	for i, msg := range msgs {
		if msg == nil {
			return nil, fmt.Errorf("%w: message %d of the call is nil", ErrInvalidMessage, i)
		}
		if i == 0 {
			ctx = msg.Context()
			continue
		}
		s := scopeFrom(msg.Context())
		if !sameTx(scopeFrom(ctx), s) {
			return nil, ErrMixedTx
		}
		if s != nil {
			if err := s.use(func() error { return nil }); err != nil {
				return nil, err
			}
		}
	}
	return ctx, nil
}

func sameTx(a, b *scope) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.tx == b.tx
}

// PublishContext is outbox.Publisher.PublishContext.
func (p *Publisher) PublishContext(ctx context.Context, topic string, msgs ...*message.Message) error {
	return p.publish(ctx, topic, msgs, ErrNoTx)
}

// ErrBareMessage is ErrNoTx for a message without a context.
var ErrBareMessage = text.Advise(ErrNoTx, "outbox: no transaction in the context of the message: pass on the context "+
	"of outbox.InTx or of the handler's "+
	"message, with PublishContext, or SetContext of the message; where there is no transaction, begin one with "+
	"outbox.InTx, or set PublisherConfig.WithoutTx")

// publish writes in the transaction of ctx. If a transaction is required and missing, it returns bare or a better
// explanation.
func (p *Publisher) publish(ctx context.Context, topic string, msgs []*message.Message, bare error) error {
	s := scopeFrom(ctx)
	if s == nil && p.cfg.WithoutTx == PassThrough && len(msgs) > 0 {
		return p.passOn(topic, msgs)
	}
	w, err := p.newWrite(ctx, topic, msgs)
	switch {
	case err != nil || len(w.records) == 0:
		return err
	case s != nil:
		if err := s.use(s.watched); err != nil {
			w.told(err)
			return p.over(err)
		}
		return p.over(s.write(w))
	case p.cfg.WithoutTx == OwnTx:
		return InTx(ctx, p.db, TxOptions{}, func(ctx context.Context) error { return scopeFrom(ctx).capture(w) })
	}
	if handler := message.HandlerNameFromCtx(ctx); handler != "" {
		bare = text.Advise(ErrNoTx, "outbox: handler %q publishes without a transaction: add middleware.Stack to its "+
			"Router, which also writes the messages that the handler returns, and make it the outermost except for "+
			"Watermill's Retry and PoisonQueue; or publish inside "+
			"outbox.InTx, or set PublisherConfig.WithoutTx", handler)
		p.throttle.Pause(ctx)
	}
	return p.refused(w, bare)
}

// passOn publishes messages without the outbox. They must be valid for the outbox, and are sent with the key under
// which they would have been stored. A delay is refused, because nothing would enforce it.
func (p *Publisher) passOn(topic string, msgs []*message.Message) error {
	records, err := p.records(topic, msgs)
	if err != nil {
		return err
	}
	passed := make([]*message.Message, len(msgs))
	for i, msg := range msgs {
		if due, _ := time.Parse(time.RFC3339Nano, records[i].due); records[i].delay > 0 || time.Until(due) > 0 {
			return fmt.Errorf("%w %q: it is delayed, and without a transaction it would be published immediately: "+
				"publish it within outbox.InTx, or without a delay", ErrInvalidMessage, msg.UUID)
		}
		passed[i] = msg.Copy()
		passed[i].SetContext(msg.Context())
		SetKey(passed[i], records[i].key)
	}
	return p.decorated.Publish(topic, passed...)
}

// Capture writes messages in the same round trip as COMMIT, if the handle is for pgx and no savepoint of user code can
// be open; otherwise it writes them immediately. It checks the messages now and keeps their payloads, not copies.
// Messages that wait get their ids at COMMIT, so they follow messages that the transaction publishes later. It returns
// ErrNoTx if ctx has no transaction or the transaction has ended, regardless of PublisherConfig.WithoutTx.
func (p *Publisher) Capture(ctx context.Context, topic string, msgs ...*message.Message) error {
	w, err := p.newWrite(ctx, topic, msgs)
	if err != nil || len(w.records) == 0 {
		return err
	}
	s := scopeFrom(ctx)
	if s == nil {
		return p.refused(w, ErrNoTx)
	}
	return p.over(s.capture(w))
}

// InsertStatement returns the statement that writes messages, each to its topic, for code that runs it itself. Every
// driver can send its arguments. Observers do not see the write.
func (p *Publisher) InsertStatement(topics []string, msgs []*message.Message) (drive.Statement, error) {
	records := make([]record, len(msgs))
	for i, msg := range msgs {
		err := checkTopic(topics[i])
		if err == nil {
			records[i], err = p.record(topics[i], i, msg)
		}
		if err != nil {
			return drive.Statement{}, err
		}
	}
	stmt := insertStatement(p.db.insert, records)
	stmt.Args = drive.ArrayArgs(stmt.Args)
	return stmt, nil
}

// Validate returns an error if messages could not be written. It writes nothing.
func (p *Publisher) Validate(topic string, msgs ...*message.Message) error {
	_, err := p.records(topic, msgs)
	return err
}

func (s *scope) capture(w write) error {
	waits, err := s.wait(w)
	switch {
	case err != nil:
		w.told(err)
		return err
	case waits:
		return nil
	}
	return s.write(w)
}

// newWrite checks messages. Observers are called before the check, and after it if the messages are refused.
func (p *Publisher) newWrite(ctx context.Context, topic string, msgs []*message.Message) (write, error) {
	if err := checkTopic(topic); err != nil {
		return write{}, err
	}
	w := write{ctx: ctx, db: p.db, topic: topic}
	if len(msgs) == 0 {
		return w, nil
	}
	w.ctx = p.db.writeStart(ctx, topic, msgs)
	var err error
	if w.records, err = p.records(topic, msgs); err != nil {
		return w, p.refused(w, err)
	}
	return w, nil
}

func (p *Publisher) refused(w write, err error) error {
	p.db.writeEnd(w.ctx, w.topic, w.records, 0, err)
	return err
}

func (p *Publisher) records(topic string, msgs []*message.Message) ([]record, error) {
	if err := checkTopic(topic); err != nil {
		return nil, err
	}
	records := make([]record, len(msgs))
	for i, msg := range msgs {
		var err error
		if records[i], err = p.record(topic, i, msg); err != nil {
			return nil, err
		}
	}
	return records, nil
}

// record checks message i of a call.
func (p *Publisher) record(topic string, i int, msg *message.Message) (record, error) {
	if msg == nil {
		return record{}, fmt.Errorf("%w: message %d of the call is nil", ErrInvalidMessage, i)
	}
	key, set := msg.Metadata[MetadataKey]
	if !set {
		var err error
		if key, err = p.cfg.Key(topic, msg); err != nil {
			return record{}, fmt.Errorf("key of message %q: %w", text.Valid(msg.UUID), err)
		}
	}
	return newRecord(topic, msg, key, p.cfg.MaxPayloadBytes)
}

// over adds to an error that WithoutTx does not help with a context whose transaction has ended.
func (p *Publisher) over(err error) error {
	if p.cfg.WithoutTx != RequireTx && errors.Is(err, errOver) {
		return fmt.Errorf("%w; PublisherConfig.WithoutTx is for contexts without a transaction", err)
	}
	return err
}
