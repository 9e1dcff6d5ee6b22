package middleware

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// claim is the inbox row of the message being handled. ErrorHandler uses it after the transaction.
type claim struct {
	consumer, key string
	failures      int           // recorded before this attempt
	failing       time.Duration // since the first failure
	token         int64         // distinguishes this claim from others
	hash          []byte        // core.PayloadHash; nil without CheckContent
}

// identify returns the consumer and key under which the message is recorded.
func (i *inbox) identify(ctx context.Context, msg *message.Message) (*claim, error) {
	name := i.cfg.Consumer
	if name == "" {
		name = message.HandlerNameFromCtx(ctx)
	}
	consumer, err := consumerOf(i.cfg.Service, name)
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	key, err := i.cfg.Key(msg)
	if err != nil {
		return nil, fmt.Errorf("inbox: key: %w", err)
	}
	if key == "" || len(key) > maxInboxKeyBytes || !text.Storable(key) {
		return nil, outbox.Poison(
			fmt.Errorf("inbox: the message has no usable key: it has %d bytes, must have 1 to %d, and be UTF-8 without NUL",
				len(key), maxInboxKeyBytes))
	}
	c := &claim{consumer: consumer, key: key}
	if i.cfg.CheckContent {
		c.hash = core.PayloadHash(msg.Payload)
	}
	return c, nil
}

// take records the message, unless it was already handled. Then standby reports whether COMMIT may wait for a standby.
//
// Duplicates come in thousands after a crash or a rebalance. So after a duplicate the next message is looked up before
// its transaction begins: another duplicate then needs nothing else of the database, and a new message costs one extra
// round trip.
func (i *inbox) take(ctx context.Context, q drive.Querier, c *claim) (ours, standby bool, err error) {
	_, repeated := i.repeated.Load(c.consumer)
	if repeated {
		if handled, err := i.handled(ctx, q, c); handled || err != nil {
			return false, false, err
		}
	}
	err = drive.Collect(ctx, q, func(rows drive.Rows) error {
		var seconds float64
		err := rows.Scan(&ours, &c.failures, &seconds, &c.token, &standby)
		c.failing = time.Duration(seconds * float64(time.Second))
		return err
	}, i.claimSQL, c.consumer, c.key, c.hash)
	switch {
	case err != nil:
		return false, false, text.Stored(err)
	case !ours && c.failures < 0:
		known := false
		if err := drive.Collect(ctx, q, func(rows drive.Rows) error { return rows.Scan(&known) }, i.knownSQL, c.consumer,
			c.key); err != nil || !known {
			return false, false, cmp.Or(err, outbox.ErrNotStored)
		}
		c.failures = 0
	case !ours && !repeated:
		i.repeated.Store(c.consumer, nil)
	case ours && repeated:
		i.repeated.Delete(c.consumer)
	}
	return ours, standby, err
}

// handled reports whether the message was already handled, if that can be found out without a transaction.
func (i *inbox) handled(ctx context.Context, q drive.Querier, c *claim) (handled bool, err error) {
	peeker, ok := q.(drive.LazyTx)
	if !ok {
		return false, nil
	}
	rows, ok, err := peeker.QueryBeforeBegin(ctx, i.handledSQL, c.consumer, c.key)
	if err != nil || !ok {
		return false, err
	}
	handled = rows.Next()
	return handled, rows.Close()
}
