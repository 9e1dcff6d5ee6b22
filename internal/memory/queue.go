package memory

import (
	"cmp"
	"slices"
	"time"
)

type queueKey struct{ source, messageID string }

// Queued is a row of the queue of package queue. A zero time is NULL.
type Queued struct {
	ID                                        int64
	Source, MessageID, Topic, Key, State      string
	Payload                                   []byte
	Metadata                                  string // JSON
	Hash                                      []byte
	FirstSeenAt, LastSeenAt, DueAt, ExpiresAt time.Time
	Attempts, Crashes                         int
	LastError                                 string
	DoneAt                                    time.Time
	Owner                                     string
	LockedUntil                               time.Time
}

// The states of a message.
const (
	seen       = "seen"
	processing = "processing"
	done       = "done"
	dead       = "dead"
)

// infinity is the due time of a message that must not be claimed.
var infinity = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

func (q *Queued) key() queueKey { return queueKey{q.Source, q.MessageID} }

// columns are those of a message, as sqltext has them.
func (q *Queued) columns() []any {
	var hash any
	if q.Hash != nil {
		hash = q.Hash
	}
	due := q.DueAt
	if due.Equal(infinity) {
		due = time.Time{}
	}
	return []any{
		q.ID, q.Source, q.MessageID, q.Topic, q.Key, q.State, q.Payload, q.Metadata, hash,
		q.FirstSeenAt, q.LastSeenAt, orNull(due), orNull(q.ExpiresAt), q.Attempts, q.LastError,
	}
}

// free gives the message up.
func (q *Queued) free() { q.Owner, q.LockedUntil = "", time.Time{} }

// Queued returns a row of the queue as it was committed: what tests see by SQL of a real database.
func (d *Database) Queued(source, messageID string) (Queued, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.queue[queueKey{source, messageID}]; r != nil && r.now != nil {
		return *r.now, true
	}
	return Queued{}, false
}

// SetQueued writes such a row behind the back of all transactions.
func (d *Database) SetQueued(q Queued) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue[q.key()].now = &q
}

// change locks a row, waiting for it, and puts what fn makes of it, if which says yes before and after the wait.
func (c *call) change(key queueKey, which func(*Queued) bool, fn func(*Queued)) (changed *Queued, err error) {
	if q := c.db.queue.get(c.tx, key); q == nil || !which(q) {
		return nil, nil
	}
	q, err := c.db.queue.lock(c, key)
	if err != nil || q == nil || !which(q) {
		return nil, err
	}
	return c.put(*q, fn), nil
}

// changeUnlocked is change that passes by what another transaction holds.
func (c *call) changeUnlocked(key queueKey, which func(*Queued) bool, fn func(*Queued)) *Queued {
	if q := c.db.queue.get(c.tx, key); q == nil || !which(q) {
		return nil
	}
	q, free := c.db.queue.tryLock(c.tx, key)
	if !free || q == nil || !which(q) {
		return nil
	}
	return c.put(*q, fn)
}

func (c *call) put(q Queued, fn func(*Queued)) *Queued {
	fn(&q)
	c.db.queue.put(c.tx, q.key(), &q)
	return &q
}

// find are the messages that the transaction sees and a condition holds for, in an order.
func (c *call) find(which func(*Queued) bool, order func(a, b *Queued) int) []*Queued {
	var list []*Queued
	for _, q := range c.db.queue.all(c.tx) {
		if which(q) {
			list = append(list, q)
		}
	}
	slices.SortFunc(list, func(a, b *Queued) int { return cmp.Or(order(a, b), cmp.Compare(a.ID, b.ID)) })
	return list
}

func byID(a, b *Queued) int  { return cmp.Compare(a.ID, b.ID) }
func byDue(a, b *Queued) int { return a.DueAt.Compare(b.DueAt) }

// getMessage is sqltext.GetMessage.
func getMessage(c *call) (result, error) {
	q := c.db.queue.get(c.tx, queueKey{arg[string](c, 1), arg[string](c, 2)})
	if q == nil {
		return result{}, nil
	}
	return result{rows: [][]any{q.columns()}}, nil
}

// mark is what the three Mark statements have in common: a row with the state comes back if there is such a message.
func (c *call) mark(which func(*Queued) bool, fn func(*Queued)) (result, error) {
	key := queueKey{arg[string](c, 1), arg[string](c, 2)}
	q, err := c.change(key, which, fn)
	if q == nil {
		q = c.db.queue.get(c.tx, key)
	}
	if err != nil || q == nil {
		return result{}, err
	}
	return result{rows: [][]any{{q.State}}}, nil
}

// markProcessing is sqltext.MarkProcessing.
func markProcessing(c *call) (result, error) {
	return c.mark(func(q *Queued) bool { return q.State == seen || q.State == dead }, func(q *Queued) {
		q.State, q.Attempts, q.Crashes = processing, 0, 0
		q.free()
		q.ExpiresAt = time.Time{}
		if q.DueAt = c.db.now(); q.Topic == "" {
			q.DueAt = infinity
		}
	})
}

func notDone(q *Queued) bool { return q.State != done }

// markProcessed is sqltext.MarkProcessed.
func markProcessed(c *call) (result, error) {
	return c.mark(notDone, func(q *Queued) { c.finish(q, arg[bool](c, 3)) })
}

// markDead is sqltext.MarkDead.
func markDead(c *call) (result, error) {
	return c.mark(notDone, func(q *Queued) {
		q.State, q.LastError = dead, arg[string](c, 3)
		q.free()
		c.tx.givesBack = true
	})
}

// finish makes a message done.
func (c *call) finish(q *Queued, keepPayload bool) {
	q.State, q.DoneAt = done, c.db.now()
	q.free()
	if !keepPayload {
		q.Payload, q.Metadata = []byte{}, "{}"
	}
}

// cleanQueue is sqltext.CleanQueue.
func cleanQueue(c *call) (res result, err error) {
	before := after(c.at, -arg[float64](c, 1))
	old := func(q *Queued) bool {
		return q.State == done && q.DoneAt.Before(before) || q.State == seen && q.LastSeenAt.Before(before)
	}
	for _, q := range c.find(old, func(a, b *Queued) int { return a.DoneAt.Compare(b.DoneAt) }) {
		if res.touched == c.number(2) {
			break
		}
		if q, free := c.db.queue.tryLock(c.tx, q.key()); free && q != nil && old(q) {
			c.db.queue.put(c.tx, q.key(), nil)
			res.touched++
		}
	}
	return res, nil
}
