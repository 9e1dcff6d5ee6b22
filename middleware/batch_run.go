package middleware

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	outbox "github.com/millrace-go/watermill-outbox"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
	"github.com/millrace-go/watermill-outbox/observe"
)

// halving limits the search for the bad messages of a batch.
type halving struct {
	tries int // failed tries left
	begun time.Time
}

func (h *halving) continues(limit time.Duration) bool {
	return h.tries > 0 && (limit <= 0 || time.Since(h.begun) < limit)
}

// run handles a batch, splits it in halves when it fails, and reports the result of each message. After too many failed
// tries, or after TxConfig.Timeout, halving costs more than it saves: the remaining messages go alone.
func (b *batcher) run(batch []*batched, h *halving) {
	if len(batch) == 0 {
		return
	}
	report := func(of func(*batched) result) {
		for _, one := range batch {
			one.done <- of(one)
		}
	}
	if len(batch) > 1 && !h.continues(b.cfg.Tx.Timeout) {
		report(goesAlone)
		return
	}
	began := time.Now()
	err := b.attempts(batch)
	took := time.Since(began)
	if err != nil {
		h.tries--
	}
	switch half := len(batch) / 2; {
	case err == nil:
		end := observe.HandleEnd{Service: b.cfg.Service, Duration: took}
		for _, one := range batch {
			if one.state != unclaimed {
				end.Batch++
			}
		}
		report(func(one *batched) result { return b.conclude(one, began, &end) })
	case uncharged(err):
		report(func(*batched) result { return result{alone: true, cause: err} })
	case half > 0 && !ofAll(err):
		b.logger.Debug("batch failed: its halves are tried separately", watermill.LogFields{
			"messages": len(batch), "err": text.OfError(err),
		})
		b.run(batch[:half], h)
		b.run(batch[half:], h)
	default:
		report(goesAlone)
	}
}

func goesAlone(*batched) result { return result{alone: true} }

// ofAll reports whether an error is unlikely to be caused by single messages of a batch.
func ofAll(err error) bool {
	return errors.Is(err, core.ErrNotBegun) || errors.Is(err, outbox.ErrCommitUnknown) ||
		errors.Is(err, context.DeadlineExceeded) // each half could take as long
}

// conclude returns the result of a message whose batch succeeded. end is the observers' report; the first message gets
// the duration of the whole batch.
func (b *batcher) conclude(one *batched, began time.Time, end *observe.HandleEnd) result {
	outcome := observe.Processed
	switch one.state {
	case unclaimed:
		return goesAlone(one)
	case handled:
		outcome = observe.Duplicate
		b.logger.Debug("skipping a message that was handled before", fieldsOf(one.ctx, one.msg))
	case rolledBack:
		outcome = observe.RolledBack
	}
	b.errorHandler.forget(one.ctx, one.msg)
	if len(b.db.Observers()) > 0 {
		end.UUID, end.Outcome, end.Attempts = one.msg.UUID, outcome, max(one.h.attempts, 1)
		tellEnd(started(one.ctx, b.db, b.cfg.Service, one.msg, began), b.db, *end)
		end.Duration = 0
	}
	return result{}
}

func (b *batcher) attempts(batch []*batched) error {
	for n := 0; ; n++ {
		err := b.attempt(batch)
		if errors.Is(err, outbox.ErrTxEnded) {
			b.takeBack(batch)
		}
		if err == nil || n >= b.cfg.Tx.MaxRetries || !repeatable(err) {
			return err
		}
		core.Pause(context.Background(), core.Backoff(b.cfg.Tx.Backoff).Delay(n+1))
	}
}

