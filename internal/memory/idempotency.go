package memory

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"time"
)

type requestKey struct{ tenant, method, route, key string }

// requestRow is a row of package idempotency.
type requestRow struct {
	fingerprint  []byte
	expiresAt    time.Time
	status       any // int64; nil until it is answered
	header, body []byte
}

func requestKeyOf(c *call) requestKey {
	return requestKey{arg[string](c, 1), arg[string](c, 2), arg[string](c, 3), arg[string](c, 4)}
}

// claimKey is sqltext.ClaimKey.
func claimKey(c *call) (result, error) {
	wait, err := strconv.ParseInt(arg[string](c, 7), 10, 64)
	if err != nil {
		return result{}, err
	}
	ctx, cancel := context.WithTimeout(c.ctx, time.Duration(wait)*time.Millisecond)
	defer cancel()
	waits := *c
	waits.ctx = ctx
	key := requestKeyOf(c)
	was, err := c.db.requests.lock(&waits, key)
	switch {
	case errors.Is(err, context.DeadlineExceeded) && c.ctx.Err() == nil:
		return result{}, sqlError{"55P03", "the row is held by another transaction"}
	case err != nil:
		return result{}, err
	case was != nil && was.expiresAt.After(c.db.now()):
		return result{rows: [][]any{{false, false, ""}}}, nil
	}
	c.db.requests.put(c.tx, key, &requestRow{
		fingerprint: bytes.Clone(arg[[]byte](c, 5)), expiresAt: after(c.db.now(), arg[float64](c, 6)),
	})
	return result{touched: 1, rows: [][]any{{true, false, ""}}}, nil
}

// readAnswer is sqltext.ReadAnswer.
func readAnswer(c *call) (result, error) {
	r := c.db.requests.get(c.tx, requestKeyOf(c))
	if r == nil {
		return result{}, nil
	}
	return result{rows: [][]any{{r.fingerprint, r.status, r.header, r.body}}}, nil
}

// storeAnswer is sqltext.StoreAnswer.
func storeAnswer(c *call) (result, error) {
	key := requestKeyOf(c)
	was, err := c.db.requests.lock(c, key)
	if err != nil || was == nil {
		return result{}, err
	}
	r := *was
	r.status, r.header, r.body = c.number(5), bytes.Clone(arg[[]byte](c, 6)), bytes.Clone(arg[[]byte](c, 7))
	c.db.requests.put(c.tx, key, &r)
	return result{touched: 1}, nil
}
