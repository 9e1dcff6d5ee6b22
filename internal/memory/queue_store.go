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
			Payload: bytes.Clone(payloads[i]), Metadata: metadata[i],
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

// enqueueMessages is sqltext.EnqueueMessages. As there, what is not waited for is decided first, for all items; ids are
// drawn in the order of the call; and the rest is inserted or updated in the order of IDs, each when no other holds
// it any more.
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
	var waiting, again []*item
	for _, it := range items {
		switch known := c.db.queue.get(c.tx, it.key()); {
		case known != nil && known.State == done:
			again = append(again, it)
			answer(it, isDone, known.Hash)
		case known != nil && known.Owner != "" && !c.givenBack(it.key()):
			answer(it, isBusy, known.Hash)
		default:
			waiting = append(waiting, it)
		}
	}
	c.tx.number()
	slices.SortFunc(waiting, func(a, b *item) int { return cmp.Compare(a.pos, b.pos) })
	for _, it := range waiting {
		c.db.queueID++
		it.draws = c.db.queueID
	}
	slices.SortFunc(waiting, func(a, b *item) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.MessageID, b.MessageID))
	})
	for _, it := range waiting {
		was, err := c.db.queue.lock(c, it.key())
		switch {
		case err != nil:
			return result{}, err
		case was == nil:
			it.ID, it.FirstSeenAt = it.draws, c.db.now()
			it.LastSeenAt = it.FirstSeenAt
			c.db.queue.put(c.tx, it.key(), &it.Queued)
			answer(it, isNew, nil)
		case was.Owner != "": // somebody has taken it
		default:
			known, what := was.Hash, isUpdated
			if was.State == done {
				what = isDone
			}
			c.put(*was, func(q *Queued) { c.update(q, it) })
			answer(it, what, known)
		}
	}
	for _, it := range again {
		c.changeUnlocked(it.key(), func(q *Queued) bool { return q.State == done }, func(q *Queued) { c.update(q, it) })
	}
	return res, nil
}

// givenBack says whether a transaction holds the row that gives messages back, as sqltext has it.
func (c *call) givenBack(key queueKey) bool {
	r := c.db.queue[key]
	return r != nil && r.holder != nil && r.holder != c.tx && r.holder.givesBack
}

// update brings new content to a message without an owner.
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
		ID: c.db.queueID, Source: key.source, MessageID: key.messageID, State: seen, Payload: []byte{}, Metadata: "{}",
		Hash:        hash,
		FirstSeenAt: now, LastSeenAt: now,
	})
	return answer(false, false)
}
