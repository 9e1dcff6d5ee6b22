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

// Metadata of a dead letter, four of them under the names that Watermill's PoisonQueue uses. The last two are those of
// a message that has a row in the inbox.
const (
	MetadataReason        = "reason_poisoned"     // text of the error, up to 1 KiB
	MetadataPoisonedTopic = "topic_poisoned"      // topic that the message was consumed from
	MetadataHandler       = "handler_poisoned"    // name of the handler in its Router
	MetadataSubscriber    = "subscriber_poisoned" // name of the subscriber's type
	MetadataService       = "service_poisoned"    // name of the service
	MetadataUUID          = "uuid_poisoned"       // UUID of the message; the letter has one of its own
	MetadataConsumer      = "consumer_poisoned"   // consumer of the message's row in the inbox
	MetadataInboxKey      = "inbox_key_poisoned"  // id of the message in that row
)

// letterKey is the default key, unless it is one that the outbox refuses.
func letterKey(_ string, msg *message.Message) (string, error) {
	return core.ConsumedKey(msg), nil
}

// isLetter says whether the message came from the dead-letter topic. It gets no letter: a handler that fails for each
// would write letters of letters.
func (o *outcomes) isLetter(ctx context.Context) bool {
	return core.ConsumedFrom(ctx).Topic == o.cfg.DeadLetterTopic
}

// bury marks the message dead and publishes its dead letter, unless it is one itself, both or neither. It returns false
// if a copy was processed meanwhile, or is dead already, or the message has another owner by now: then it does
// nothing.
func (o *outcomes) bury(ctx context.Context, msg *message.Message, h *handling, cause error) (buried bool, err error) {
	err = core.InTx(ctx, o.db, core.TxOptions{}, func(ctx context.Context) error {
		letter := deadLetter(ctx, msg, h.claim, o.cfg.Service, cause)
		var err error
		if buried, err = o.markDead(ctx, letter, msg, h, cause); err != nil || !buried || o.isLetter(ctx) {
			return err
		}
		return o.letters.Capture(ctx, o.cfg.DeadLetterTopic, letter)
	})
	return buried, err
}

// markDead marks the row that the message has, and gives the letter its UUID. The letter of a stored message keeps its
// random one: such a message is marked dead by its only owner, with the letter, and so not twice.
func (o *outcomes) markDead(
	ctx context.Context, letter, msg *message.Message, h *handling, cause error,
) (marked bool, err error) {
	id, consumer, revived := msg.UUID, o.cfg.Service+"/"+message.HandlerNameFromCtx(ctx), 0
	if h.work != nil {
		marked, err := h.work.Dead(ctx, text.OfError(cause))
		if !errors.Is(err, outbox.ErrOtherDB) || o.isLetter(ctx) {
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
			o.db.Render(sqltext.BuryInbox), consumer, id, text.OfError(cause))
		if err != nil {
			return false, err
		}
	}
	if at := core.ConsumedFrom(ctx); id == "" && at.Position != "" {
		// A topic that was made again has the same positions.
		id = fmt.Sprintf("%s %s %x", at.Topic, at.Position, core.PayloadHash(msg.Payload))
	}
	if h.mismatch { // the key is that of another message, which may have a letter too
		id = fmt.Sprintf("%s %x", id, core.PayloadHash(msg.Payload))
	}
	if id != "" {
		letter.UUID = letterUUID(id, msg.Metadata.Get(outbox.MetadataGeneration), consumer, revived)
	}
	return marked, nil
}

// letterSpace is the namespace of the UUIDs of dead letters.
var letterSpace = uuid.MustParse("1b3e37ac-0c65-44ed-995b-69db133b6f3c")

// letterUUID is the same for the same arguments and for no others. Letters must differ where the same message died for
// two consumers, or twice, or was sent again on purpose, because brokers and inboxes deduplicate by UUID.
func letterUUID(id, generation, consumer string, revived int) string {
	return uuid.NewSHA1(letterSpace, fmt.Appendf(nil, "%d %d:%s%d:%s%s", revived, len(id), id, len(generation), generation,
		consumer)).String()
}

// deadLetter is a copy of msg that the outbox can store, whatever is wrong with the original: metadata is made valid
// and cut to the limit, and what would command a broker has another name. A delay and a generation, which were those of
// the original, are left out. It has a random UUID.
func deadLetter(
	ctx context.Context, msg *message.Message, c *claim, service string, cause error,
) *message.Message {
	letter := message.NewMessage(watermill.NewUUID(), msg.Payload)
	notes := []entry{
		newEntry(MetadataUUID, msg.UUID),
		newEntry(MetadataService, service),
		newEntry(MetadataHandler, message.HandlerNameFromCtx(ctx)),
		newEntry(MetadataPoisonedTopic, core.ConsumedFrom(ctx).Topic),
		newEntry(MetadataSubscriber, message.SubscriberNameFromCtx(ctx)),
		newEntry(MetadataReason, text.OfError(cause)),
	}
	leftOut := []string{
		MetadataConsumer, MetadataInboxKey, delay.DelayedUntilKey, delay.DelayedForKey, outbox.MetadataGeneration,
	}
	for _, n := range notes {
		leftOut = append(leftOut, n.key)
	}
	if c != nil {
		notes = append(notes, newEntry(MetadataConsumer, c.consumer), newEntry(MetadataInboxKey, c.key))
	}
	var kept []entry
	size := 0
	for k, v := range msg.Metadata {
		if core.Mistyped(k) != "" || core.Commands(k) {
			k += "_poisoned" // the outbox refuses it as it is, or a broker would obey it
		}
		e := newEntry(k, v)
		if !slices.Contains(leftOut, e.key) && (e.key != outbox.MetadataKey || len(e.value) <= outbox.MaxKeyBytes) {
			kept = append(kept, e)
			size += e.size
		}
	}
	parts := [][]entry{kept, notes}
	room := core.MaxMetadataBytes - len("{}") + len(",") // the last entry has none
	if size > room {
		// no outbox has stored it: keep as many entries as fit beside the notes
		slices.SortFunc(kept, func(a, b entry) int { return cmp.Compare(a.size, b.size) })
		parts = [][]entry{notes, kept}
	}
	for _, e := range slices.Concat(parts...) {
		if e = e.cutTo(room); e.size <= room {
			letter.Metadata.Set(e.key, e.value)
			room -= e.size
		}
	}
	return letter
}

// entry is one of metadata, made storable. Its size is what it takes as JSON: "key":"value" and a comma.
type entry struct {
	key, value string
	size       int
}

func newEntry(key, value string) entry {
	e := entry{key: text.Valid(key), value: text.Valid(value), size: len(":,")}
	for _, s := range []string{e.key, e.value} {
		encoded, _ := json.Marshal(s) // strings always can be
		e.size += len(encoded)
	}
	return e
}

// cutTo cuts the value, if that makes the entry fit.
func (e entry) cutTo(room int) entry {
	const longestEscape = len(`\u0001`)
	if left := room - newEntry(e.key, "").size; e.size > room && left > 0 {
		return newEntry(e.key, text.Cut(e.value, left/longestEscape))
	}
	return e
}
