package memory

import (
	"math"
	"slices"
)

// ids are the second and third argument of what settles: those that there are, each once, in the order of the rows.
func (c *call) ids() (keys []queueKey) {
	sources, messageIDs := arg[[]string](c, 2), arg[[]string](c, 3)
	var found []*Queued
	for i := range sources {
		if q := c.db.queue.get(c.tx, queueKey{sources[i], messageIDs[i]}); q != nil {
			found = append(found, q)
		}
	}
	slices.SortFunc(found, byID)
	for _, q := range found {
		keys = append(keys, q.key())
	}
	return slices.Compact(keys)
}

// ours says whether the message is held by the first argument.
func (c *call) ours(q *Queued) bool { return q.State == processing && q.Owner == arg[string](c, 1) }

// settle changes the messages of an owner. The rows that come back are the notes of what is done, for
// sqltext.AckMessage.
func (c *call) settle(fn func(q *Queued)) (result, error) {
	return c.settleThose(func(*Queued) bool { return true }, fn)
}

// settleThose is settle for those that a condition holds for.
func (c *call) settleThose(which func(*Queued) bool, fn func(q *Queued)) (res result, err error) {
	for _, key := range c.ids() {
		q, err := c.change(key, func(q *Queued) bool { return c.ours(q) && which(q) }, func(q *Queued) { fn(q); q.free() })
		if err != nil {
			return result{}, err
		}
		if q == nil {
			continue
		}
		res.touched++
		if q.State == done {
			res.rows = append(res.rows, []any{q.DoneAt.UnixMicro()})
		} else {
			c.tx.givesBack = true
		}
	}
	return res, nil
}

// ackMessages is sqltext.AckMessages, and AckMessage.
func ackMessages(c *call) (result, error) {
	return c.settle(func(q *Queued) { c.finish(q, arg[bool](c, 4)) })
}

// ackBatch is sqltext.AckBatch.
func ackBatch(c *call) (res result, err error) {
	for _, key := range c.ids() {
		q, err := c.change(key, c.ours, func(q *Queued) { c.finish(q, arg[bool](c, 4)); q.free() })
		if err != nil {
			return result{}, err
		}
		if q != nil {
			res.touched++
			res.rows = append(res.rows, []any{q.DoneAt.UnixMicro(), q.Source, q.MessageID})
		}
	}
	return res, nil
}

// charge is that of a failed attempt, with the waits and the most attempts of two arguments.
func (c *call) charge(q *Queued, delays, most int) {
	q.Attempts++
	waits := arg[[]float64](c, delays)
	q.DueAt = after(c.db.now(), waits[min(q.Attempts, len(waits))-1])
	if c.args[most-1] != nil && int64(q.Attempts) >= c.number(most) {
		q.State = dead
	}
}

// because keeps a reason that is not empty.
func (q *Queued) because(why string) {
	if why != "" {
		q.LastError = why
	}
}

// abandonMessages is sqltext.AbandonMessages.
func abandonMessages(c *call) (result, error) {
	return c.settleThose(func(q *Queued) bool { return c.args[6] == nil || int64(q.Attempts) == c.number(7) },
		func(q *Queued) {
			c.charge(q, 5, 6)
			q.because(arg[string](c, 4))
		})
}

// failMessages is sqltext.FailMessages.
func failMessages(c *call) (result, error) {
	return c.settle(func(q *Queued) {
		q.State, q.LastError = dead, arg[string](c, 4)
		q.Attempts += int(c.number(5))
	})
}

// holdMessages is sqltext.HoldMessages. No process outlives its death here to be told of it.
func holdMessages(c *call) (res result, err error) {
	for _, key := range c.ids() {
		q, err := c.change(key, c.ours, func(*Queued) {})
		if err != nil {
			return result{}, err
		}
		if q != nil {
			res.rows = append(res.rows, []any{int64(0)})
		}
	}
	return res, nil
}

// stillHeld is sqltext.StillHeld.
func stillHeld(c *call) (result, error) {
	held := false
	for _, key := range c.ids() {
		q := c.db.queue.get(c.tx, key)
		held = held || q != nil && c.ours(q) && (c.args[3] == nil || int64(q.Attempts) == c.number(4))
	}
	return result{rows: [][]any{{held}}}, nil
}

// releaseMessages is sqltext.ReleaseMessages.
func releaseMessages(c *call) (result, error) {
	return c.settle(func(q *Queued) {
		q.DueAt = after(c.db.now(), arg[float64](c, 5))
		q.because(arg[string](c, 4))
	})
}

// reapLeases is sqltext.ReapLeases, with one page that has all.
func reapLeases(c *call) (res result, err error) {
	res.rows = [][]any{
		{int64(math.MaxInt64), "infinity", "0", "", "", "", []byte{}, "{}", nil, c.at, c.at, nil, nil, 0, ""},
	}
	over := func(q *Queued) bool {
		return q.State == processing && q.Owner != "" && q.LockedUntil.Before(c.at) && !q.DueAt.After(c.at)
	}
	for _, q := range c.find(over, byDue) {
		if int64(len(res.rows)) > c.number(1) {
			break
		}
		if q := c.changeUnlocked(q.key(), over, func(q *Queued) {
			c.charge(q, 2, 3)
			q.Crashes, q.LastError = q.Crashes+1, "lease expired"
			q.free()
			c.tx.givesBack = true
		}); q != nil {
			res.rows = append(res.rows, q.columns())
		}
	}
	return res, nil
}

// expireMessages is sqltext.ExpireMessages.
func expireMessages(c *call) (res result, err error) {
	for _, q := range c.find(c.expired, byExpiry) {
		if int64(len(res.rows)) == c.number(1) {
			break
		}
		if q := c.changeUnlocked(q.key(), c.expired, func(q *Queued) { q.State, q.LastError = dead, "expired" }); q != nil {
			res.rows = append(res.rows, q.columns())
		}
	}
	return res, nil
}
