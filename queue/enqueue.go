package queue

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

const (
	maxIDChars    = 255
	maxTopicChars = 255
	chunkRows     = 1000
	chunkBytes    = 4 << 20
	// enqueueTries is the number of tries for a message that is being claimed, and for a call that failed because of
	// concurrent transactions.
	enqueueTries = 3
)

// Enqueue stores messages, all or none, and returns the outcome of each in the order of the call. A known message that
// was not handled yet gets the new content and due time. A message that was handled or is being handled is not changed,
// and a dead one stays dead. If an ID occurs twice in the call, the later item counts. An empty call is not an error.
//
// It waits for transactions that store or change the same messages, and then counts as later, but not for a handler
// that has acked a message in its transaction: the result is Busy. Several calls in one transaction can deadlock
// (40P01) with another such transaction, and calls conflict (40001) if default_transaction_isolation is stricter than
// READ COMMITTED. Outside a transaction Enqueue tries three times, with short pauses.
//
// It returns ErrInvalid, which names the item and the fault, and outbox.ErrNotStored if a trigger or a rule swallows
// rows.
func (s *Store) Enqueue(ctx context.Context, items ...Item) ([]EnqueueResult, error) {
	return s.enqueueItems(ctx, items, len(items) > 1)
}

// enqueueItems is Enqueue. Without a transaction in ctx, and without inTx, each statement is committed on its own,
// which saves round trips.
func (s *Store) enqueueItems(ctx context.Context, items []Item, inTx bool) ([]EnqueueResult, error) {
	records, err := s.records(items)
	if err != nil || len(items) == 0 {
		return nil, err
	}
	_, joined, err := s.on(ctx)
	if err != nil {
		return nil, fmt.Errorf("store messages: %w", err)
	}
	stored := make([]EnqueueResult, len(items))
	list := chunks(records)
	write := func(ctx context.Context, list ...[]record) error {
		for _, chunk := range list {
			if err := s.enqueue(ctx, items, chunk, stored); err != nil {
				return err
			}
		}
		return nil
	}
	switch {
	case joined:
		err = write(ctx, list...)
	case inTx:
		err = s.inOwnTx(ctx, func(ctx context.Context) error { return write(ctx, list...) })
	default:
		for i := 0; i < len(list) && err == nil; i++ {
			err = repeated(ctx, func() error { return write(ctx, list[i]) })
		}
	}
	if err != nil {
		return nil, err
	}
	s.db.WakeLater(ctx, core.QueueNotification(topicsOf(items)...))
	s.tell(items, stored)
	return stored, nil
}

// inOwnTx runs fn in a transaction, and again if that failed only because of concurrent ones.
func (s *Store) inOwnTx(ctx context.Context, fn func(ctx context.Context) error) error {
	return repeated(ctx, func() error { return core.InTx(ctx, s.db, core.TxOptions{}, fn) })
}

// repeated calls fn until it succeeds, fails for a reason other than concurrent transactions, or ctx ends, at most
// enqueueTries times. It pauses between the tries, or they would fail together again.
func repeated(ctx context.Context, fn func() error) error {
	wait := newBackOff(50*time.Millisecond, 2*time.Second)
	for try := 1; ; try++ {
		err := fn()
		if !repeatable(err) || try == enqueueTries {
			return err
		}
		if !core.Pause(ctx, wait.NextBackOff()) {
			return errors.Join(err, ctx.Err())
		}
	}
}

// record is an item that was checked and is ready to be written.
type record struct {
	at             []int // positions in the call; the last one is effective
	metadata       string
	hash           []byte
	dueAt, expires string
	bytes          int
}

// records checks items and sorts them by ID.
func (s *Store) records(items []Item) ([]record, error) {
	known := make(map[ID]int, len(items))
	records := make([]record, 0, len(items))
	for i, item := range items {
		r, err := s.record(item)
		if err != nil {
			return nil, fmt.Errorf("%w: item %d of the call: %w", ErrInvalid, i, err)
		}
		if at, ok := known[item.ID]; ok {
			r.at = append(records[at].at, i)
			records[at] = r
			continue
		}
		r.at = []int{i}
		known[item.ID] = len(records)
		records = append(records, r)
	}
	slices.SortFunc(records, func(a, b record) int { return items[a.at[0]].ID.compare(items[b.at[0]].ID) })
	return records, nil
}

