package middleware

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Metadata of a dead letter, besides the metadata of Watermill's PoisonQueue. The last two are set if the message has a
// row in the inbox.
const (
	serviceKey  = "service_poisoned"   // name of the service
	uuidKey     = "uuid_poisoned"      // UUID of the message; the dead letter has its own
	consumerKey = "consumer_poisoned"  // consumer in the message's inbox row
	messageKey  = "inbox_key_poisoned" // message id in that row
)

// The metadata of PoisonQueue.
const (
	reasonKey     = "reason_poisoned"     // text of the error, up to 1 KiB
	topicKey      = "topic_poisoned"      // topic that the message was consumed from
	handlerKey    = "handler_poisoned"    // name of the handler in its Router
	subscriberKey = "subscriber_poisoned" // name of the subscriber's type
)

// deadLetterKey returns the default key, unless the outbox would refuse it.
func deadLetterKey(_ string, msg *message.Message) (string, error) {
	return core.ConsumedKey(msg), nil
}

// isDeadLetter reports whether the message came from the dead-letter topic. Such a message gets no dead letter: a
// handler that always fails would write dead letters about dead letters.
func (o *errorHandler) isDeadLetter(ctx context.Context) bool {
	return core.ConsumedFrom(ctx).Topic == o.cfg.DeadLetterTopic
}

// sendDeadLetter marks the message dead and, unless it is a dead letter itself, publishes its dead letter; both or
// neither. It returns false and does nothing if a copy was processed in the meantime or is already dead, or if the
// message now has another owner.
func (o *errorHandler) sendDeadLetter(
	ctx context.Context, msg *message.Message, h *handling, cause error,
) (marked bool, err error) {
	err = core.InTx(ctx, o.db, core.TxOptions{}, func(ctx context.Context) error {
		deadLetter := newDeadLetter(ctx, msg, h.claim, o.cfg.Service, cause)
		var err error
		if marked, err = o.markDead(ctx, deadLetter, msg, h, cause); err != nil || !marked || o.isDeadLetter(ctx) {
			return err
		}
		return o.deadLetters.Capture(ctx, o.cfg.DeadLetterTopic, deadLetter)
	})
	return marked, err
}

// markDead marks the row of the message dead, and sets the UUID of the dead letter. The dead letter of a stored message
// keeps its random UUID: only the owner of such a message marks it dead, in the same transaction, so this happens once.
func (o *errorHandler) markDead(
	ctx context.Context, deadLetter, msg *message.Message, h *handling, cause error,
) (marked bool, err error) {
	id, consumer, revived := msg.UUID, o.cfg.Service+"/"+message.HandlerNameFromCtx(ctx), 0
	if h.work != nil {
		marked, err := h.work.Dead(ctx, text.OfError(cause))
		if !errors.Is(err, outbox.ErrOtherDB) || o.isDeadLetter(ctx) {
			return marked, err
		}
	}
	marked = true
	if c := h.claim; c != nil {
		q, err := o.db.Tx(ctx)
		if err != nil {
			return false, err
		}
		marked, id, consumer = false, c.key, c.consumer
		err = drive.Collect(ctx, q, func(rows drive.Rows) error { marked = true; return rows.Scan(&revived) },
			o.db.Render(sqltext.MarkInboxDead), consumer, id, text.OfError(cause))
		if err != nil {
			return false, err
		}
	}
	if at := core.ConsumedFrom(ctx); id == "" && at.Position != "" {
		// A topic that was deleted and created again reuses its positions.
		id = fmt.Sprintf("%s %s %x", at.Topic, at.Position, core.PayloadHash(msg.Payload))
	}
	if h.calling == onMismatch { // the key belongs to another message, which may have its own dead letter
		id = fmt.Sprintf("%s %x", id, core.PayloadHash(msg.Payload))
	}
	if id != "" {
		deadLetter.UUID = deadLetterUUID(id, msg.Metadata.Get(outbox.MetadataGeneration), consumer, revived)
	}
	return marked, nil
}

// deadLetterSpace is the namespace of the UUIDs of dead letters.
var deadLetterSpace = uuid.MustParse("1b3e37ac-0c65-44ed-995b-69db133b6f3c")

// deadLetterUUID is the same for equal arguments and differs for all others. Dead letters must differ if the same
// message died for two consumers, or twice, or was deliberately sent again, because brokers and inboxes deduplicate by
// UUID.
func deadLetterUUID(id, generation, consumer string, revived int) string {
	name := fmt.Appendf(nil, "%d %d:%s%d:%s%s", revived, len(id), id, len(generation), generation, consumer)
	return uuid.NewSHA1(deadLetterSpace, name).String()
}

// newDeadLetter returns a copy of msg that the outbox can store, even if the original cannot be stored: metadata is
// made valid and cut to the limit, and keys that would command a broker are renamed. It drops the delay and the
// generation, and has a random UUID.
func newDeadLetter(
	ctx context.Context, msg *message.Message, c *claim, service string, cause error,
) *message.Message {
	deadLetter := message.NewMessage(watermill.NewUUID(), msg.Payload)
	added := []entry{
		newEntry(uuidKey, msg.UUID),
		newEntry(serviceKey, service),
		newEntry(handlerKey, message.HandlerNameFromCtx(ctx)),
		newEntry(topicKey, core.ConsumedFrom(ctx).Topic),
		newEntry(subscriberKey, message.SubscriberNameFromCtx(ctx)),
		newEntry(reasonKey, text.OfError(cause)),
	}
	leftOut := []string{
		consumerKey, messageKey, delay.DelayedUntilKey, delay.DelayedForKey, outbox.MetadataGeneration,
	}
	for _, e := range added {
		leftOut = append(leftOut, e.key)
	}
	if c != nil {
		added = append(added, newEntry(consumerKey, c.consumer), newEntry(messageKey, c.key))
	}
	var kept []entry
	size := 0
	for k, v := range msg.Metadata {
		if core.Mistyped(k) != "" || core.Commands(k) {
			k += "_poisoned" // unchanged, the outbox would refuse it, or a broker would obey it
		}
		e := newEntry(k, v)
		if !slices.Contains(leftOut, e.key) && (e.key != outbox.MetadataKey || len(e.value) <= core.MaxKeyBytes) {
			kept = append(kept, e)
			size += e.size
		}
	}
	parts := [][]entry{kept, added}
	room := core.MaxMetadataBytes - len("{}") + len(",") // the last entry has no comma
	if size > room {
		// it was never stored in an outbox: keep the entries that fit next to those of the dead letter
		slices.SortFunc(kept, func(a, b entry) int { return cmp.Compare(a.size, b.size) })
		parts = [][]entry{added, kept}
	}
	for _, e := range slices.Concat(parts...) {
		if e = e.cutTo(room); e.size <= room {
			deadLetter.Metadata.Set(e.key, e.value)
			room -= e.size
		}
	}
	return deadLetter
}

// entry is one metadata entry, made storable. Its size is its length as JSON: "key":"value" and a comma.
type entry struct {
	key, value string
	size       int
}

func newEntry(key, value string) entry {
	e := entry{key: text.Valid(key), value: text.Valid(value), size: len(":,")}
	for _, s := range []string{e.key, e.value} {
		encoded, _ := json.Marshal(s) // strings always encode
		e.size += len(encoded)
	}
	return e
}

// cutTo shortens the value if that is enough to make the entry fit.
func (e entry) cutTo(room int) entry {
	const longestEscape = len(`\u0001`)
	if left := room - newEntry(e.key, "").size; e.size > room && left > 0 {
		return newEntry(e.key, text.Cut(e.value, left/longestEscape))
	}
	return e
}
