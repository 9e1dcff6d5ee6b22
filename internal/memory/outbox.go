package memory

import (
	"bytes"
	"cmp"
	"slices"
	"time"
)

// Outboxed is a row of the outbox.
type Outboxed struct {
	ID               int64
	UUID, Topic, Key string
	Payload          []byte
	Metadata         string // JSON
	createdAt        time.Time
	dueAt            time.Time
	published        bool
}

// at is when the message takes its place among the others.
func (o *Outboxed) at() time.Time {
	if o.dueAt.IsZero() {
		return o.createdAt
	}
	return o.dueAt
}

// insertMessages is sqltext.InsertMessages.
func insertMessages(c *call) (result, error) {
	uuids, topics, keys := arg[[]string](c, 1), arg[[]string](c, 2), arg[[]string](c, 3)
	payloads, metadata := arg[[][]byte](c, 4), arg[[]string](c, 5)
	dues, delays := arg[[]string](c, 6), arg[[]float64](c, 7)
	c.tx.number()
	for i, uuid := range uuids {
		c.db.outboxID++
		o := &Outboxed{
			ID: c.db.outboxID, UUID: uuid, Topic: topics[i], Key: keys[i], Payload: bytes.Clone(payloads[i]),
			Metadata:  metadata[i],
			createdAt: c.db.now(),
		}
		if dues != nil {
			due, err := moment(dues[i])
			if err != nil {
				return result{}, err
			}
			switch {
			case delays[i] > 0:
				o.dueAt = after(c.db.now(), delays[i])
			case due.After(c.db.now()):
				o.dueAt = due
			}
		}
		if _, err := c.db.outbox.lock(c, o.ID); err != nil {
			return result{}, err
		}
		c.db.outbox.put(c.tx, o.ID, o)
	}
	return result{touched: int64(len(uuids))}, nil
}

// lastMessage is sqltext.LastMessage.
func lastMessage(c *call) (result, error) {
	last := int64(0)
	for id := range c.db.outbox.all(c.tx) {
		last = max(last, id)
	}
	return result{rows: [][]any{{last}}}, nil
}

// messagesPast is sqltext.MessagesPast.
func messagesPast(c *call) (result, error) {
	var res result
	for _, o := range c.db.messages(c.tx, func(o *Outboxed) bool { return o.ID > c.number(1) }) {
		res.rows = append(res.rows, []any{o.UUID, o.Topic, o.Key, o.Payload, o.Metadata})
	}
	return res, nil
}

// messages are those that a transaction sees, in the order of their ids.
func (d *Database) messages(t *Tx, which func(*Outboxed) bool) []Outboxed {
	var list []Outboxed
	for _, o := range d.outbox.all(t) {
		if which(o) {
			list = append(list, *o)
		}
	}
	slices.SortFunc(list, func(a, b Outboxed) int { return cmp.Compare(a.ID, b.ID) })
	return list
}

// Written is what the transaction has written and not undone.
func (t *Tx) Written() []Outboxed {
	t.db.mu.Lock()
	defer t.db.mu.Unlock()
	return t.db.messages(t, func(o *Outboxed) bool { return t.db.outbox[o.ID].holder == t })
}

// Drain marks all messages published that were committed and are due, and returns them in the order in which they take
// their places.
func (d *Database) Drain() []Outboxed {
	d.mu.Lock()
	defer d.mu.Unlock()
	t, now := &Tx{db: d}, d.now()
	list := d.messages(t, func(o *Outboxed) bool { return !o.published && !o.dueAt.After(now) })
	for _, o := range list {
		if _, free := d.outbox.tryLock(t, o.ID); free { // only Drain changes a row
			published := o
			published.published = true
			d.outbox.put(t, o.ID, &published)
		}
	}
	d.commits++
	t.end(func(r held) { r.commit(t, d.commits) })
	slices.SortStableFunc(list, func(a, b Outboxed) int { return a.at().Compare(b.at()) })
	return list
}