func (s *Store) record(item Item) (record, error) {
	if err := item.ID.check(); err != nil {
		return record{}, err
	}
	switch limit := s.cfg.MaxPayloadBytes; {
	case item.Topic == "":
		return record{}, fmt.Errorf("its topic is empty: the topic selects the handler")
	case utf8.RuneCountInString(item.Topic) > maxTopicChars:
		return record{}, fmt.Errorf("its topic has %d characters, the limit is %d", utf8.RuneCountInString(item.Topic),
			maxTopicChars)
	case !text.Storable(item.Topic):
		return record{}, fmt.Errorf("its topic is invalid UTF-8 or contains a NUL")
	case len(item.Key) > core.MaxKeyBytes:
		return record{}, fmt.Errorf("its key has %d bytes, the limit is %d: hash it", len(item.Key), core.MaxKeyBytes)
	case !text.Storable(item.Key):
		return record{}, fmt.Errorf("its key is invalid UTF-8 or contains a NUL")
	case limit > 0 && len(item.Payload) > limit:
		return record{}, fmt.Errorf("its payload has %d bytes, StoreConfig.MaxPayloadBytes is %d", len(item.Payload), limit)
	}
	metadata, err := encode(item.Metadata)
	if err != nil {
		return record{}, err
	}
	r := record{metadata: metadata, hash: item.Hash}
	if len(r.hash) == 0 && s.cfg.HashContent {
		r.hash = SHA256(item.Payload)
	}
	if r.dueAt, err = moment("DueAt", item.DueAt); err != nil {
		return record{}, err
	}
	if r.expires, err = moment("ExpiresAt", item.ExpiresAt); err != nil {
		return record{}, err
	}
	r.bytes = len(item.Payload) + len(r.metadata) + len(item.MessageID) + len(item.Source) + len(item.Topic)
	return r, nil
}

// encode writes metadata as JSON.
func encode(metadata message.Metadata) (string, error) {
	if len(metadata) == 0 {
		return "{}", nil
	}
	for k, v := range metadata {
		if !text.Storable(k) || !text.Storable(v) {
			return "", fmt.Errorf("its metadata %q is invalid UTF-8 or contains a NUL, and would be altered in storage",
				text.Valid(k))
		}
	}
	encoded, err := json.Marshal(map[string]string(metadata))
	if err != nil {
		return "", fmt.Errorf("encode its metadata: %w", err)
	}
	if len(encoded) > core.MaxMetadataBytes {
		return "", fmt.Errorf("its metadata has %d bytes, the limit is %d", len(encoded), core.MaxMetadataBytes)
	}
	return string(encoded), nil
}

func moment(field string, at time.Time) (string, error) {
	if at.IsZero() {
		return "", nil
	}
	if at = at.UTC(); at.Year() < 1 || at.Year() > 9999 {
		return "", fmt.Errorf("its %s is in the year %d, which RFC 3339 cannot represent", field, at.Year())
	}
	return at.Format(time.RFC3339Nano), nil
}

// compare orders IDs. All statements that wait for row locks take them in this order; otherwise two calls could
// deadlock.
func (id ID) compare(other ID) int {
	return cmp.Or(strings.Compare(id.Source, other.Source), strings.Compare(id.MessageID, other.MessageID))
}

func (id ID) check() error {
	for _, part := range []struct{ name, value string }{{"source", id.Source}, {"message id", id.MessageID}} {
		switch n := utf8.RuneCountInString(part.value); {
		case n == 0:
			return fmt.Errorf("its %s is empty", part.name)
		case n > maxIDChars:
			return fmt.Errorf("its %s has %d characters, the limit is %d: hash it", part.name, n, maxIDChars)
		case !text.Storable(part.value):
			return fmt.Errorf("its %s is invalid UTF-8 or contains a NUL", part.name)
		}
	}
	return nil
}

// chunks splits records into batches small enough for one round trip.
func chunks(records []record) (list [][]record) {
	for len(records) > 0 {
		n, bytes := 0, 0
		for n < len(records) && n < chunkRows && (n == 0 || bytes+records[n].bytes <= chunkBytes) {
			bytes += records[n].bytes
			n++
		}
		list, records = append(list, records[:n]), records[n:]
	}
	return list
}

