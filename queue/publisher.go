package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
)

// PublisherConfig configures NewPublisher. The zero value is ready for use.
type PublisherConfig struct {
	// WithoutTx chooses how Publish works without a transaction; default outbox.RequireTx, which returns outbox.ErrNoTx.
	// Set outbox.OwnTx for the publisher of a forwarder; outbox.PassThrough is invalid.
	WithoutTx outbox.WithoutTx
}

// Publisher stores published messages in the queue, so that services that share Postgres need no broker. It is safe for
// concurrent use. Order is not kept: the queue is ordered by due time.
type Publisher struct {
	ingester *ingester
	cfg      PublisherConfig
}

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher makes a Publisher. Use it in handlers, whose transaction it joins, or with outbox.OwnTx as the publisher
// of a forwarder for an outbox in another database.
//
// The ID of a message is its topic (ID.Source) and its UUID (ID.MessageID): a copy is not stored again.
// outbox.AggregateKey is its key, and a delay (outbox.SetDelay, outbox.SetDueAt), on the database's clock, its
// Item.DueAt; payload and metadata are stored as they are.
//
// NewPublisher returns outbox.ErrNoDB for a nil store, or an error that names the invalid field.
func NewPublisher(store *Store, cfg PublisherConfig) (*Publisher, error) {
	switch {
	case store == nil:
		return nil, outbox.ErrNoDB
	case cfg.WithoutTx != outbox.RequireTx && cfg.WithoutTx != outbox.OwnTx:
		return nil, fmt.Errorf("PublisherConfig.WithoutTx is %d: use outbox.RequireTx or outbox.OwnTx", cfg.WithoutTx)
	}
	return &Publisher{ingester: newIngester(store), cfg: cfg}, nil
}

// Publish is PublishContext with the context of the messages. It returns an error if they carry different
// transactions.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	ctx, err := core.ContextOf(msgs)
	if err != nil {
		return err
	}
	return p.PublishContext(ctx, topic, msgs...)
}

// PublishContext stores messages, all or none, in the transaction of ctx. Without a transaction, and with outbox.OwnTx,
// concurrent calls with one message each are committed together.
//
// A message that cannot be stored is outbox.ErrPoison, around ErrInvalid: a forwarder makes it dead immediately.
// PublishContext also returns outbox.ErrNoTx, and outbox.ErrOtherDB for a transaction of another database.
func (p *Publisher) PublishContext(ctx context.Context, topic string, msgs ...*message.Message) error {
	items := make([]Item, len(msgs))
	for i, msg := range msgs {
		var err error
		if items[i], err = p.item(topic, msg); err == nil {
			_, err = p.ingester.store.record(items[i])
		}
		if err != nil {
			return outbox.Poison(fmt.Errorf("%w: message %d of the call: %w", ErrInvalid, i, err))
		}
	}
	_, joined, err := p.ingester.store.on(ctx)
	switch {
	case err != nil || len(items) == 0:
		return err
	case !joined && p.cfg.WithoutTx == outbox.RequireTx:
		return core.ErrBareMessage
	case !joined && len(items) == 1:
		return p.ingester.put(ctx, items[0])
	}
	store := p.ingester.store
	enqueue := func(ctx context.Context) error {
		stored, err := store.Enqueue(ctx, items...)
		for _, s := range stored {
			err = errors.Join(err, s.notStored())
		}
		return err
	}
	if joined {
		return poisoned(enqueue(ctx))
	}
	return poisoned(store.inOwnTx(ctx, enqueue))
}

func (p *Publisher) item(topic string, msg *message.Message) (item Item, err error) {
	if msg == nil {
		return item, errors.New("it is nil")
	}
	item = Item{
		ID: ID{Source: topic, MessageID: msg.UUID}, Topic: topic, Payload: msg.Payload, Metadata: msg.Metadata,
	}
	if item.Key = msg.Metadata.Get(outbox.MetadataKey); item.Key == "" {
		if item.Key, err = outbox.AggregateKey(topic, msg); err != nil {
			return item, err
		}
	}
	if until := msg.Metadata.Get(delay.DelayedUntilKey); until != "" {
		item.DueAt, err = time.Parse(time.RFC3339, until)
	} else if wait := msg.Metadata.Get(delay.DelayedForKey); wait != "" {
		item.delay, err = time.ParseDuration(wait)
	}
	return item, err
}

// Close does nothing: the database's handle belongs to the caller.
func (p *Publisher) Close() error { return nil }