func (b *batcher) attempt(batch []*batched) error {
	defer b.db.HandlerStarts(b.logger)()
	outside := context.WithoutCancel(core.OutsideTx(batch[0].ctx)) // without its deadline
	ctx, cancel := core.Lifetime(outside, b.cfg.Tx.Timeout)
	defer cancel()
	begun, mayRollBack := false, false
	err := core.InTx(ctx, b.db, core.TxOptions{Isolation: b.cfg.Tx.Isolation}, func(ctx context.Context) (err error) {
		begun = true
		if err := b.claim(ctx, batch); err != nil {
			return err
		}
		var msgs message.Messages
		for _, one := range batch {
			if one.state != ours {
				continue
			}
			msg := one.msg.Copy()
			msg.Payload = slices.Clone(msg.Payload)
			msg.SetContext(core.WithTxOf(one.ctx, ctx))
			msgs = append(msgs, msg)
		}
		if len(msgs) == 0 {
			return nil
		}
		defer func() {
			if p := recover(); p != nil {
				err = panicked(p)
			}
		}()
		if err := b.fn(ctx, msgs); err != nil {
			return text.SafeError(err)
		}
		if slices.ContainsFunc(msgs, nacked) {
			return outbox.ErrNacked
		}
		if ctx.Err() != nil {
			return fmt.Errorf("the handler of a batch exceeded TxConfig.Timeout: %w", ctx.Err())
		}
		mayRollBack = len(msgs) == 1 // one message must not roll back the others
		return nil
	})
	if mayRollBack && errors.Is(err, outbox.ErrRolledBack) { // the same as in middleware.Tx
		for _, one := range batch {
			if one.state == ours {
				one.state = rolledBack
			}
		}
		return nil
	}
	if err != nil && !begun {
		return fmt.Errorf("%w: %w", core.ErrNotBegun, err)
	}
	return err
}

// claim records the messages of a batch in the inbox, and sets the state of each.
func (b *batcher) claim(ctx context.Context, batch []*batched) error {
	q, err := b.db.Tx(ctx)
	if err != nil {
		return err
	}
	elsewhere, err := ackAll(ctx, batch)
	if err != nil {
		return fmt.Errorf("batch: %w", text.Explain(err))
	}
	of := make(map[string]*batched, len(batch))
	var keys []string
	var hashes [][]byte
	for _, one := range batch {
		if one.h.work != nil && !elsewhere {
			continue // acked, or lost to another owner
		}
		b.db.ReadsFrom(one.ctx)
		of[one.claim.key] = one
		keys = append(keys, one.claim.key)
		hashes = append(hashes, append([]byte{}, one.claim.hash...))
	}
	if len(keys) == 0 {
		return nil
	}
	err = drive.Collect(ctx, q, func(rows drive.Rows) error {
		var key string
		var mine bool
		var token int64
		if err := rows.Scan(&key, &mine, &token); err != nil {
			return err
		}
		one := of[key]
		switch {
		case mine:
			one.state, one.claim.token = ours, token
		case !b.cfg.Inbox.CheckContent: // otherwise it is handled alone, and its content is compared there
			one.state = handled
		}
		return nil
	}, b.db.Render(sqltext.ClaimInboxes), batch[0].claim.consumer, keys, hashes)
	if err != nil {
		return fmt.Errorf("batch: %w", text.Explain(err))
	}
	return nil
}

// ackAll marks the messages of queue.Subscriber done. A message whose lease was lost goes alone, and messages of a
// queue in another database are recorded in the inbox.
func ackAll(ctx context.Context, batch []*batched) (elsewhere bool, err error) {
	of := map[core.Work]*batched{}
	var all []core.Work
	for _, one := range batch {
		if one.state = unclaimed; one.h.work != nil {
			all, of[one.h.work] = append(all, one.h.work), one
		}
	}
	if len(all) == 0 {
		return false, nil
	}
	acked, err := all[0].AckAll(ctx, all[1:])
	if errors.Is(err, outbox.ErrOtherDB) {
		return true, nil
	}
	for _, w := range acked {
		of[w].state = ours
	}
	return false, err
}

// takeBack removes the inbox rows of a batch whose function ended the transaction and then failed.
func (b *batcher) takeBack(batch []*batched) {
	ctx, cancel := context.WithTimeout(context.Background(), bookkeepingTimeout)
	defer cancel()
	for _, one := range batch {
		var err error
		switch {
		case one.state != ours:
		case one.h.work != nil:
			err = one.h.work.Unack(ctx)
		default:
			_, err = b.db.Exec(ctx, b.db.Render(sqltext.UnclaimInbox), one.claim.consumer, one.claim.key, one.claim.token)
		}
		if err != nil {
			// Cause: the function of Batch committed, then failed.
			// Cure: leave COMMIT to the middleware; check the effects.
			b.logger.Error("batch ended its transaction: its rows in the inbox could not be "+
				"removed", err, fieldsOf(one.ctx, one.msg))
		}
	}
}