// enqueue stores records until each has a result. A message that was claimed while the statement waited for its row has
// none and is tried again. A message that is claimed on each try is Busy.
func (s *Store) enqueue(ctx context.Context, items []Item, records []record, stored []EnqueueResult) error {
	for try := 0; try < enqueueTries && len(records) > 0; try++ {
		unanswered, err := s.enqueueOnce(ctx, items, records, stored)
		if err != nil {
			return err
		}
		records = unanswered
	}
	if len(records) == 0 {
		return nil
	}
	ids := make(map[ID]bool, len(records))
	sources, messages := make([]string, len(records)), make([]string, len(records))
	for i, r := range records {
		sources[i], messages[i] = items[r.at[0]].Source, items[r.at[0]].MessageID
		for _, at := range r.at {
			stored[at] = EnqueueResult{ID: items[at].ID, Result: Busy}
		}
		ids[items[r.at[0]].ID] = true
	}
	err := s.collectOn(ctx, s.onKept, "store messages", func(rows drive.Rows) error {
		var id ID
		err := rows.Scan(&id.Source, &id.MessageID)
		delete(ids, id)
		return err
	}, sqltext.KnownMessages, sources, messages)
	if err == nil && len(ids) > 0 {
		err = fmt.Errorf("store messages: %w", outbox.ErrNotStored)
	}
	return err
}

// enqueueOnce returns the records that got no result.
func (s *Store) enqueueOnce(
	ctx context.Context, items []Item, records []record, stored []EnqueueResult,
) (unanswered []record, err error) {
	n := len(records)
	sources, ids, topics, keys := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	payloads, hashes := make([][]byte, n), make([][]byte, n)
	metadata, dues, expires := make([]string, n), make([]string, n), make([]string, n)
	positions, delays := make([]int64, n), make([]float64, n)
	of := make(map[ID]record, n)
	for i, r := range records {
		item := items[r.at[len(r.at)-1]]
		sources[i], ids[i], topics[i], keys[i] = item.Source, item.MessageID, item.Topic, item.Key
		payloads[i], hashes[i] = item.Payload, orEmpty(r.hash)
		metadata[i], dues[i], expires[i] = r.metadata, r.dueAt, r.expires
		positions[i], delays[i] = int64(r.at[0]), item.delay.Seconds()
		of[item.ID] = r
	}
	err = s.collectOn(ctx, s.onKept, "store messages", func(rows drive.Rows) error {
		var id ID
		var result StoreResult
		var known []byte
		if err := rows.Scan(&id.Source, &id.MessageID, &result, &known); err != nil {
			return err
		}
		r := of[id]
		delete(of, id)
		for i, at := range r.at {
			stored[at] = EnqueueResult{
				ID: id, Result: result, Mismatch: len(known) > 0 && len(r.hash) > 0 && !bytes.Equal(known, r.hash),
			}
			if i > 0 && result == New {
				stored[at].Result = Updated
			}
		}
		return nil
	}, sqltext.EnqueueMessages, sources, ids, topics, keys, payloads, metadata, hashes, dues, expires, positions,
		delays)
	if err != nil || len(of) == 0 {
		return nil, err
	}
	for _, r := range records { // in the order of records
		if _, missing := of[items[r.at[0]].ID]; missing {
			unanswered = append(unanswered, r)
		}
	}
	return unanswered, nil
}

func orEmpty(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func (s *Store) tell(items []Item, stored []EnqueueResult) {
	for i, st := range stored {
		fields := watermill.LogFields{
			"topic": items[i].Topic, "source": st.ID.Source, "message_id": st.ID.MessageID, "result": st.Result.String(),
		}
		s.logger.Debug("stored message", fields)
		if st.Mismatch {
			s.mismatch(st.ID)
		}
	}
}

// topicsOf returns the distinct topics of items, or nil if there are too many for a notification.
func topicsOf(items []Item) (topics []string) {
	for _, item := range items {
		if !slices.Contains(topics, item.Topic) {
			if topics = append(topics, item.Topic); len(topics) > maxNotifiedTopics {
				return nil
			}
		}
	}
	return topics
}

// maxNotifiedTopics is how many topics a notification can name.
const maxNotifiedTopics = 32
