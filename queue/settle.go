package queue

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
	"github.com/millrace-go/watermill-outbox/internal/text"
)

// Ack marks messages done and returns how many of them belonged to the owner. Messages of another owner, and unknown or
// settled messages, are ignored and not counted. An empty call is not an error. It returns ErrInvalid for a zero Owner
// or an invalid ID. If a constraint or trigger on the table refuses some messages, the others are settled and counted,
// and the error names a refused one.
func (s *Store) Ack(ctx context.Context, owner Owner, ids ...ID) (int, error) {
	return s.settle(ctx, "Ack", sqltext.AckMessages, owner, ids, nil, s.cfg.KeepPayload)
}

// Abandon counts a failed attempt of each message; they are retried after delay, or after StoreConfig.Backoff if it is
// 0, and are dead after StoreConfig.MaxAttempts. The reason is stored, at most 1 KiB; if it is "", the reason of the
// previous attempt stays. Otherwise it is like Ack.
func (s *Store) Abandon(
	ctx context.Context, owner Owner, reason string, delay time.Duration, ids ...ID,
) (int, error) {
	if delay < 0 {
		return 0, fmt.Errorf("%w: the delay of Abandon is %s: use 0 for StoreConfig.Backoff", ErrInvalid, delay)
	}
	return s.abandon(ctx, owner, reason, delay, nil, ids...)
}

// abandon only changes messages with this number of failed attempts; nil = any number.
func (s *Store) abandon(
	ctx context.Context, owner Owner, why string, delay time.Duration, attempts any, ids ...ID,
) (int, error) {
	delays := s.delays()
	if delay > 0 {
		delays = []float64{delay.Seconds()}
	}
	return s.settle(ctx, "Abandon", sqltext.AbandonMessages, owner, ids, attempts, reason(why), delays,
		s.maxAttempts(), attempts)
}

// Fail counts a last failed attempt of each message and marks them dead. The reason is stored, at most 1 KiB. Otherwise
// it is like Ack.
func (s *Store) Fail(ctx context.Context, owner Owner, reason string, ids ...ID) (int, error) {
	return s.fail(ctx, owner, reason, true, ids...)
}

// fail marks messages dead and counts the attempt only if counted is set.
func (s *Store) fail(ctx context.Context, owner Owner, why string, counted bool, ids ...ID) (int, error) {
	attempts := 0
	if counted {
		attempts = 1
	}
	return s.settle(ctx, "Fail", sqltext.FailMessages, owner, ids, nil, reason(why), attempts)
}

// hold locks a message until the transaction of ctx ends. It returns whether the message still belongs to the owner,
// and how many of its owners died or let the lease expire.
func (s *Store) hold(ctx context.Context, owner Owner, id ID) (ours bool, crashes int, err error) {
	err = s.collect(ctx, "hold message", func(rows drive.Rows) error {
		ours = true
		return rows.Scan(&crashes)
	}, sqltext.HoldMessages, owner.String(), []string{id.Source}, []string{id.MessageID})
	return ours, crashes, err
}

// Release gives messages back without counting an attempt; any owner can claim them immediately. Otherwise it is like
// Ack.
func (s *Store) Release(ctx context.Context, owner Owner, ids ...ID) (int, error) {
	return s.postpone(ctx, owner, 0, "", ids...)
}

// postpone releases a message until a wait is over, and records the reason.
func (s *Store) postpone(ctx context.Context, owner Owner, delay time.Duration, why string, ids ...ID) (int, error) {
	return s.settle(ctx, "Release", sqltext.ReleaseMessages, owner, ids, nil, reason(why), delay.Seconds())
}

// settle settles messages with this number of failed attempts; nil = any number.
func (s *Store) settle(
	ctx context.Context, what, statement string, owner Owner, ids []ID, attempts any, args ...any,
) (n int, err error) {
	if _, _, err := split(what, owner, ids); err != nil || len(ids) == 0 {
		return 0, err
	}
	err = s.eachOf(ctx, ids, func(ctx context.Context, ids ...ID) error {
		sources, messageIDs, _ := split(what, owner, ids)
		args := append([]any{owner.String(), sources, messageIDs}, args...)
		changed, err := orAgain(len(ids), func() (int, error) { return s.execOn(ctx, s.onKept, what, statement, args...) })
		if n += changed; err == nil && changed < len(ids) {
			err = s.ifHeld(ctx, what, owner, sources, messageIDs, attempts)
		}
		return err
	})
	if err == nil {
		s.logger.Debug(what, watermill.LogFields{"owner": owner.String(), "messages": len(ids), "changed": n})
	}
	return n, err
}

// ifHeld returns errUnchanged if messages still belong to their owner after a statement that settled too few.
func (s *Store) ifHeld(
	ctx context.Context, what string, owner Owner, sources, messageIDs []string, attempts any,
) error {
	held, err := s.stillHeld(ctx, what, owner, sources, messageIDs, attempts)
	if err == nil && len(held) > 0 {
		err = s.failed(what, errUnchanged)
	}
	return err
}

// stillHeld returns the messages among some that an owner still has.
func (s *Store) stillHeld(
	ctx context.Context, what string, owner Owner, sources, messageIDs []string, attempts any,
) (held []ID, err error) {
	err = s.collect(ctx, what, func(rows drive.Rows) error {
		var id ID
		err := rows.Scan(&id.Source, &id.MessageID)
		held = append(held, id)
		return err
	}, sqltext.StillHeld, owner.String(), sources, messageIDs, attempts)
	return held, err
}

// orAgain runs a statement that settles messages, and repeats it once if it changed too few of them: a row whose lease
// was renewed while the statement ran has moved, and may have been skipped.
func orAgain(messages int, statement func() (int, error)) (int, error) {
	n, err := statement()
	if err != nil || n >= messages {
		return n, err
	}
	moved, err := statement()
	return n + moved, err
}

// delays returns the wait after each number of failures, for the database to choose from.
func (s *Store) delays() []float64 {
	delays := make([]float64, 64)
	for i := range delays {
		delays[i] = s.backoff.Delay(i + 1).Seconds()
	}
	return delays
}

func (s *Store) maxAttempts() any {
	if s.cfg.MaxAttempts < 0 {
		return nil
	}
	return s.cfg.MaxAttempts
}

func reason(why string) string { return text.Cut(text.Redact(text.Valid(why)), text.MaxErrorBytes) }
