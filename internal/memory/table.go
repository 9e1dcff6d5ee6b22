package memory

import (
	"context"
	"iter"
	"time"
)

// table is the rows of a table. A version, once put, is not changed any more.
type table[K comparable, V any] map[K]*row[K, V]

// row is guarded by Database.mu.
type row[K comparable, V any] struct {
	table  table[K, V]
	key    K
	now    *V            // as it was committed; nil: there is none
	at     int64         // which commit that was
	holder *Tx           // nil: free
	next   *V            // as the holder sees it; nil: it has deleted it, or not yet put it
	freed  chan struct{} // closed when the holder gives it up; nil: none waits
}

// get returns what the transaction sees of a row, nil if that is nothing.
func (tb table[K, V]) get(t *Tx, key K) *V {
	r := tb[key]
	switch {
	case r == nil:
		return nil
	case r.holder == t:
		return r.next
	}
	return r.now
}

// all are the rows that the transaction sees, in no order.
func (tb table[K, V]) all(t *Tx) iter.Seq2[K, *V] {
	return func(yield func(K, *V) bool) {
		for key := range tb {
			if v := tb.get(t, key); v != nil && !yield(key, v) {
				return
			}
		}
	}
}

// lock waits for a row, which need not exist, and returns it as it is by then.
func (tb table[K, V]) lock(c *call, key K) (*V, error) {
	for {
		if r, free := tb.take(c.tx, key); free {
			if c.tx.repeatable && r.at > c.tx.began {
				return nil, sqlError{"40001", "the row was changed by another transaction since this one began"}
			}
			return r.next, nil
		}
		r := tb[key]
		if r.freed == nil {
			r.freed = make(chan struct{})
		}
		if err := c.tx.wait(c.ctx, r.holder, r.freed); err != nil {
			return nil, err
		}
	}
}

// tryLock is lock that does not wait: of a row that another transaction holds it says false.
func (tb table[K, V]) tryLock(t *Tx, key K) (*V, bool) {
	r, free := tb.take(t, key)
	if !free {
		return nil, false
	}
	return r.next, true
}

func (tb table[K, V]) take(t *Tx, key K) (r *row[K, V], free bool) {
	r = tb[key]
	switch {
	case r == nil:
		r = &row[K, V]{table: tb, key: key}
		tb[key] = r
	case r.holder == t:
		return r, true
	case r.holder != nil:
		return r, false
	}
	r.holder, r.next = t, r.now
	t.holds(r)
	return r, true
}

// put writes a row that the transaction holds; nil deletes it.
func (tb table[K, V]) put(t *Tx, key K, v *V) {
	r := tb[key]
	before := r.next
	t.undo = append(t.undo, func() { r.next = before })
	t.number()
	r.next = v
}

// commit keeps what the transaction has made of the row, if it still holds it.
func (r *row[K, V]) commit(t *Tx, at int64) {
	if r.holder != t {
		return
	}
	if r.now != r.next {
		r.now, r.at = r.next, at
	}
	r.release()
}

// release gives the row up, as it was committed last.
func (r *row[K, V]) release() {
	r.holder, r.next = nil, nil
	if r.now == nil {
		delete(r.table, r.key)
	}
	if r.freed != nil {
		close(r.freed)
		r.freed = nil
	}
}

// held is a row of any table.
type held interface {
	commit(t *Tx, at int64)
	release()
}

// patience is how long a statement waits for a row. Postgres waits for ever; a test that does ends in the middle of
// nowhere.
const patience = time.Minute

// wait gives mu up until a row that another transaction holds is free.
func (t *Tx) wait(ctx context.Context, holder *Tx, freed <-chan struct{}) error {
	for h := holder; h != nil; h = h.waitsFor {
		if h == t {
			return sqlError{"40P01", "deadlock: two transactions wait for each other's rows"}
		}
	}
	t.waitsFor = holder
	t.db.mu.Unlock()
	defer func() {
		t.db.mu.Lock()
		t.waitsFor = nil
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-freed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-t.db.over:
		return errClosed
	case <-timer.C:
		return sqlError{"55P03", "the row is held by another transaction, for longer than " + patience.String() +
			": does the code that waits run inside of that one's InTx, with a context from outside of it?"}
	}
}
