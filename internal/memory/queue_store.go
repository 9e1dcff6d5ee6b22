package memory

import (
	"bytes"
	"cmp"
	"slices"
	"time"
)

// What Enqueue answers, as numbers of queue.StoreResult.
const (
	isNew = int64(iota)
	isUpdated
	isDone
	isBusy
)

// item is one to store.
type item struct {
	Queued
	pos   int64
	draws int64 // the id
}

func (c *call) items() ([]*item, error) {
	sources, ids, topics, keys := arg[[]string](c, 1), arg[[]string](c, 2), arg[[]string](c, 3), arg[[]string](c, 4)
	payloads, metadata, hashes := arg[[][]byte](c, 5), arg[[]string](c, 6), arg[[][]byte](c, 7)
	dues, expires, positions := arg[[]string](c, 8), arg[[]string](c, 9), arg[[]int64](c, 10)
	items := make([]*item, len(sources))
	for i := range items {
		it := &item{pos: positions[i], Queued: Queued{
			Source: sources[i], MessageID: ids[i], Topic: topics[i], Key: keys[i], State: processing,
			Payload: clone(payloads[i]), Metadata: metadata[i],
		}}
		if len(hashes[i]) > 0 {
			it.Hash = bytes.Clone(hashes[i])
		}
		var err error
		if it.DueAt, err = moment(dues[i]); err != nil {
			return nil, err
		}
		if it.ExpiresAt, err = moment(expires[i]); err != nil {
			return nil, err
		}
		if now := c.db.now(); !it.DueAt.After(now) {
			it.DueAt = time.Time{}
		}
		items[i] = it
	}
	return items, nil
}

// enqueueMessages is sqltext.EnqueueMessages. As there, what is known is decided first, for all items, and nothing waits for it;
// ids are drawn in the order of the call; and an insertion waits for another one of the same message.
func enqueueMessages(c *call) (res result, err error) {
	items, err := c.items()
	if err != nil {
		return result{}, err
	}
	answer := func(it *item, what int64, hash []byte) {
		var known any
		if hash != nil {
			known = hash
		}
		res.rows = append(res.rows, []any{it.Source, it.MessageID, what, known})
	}
	var inserts []*item
	for _, it := range items {
		known := c.db.queue.get(c.tx, it.key())
		if known == nil {
			inserts = append(inserts, it)
			continue
		}
		was := *known
		nobodys := func(q *Queued) bool { was = *q; return q.Owner == "" }
		switch updated := c.changeUnlocked(it.key(), nobodys, func(q *Queued) { c.update(q, it) }); {
		case was.State == done:
			answer(it, isDone, was.Hash)
		case updated != nil:
			answer(it, isUpdated, was.Hash)
		default:
			answer(it, isBusy, known.Hash)
		}
	}
	c.tx.number()
	slices.SortFunc(inserts, func(a, b *item) int { return cmp.Compare(a.pos, b.pos) })
	for _, it := range inserts {
		c.db.queueID++
		it.draws = c.db.queueID
	}
	slices.SortFunc(inserts, func(a, b *item) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.MessageID, b.MessageID))
	})
	for _, it := range inserts {
		was, err := c.db.queue.lock(c, it.key())
		switch {
		case err != nil:
			return result{}, err
		case was == nil:
			it.ID, it.FirstSeenAt = it.draws, c.db.now()
			it.LastSeenAt = it.FirstSeenAt
			c.db.queue.put(c.tx, it.key(), &it.Queued)
			answer(it, isNew, nil)
			continue
		case was.State == done:
			answer(it, isDone, was.Hash)
		case was.Owner == "":
			answer(it, isUpdated, was.Hash)
		default:
			answer(it, isBusy, was.Hash)
		}
		c.put(*was, func(q *Queued) { q.LastSeenAt = c.db.now() })
	}
	return res, nil
}

// update brings new content to a message that nobody has.
func (c *call) update(q *Queued, it *item) {
	q.LastSeenAt = c.db.now()
	if q.State == done {
		return
	}
	due := it.DueAt
	if due.IsZero() {
		due = c.db.now()
	}
	if q.Attempts > 0 && !q.DueAt.Equal(infinity) && q.DueAt.After(due) {
		due = q.DueAt // it waits after a failure
	}
	if q.State == seen {
		q.State = processing
	}
	q.Topic, q.Key, q.Payload, q.Metadata, q.Hash = it.Topic, it.Key, it.Payload, it.Metadata, it.Hash
	q.ExpiresAt, q.DueAt = it.ExpiresAt, due
}

// seeMessage is sqltext.SeeMessage.
func seeMessage(c *call) (result, error) {
	key, hash := queueKey{arg[string](c, 1), arg[string](c, 2)}, bytes.Clone(arg[[]byte](c, 3))
	mismatch := func(q *Queued) bool { return hash != nil && q.Hash != nil && !bytes.Equal(hash, q.Hash) }
	touch := func(q *Queued) {
		if q.LastSeenAt = c.db.now(); q.Hash == nil {
			q.Hash = hash
		}
	}
	answer := func(isDone, differs bool) (result, error) { return result{rows: [][]any{{isDone, differs}}}, nil }
	if known := c.db.queue.get(c.tx, key); known != nil {
		differs, isDone := mismatch(known), known.State == done
		if q := c.changeUnlocked(key, func(q *Queued) bool { return q.Owner == "" }, touch); q != nil {
			isDone = q.State == done
		}
		return answer(isDone, differs)
	}
	was, err := c.db.queue.lock(c, key)
	if err != nil {
		return result{}, err
	}
	if was != nil { // another transaction was faster
		differs := mismatch(was)
		return answer(c.put(*was, touch).State == done, differs)
	}
	c.tx.number()
	c.db.queueID++
	now := c.db.now()
	c.db.queue.put(c.tx, key, &Queued{
		ID: c.db.queueID, Source: key.source, MessageID: key.messageID, State: seen, Payload: []byte{}, Metadata: "{}", Hash: hash,
		FirstSeenAt: now, LastSeenAt: now,
	})
	return answer(false, false)
}
