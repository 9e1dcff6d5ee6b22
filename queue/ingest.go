package queue

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// IngestConfig configures Ingest. Source is required, unless Item is set.
type IngestConfig struct {
	// Source names the sender: ID.Source of all messages. Required, unless Item is set.
	Source string
	// Item returns the item to store for a message. Default: UUID, topic, ordering key, payload and metadata of the
	// message. Set it if the identity is in the payload. ErrIgnore acks the message without storing it; any other error
	// fails it.
	Item func(msg *message.Message) (Item, error)
}

// Ingest returns a handler that stores a broker's messages for a Dispatcher or a Subscriber, and returns after the
// commit, so that the Router acks:
//
//	aside, err := middleware.ErrorHandler(db, middleware.ErrorHandlerConfig{Service: "booking"}, logger)
//	router.AddConsumerHandler("ingest", "orders", kafkaSubscriber, ingest).AddMiddleware(aside)
//
// Concurrent messages are committed together, so let the Router deliver many at a time. A copy is acked too: it
// replaces the content unless the message was handled or is being handled. If it is being handled with another hash,
// the copy is nacked. In a transaction, such as middleware.Tx's, the message is stored in that transaction.
//
// A message that cannot be stored, because it has no ID or is larger than StoreConfig.MaxPayloadBytes, is
// outbox.ErrPoison: ErrorHandler writes its dead letter; without ErrorHandler it is redelivered each time. An error is
// returned after a wait of 100 ms, doubling to a second, so that the Router does not spin.
//
// Ingest returns outbox.ErrNoDB for a nil store, or an error that names an invalid field.
func Ingest(store *Store, cfg IngestConfig) (message.NoPublishHandlerFunc, error) {
	switch {
	case store == nil:
		return nil, outbox.ErrNoDB
	case cfg.Source == "" && cfg.Item == nil:
		return nil, errors.New("IngestConfig.Source is required: together with the UUID it identifies a message: or " +
			"set IngestConfig.Item")
	}
	if cfg.Item == nil {
		cfg.Item = cfg.item
	}
	b := newIngester(store)
	return func(msg *message.Message) error {
		core.DropHeaders(msg) // a message from outside must not command a broker
		err := b.ingest(msg, cfg.Item)
		if err == nil {
			b.throttle.Reset()
		} else if !core.IsThrottled(msg.Context()) {
			b.throttle.Pause(msg.Context())
		}
		return err
	}, nil
}

func (c IngestConfig) item(msg *message.Message) (Item, error) {
	if msg.UUID == "" {
		return Item{}, outbox.Poison(
			fmt.Errorf("%w: message without UUID: it was not sent by a Watermill publisher: set one in the "+
				"subscriber's Unmarshaler, or make an ID in IngestConfig.Item", ErrInvalid))
	}
	return Item{
		ID:    ID{Source: c.Source, MessageID: msg.UUID},
		Topic: core.ConsumedFrom(msg.Context()).Topic, Key: core.ConsumedKey(msg),
		Payload: msg.Payload, Metadata: msg.Metadata,
	}, nil
}

// ingester stores concurrent items in one statement.
type ingester struct {
	store    *Store
	throttle core.Throttle // consecutive failures
	batcher  *batcher[*waitingItem]
}

type waitingItem struct {
	ctx  context.Context
	item Item
	done chan error // capacity 1
}

func newIngester(store *Store) *ingester {
	b := &ingester{store: store}
	b.batcher = newBatcher(0, b.write)
	return b
}

func (b *ingester) ingest(msg *message.Message, itemOf func(*message.Message) (Item, error)) error {
	item, err := itemOf(msg)
	err = text.SafeError(err)
	switch {
	case errors.Is(err, ErrIgnore):
		return nil
	case err != nil:
		return fmt.Errorf("IngestConfig.Item: %w", err)
	}
	if _, err := b.store.record(item); err != nil {
		return outbox.Poison(fmt.Errorf("%w: %w", ErrInvalid, err))
	}
	return b.put(msg.Context(), item)
}

func (b *ingester) put(ctx context.Context, item Item) error {
	if core.Elsewhere(ctx) {
		ctx = core.OutsideTx(ctx)
	}
	if _, err := b.store.db.Tx(ctx); !errors.Is(err, core.ErrNoTx) {
		stored, err := b.store.Enqueue(ctx, item)
		if err == nil {
			err = stored[0].notStored()
		}
		return poisoned(err)
	}
	mine := &waitingItem{ctx: ctx, item: item, done: make(chan error, 1)}
	b.batcher.add(mine)
	select {
	case err := <-mine.done:
		return err
	case <-ctx.Done():
		// Not retried with other items: it may have been stored after all, and a late write would overwrite newer content.
		b.batcher.remove(mine)
		return ctx.Err()
	}
}

// write stores a batch. If it fails for a reason that only some items may cause, its halves are stored separately,
// recursively.
func (b *ingester) write(batch []*waitingItem) {
	stored, err := b.enqueue(batch)
	refused := errors.Is(err, ErrInvalid) || errors.Is(err, outbox.ErrNotStored) || text.RefusesRow(err)
	if half := len(batch) / 2; half > 0 && refused {
		b.write(batch[:half])
		b.write(batch[half:])
		return
	}
	for i, w := range batch {
		if err == nil {
			w.done <- stored[i].notStored()
		} else {
			w.done <- poisoned(err)
		}
	}
}

// enqueue returns a panic of user code as an error, because no Router recovers panics in this goroutine.
func (b *ingester) enqueue(batch []*waitingItem) (stored []EnqueueResult, err error) {
	ctx, cancel := context.WithTimeout(core.OutsideTx(context.WithoutCancel(batch[0].ctx)), queryTimeout)
	defer cancel()
	items := make([]Item, len(batch))
	for i, w := range batch {
		items[i] = w.item
	}
	err = guarded(func() (err error) {
		stored, err = b.store.enqueueItems(ctx, items, false)
		return err
	})
	return stored, err
}

// poisoned marks an error caused by the message itself.
func poisoned(err error) error {
	if dataError(err) {
		return outbox.Poison(err)
	}
	return err
}

// dataError reports whether Postgres refused the data as invalid or too large.
func dataError(err error) bool {
	state := text.SQLState(err)
	if ofSession(state) {
		return false
	}
	return errors.Is(err, ErrInvalid) || strings.HasPrefix(state, "22") || strings.HasPrefix(state, "23") ||
		strings.HasPrefix(state, "54")
}

// ofSession reports whether one of our statements refused the session's settings, so that no message is at fault.
func ofSession(state string) bool { return state == text.NotUTF8 || state == text.NotReadCommitted }
