package memory

import (
	"bytes"
	"time"
)

type inboxKey struct{ consumer, messageID string }

// inboxRow is a row of the inbox of package middleware.
type inboxRow struct {
	receivedAt, processedAt, deadAt time.Time
	attempts                        int
	lastError                       string
	hash                            []byte
}

func (r inboxRow) open() bool { return r.processedAt.IsZero() && r.deadAt.IsZero() }

// openInbox locks the row that the first two arguments name, or a new one. It returns nil for one that is processed or
// dead.
func (c *call) openInbox() (key inboxKey, r *inboxRow, err error) {
	key = inboxKey{arg[string](c, 1), arg[string](c, 2)}
	was, err := c.db.inbox.lock(c, key)
	switch {
	case err != nil:
		return key, nil, err
	case was == nil:
		return key, &inboxRow{receivedAt: c.db.now()}, nil
	case !was.open():
		return key, nil, nil
	}
	r = new(inboxRow)
	*r = *was
	return key, r, nil
}

// claimInbox is sqltext.ClaimInbox.
func claimInbox(c *call) (result, error) {
	key, r, err := c.openInbox()
	switch {
	case err != nil:
		return result{}, err
	case r == nil:
		return result{rows: [][]any{{false, int64(0), float64(0), int64(0), false}}}, nil
	}
	r.processedAt = c.db.now()
	if hash := arg[[]byte](c, 3); hash != nil {
		r.hash = bytes.Clone(hash)
	}
	c.db.inbox.put(c.tx, key, r)
	return result{touched: 1, rows: [][]any{{
		true, int64(r.attempts), r.processedAt.Sub(r.receivedAt).Seconds(), r.processedAt.UnixMicro(), false,
	}}}, nil
}

// claimInboxes is sqltext.ClaimInboxes.
func claimInboxes(c *call) (r result, err error) {
	hashes := arg[[][]byte](c, 3)
	for i, id := range arg[[]string](c, 2) {
		key := inboxKey{arg[string](c, 1), id}
		was, err := c.db.inbox.lock(c, key)
		switch {
		case err != nil:
			return result{}, err
		case was != nil && !was.open():
			r.rows = append(r.rows, []any{id, false, int64(0)})
			continue
		case was != nil && was.attempts > 0:
			continue
		}
		row := &inboxRow{receivedAt: c.db.now()}
		if was != nil {
			*row = *was
		}
		row.processedAt = c.db.now()
		if len(hashes[i]) > 0 {
			row.hash = bytes.Clone(hashes[i])
		}
		c.db.inbox.put(c.tx, key, row)
		r.rows = append(r.rows, []any{id, true, row.processedAt.UnixMicro()})
	}
	return r, nil
}

// inboxHash is sqltext.InboxHash.
func inboxHash(c *call) (result, error) {
	r := c.db.inbox.get(c.tx, inboxKey{arg[string](c, 1), arg[string](c, 2)})
	switch {
	case r == nil:
		return result{}, nil
	case r.hash == nil:
		return result{rows: [][]any{{nil}}}, nil
	}
	return result{rows: [][]any{{r.hash}}}, nil
}

// inboxFailures is sqltext.InboxFailures.
func inboxFailures(c *call) (result, error) {
	r, err := c.db.inbox.lock(c, inboxKey{arg[string](c, 1), arg[string](c, 2)})
	if err != nil || r == nil {
		return result{}, err
	}
	attempts, handled, hash := int64(r.attempts), !r.open(), arg[[]byte](c, 3)
	if handled {
		attempts = 0
	}
	handled = handled && (r.hash == nil || hash == nil || bytes.Equal(r.hash, hash))
	return result{rows: [][]any{{attempts, c.db.now().Sub(r.receivedAt).Seconds(), handled}}}, nil
}

// failInbox is sqltext.FailInbox.
func failInbox(c *call) (result, error) {
	key, r, err := c.openInbox()
	if err != nil || r == nil {
		return result{}, err
	}
	r.attempts++
	r.lastError = arg[string](c, 3)
	c.db.inbox.put(c.tx, key, r)
	return result{touched: 1}, nil
}

// buryInbox is sqltext.BuryInbox. No operator revives a message here.
func buryInbox(c *call) (result, error) {
	key, r, err := c.openInbox()
	if err != nil || r == nil {
		return result{}, err
	}
	r.attempts++
	r.lastError, r.deadAt = arg[string](c, 3), c.db.now()
	c.db.inbox.put(c.tx, key, r)
	return result{touched: 1, rows: [][]any{{int64(0)}}}, nil
}
