package memory

import (
	"slices"
	"strconv"
	"time"
)

// taking is what the claims have in common.
type taking struct {
	owner  string
	until  time.Time
	limit  int
	topics []string // nil = all
}

func (c *call) taking() taking {
	return taking{owner: arg[string](c, 1), until: after(c.db.now(), arg[float64](c, 2)), limit: int(c.number(3))}
}

// claimable says whether the message is one to be claimed, by topic, owner and time.
func (c *call) claimable(t taking, q *Queued) bool {
	return q.State == processing && q.Owner == "" && (q.ExpiresAt.IsZero() || q.ExpiresAt.After(c.at)) &&
		(t.topics == nil || slices.Contains(t.topics, q.Topic))
}

func (c *call) take(t taking, which func(*Queued) bool, order func(a, b *Queued) int) (taken [][]any) {
	for _, q := range c.find(which, order) {
		if len(taken) == t.limit {
			break
		}
		if q := c.changeUnlocked(q.key(), which, func(q *Queued) { q.Owner, q.LockedUntil = t.owner, t.until }); q != nil {
			taken = append(taken, q.columns())
		}
	}
	return taken
}

// header is the first row of a claim. Payloads have room always: they are in memory anyhow. An operation is done under
// one lock, so its snapshot has ended whatever has no number among those that change something, and the next number is
// the next.
func (c *call) header(id int64) []any {
	next := c.db.txNumber + 1
	lowest := next
	for nr, t := range c.db.changing {
		if t != c.tx {
			lowest = min(lowest, nr)
		}
	}
	return []any{
		id, strconv.FormatInt(lowest, 10), strconv.FormatInt(next, 10), "", "", "", []byte{}, "{}", nil, c.at, c.at,
		nil, nil, 0, "",
	}
}

// claimReady is sqltext.ClaimReady.
func claimReady(c *call) (result, error) {
	t, mark := c.taking(), c.number(4)
	t.topics = arg[[]string](c, 5)
	head := c.header(c.db.queueID)
	taken := c.take(t, func(q *Queued) bool { return q.ID > mark && q.DueAt.IsZero() && c.claimable(t, q) }, byID)
	return result{rows: append([][]any{head}, taken...)}, nil
}

// expired says whether the message is free and its time is over.
func (c *call) expired(q *Queued) bool {
	return q.State == processing && q.Owner == "" && !q.ExpiresAt.IsZero() && !q.ExpiresAt.After(c.at)
}

func byExpiry(a, b *Queued) int { return a.ExpiresAt.Compare(b.ExpiresAt) }

// claimExpired is sqltext.ClaimExpired.
func claimExpired(c *call) (result, error) {
	due := func(q *Queued) bool { return c.expired(q) && !q.DueAt.After(c.at) }
	rows := c.take(c.taking(), due, byExpiry)
	for i := range rows {
		rows[i] = append(rows[i], false)
	}
	return result{rows: rows}, nil
}

// releaseStrays is sqltext.ReleaseStrays.
func releaseStrays(c *call) (res result, err error) {
	known := c.ids()
	stray := func(q *Queued) bool { return c.ours(q) && !slices.Contains(known, q.key()) }
	for _, q := range c.find(stray, byID) {
		if c.changeUnlocked(q.key(), stray, func(q *Queued) { q.DueAt = c.db.now(); q.free() }) != nil {
			res.touched++
		}
	}
	return res, nil
}

// renewLeases is sqltext.RenewLeases.
func renewLeases(c *call) (res result, err error) {
	until := after(c.db.now(), arg[float64](c, 4))
	for _, key := range c.ids() {
		if q := c.changeUnlocked(key, c.ours, func(q *Queued) { q.LockedUntil = until }); q != nil {
			res.rows = append(res.rows, []any{q.Source, q.MessageID, true})
		}
	}
	return res, nil
}
