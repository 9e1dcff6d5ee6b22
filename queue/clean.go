package queue

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/clean"
	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// cleanTimeout bounds the deletion of one batch.
const cleanTimeout = 30 * time.Second

// Clean deletes messages that have been done for longer than StoreConfig.Retention, and messages that only
// AlreadyProcessed recorded, longer ago than that. It returns how many it deleted, even with an error. It works in
// batches, each in its own transaction, and pauses between them. Before that, once an hour and always outside the
// transaction in ctx, it discards messages that have been dead for longer than StoreConfig.DeadRetention. A Dispatcher
// does the same.
func (s *Store) Clean(ctx context.Context) (int64, error) {
	failed := s.dead.Discard(ctx)
	total, _, err := s.deleteOld(ctx, 0)
	return total, errors.Join(err, failed)
}

// deleteOld deletes old messages without pauses for as long as share; 0 = all of them. more reports whether some may be
// left. Each statement has its own timeout, so that a dead connection does not block forever.
func (s *Store) deleteOld(ctx context.Context, share time.Duration) (total int64, more bool, err error) {
	if s.cfg.Retention < 0 {
		return 0, false, nil
	}
	begun := time.Now()
	for more = true; more && (share == 0 || time.Since(begun) < share); {
		began := time.Now()
		n, err := s.cleanBatch(ctx)
		if total += int64(n); err != nil {
			return total, true, err
		}
		if more = n == clean.Batch; more {
			if !core.Pause(ctx, time.Since(began)) {
				return total, true, ctx.Err()
			}
		}
	}
	if total > 0 {
		s.logger.Debug("deleted old messages", watermill.LogFields{"messages": total})
	}
	return total, more, nil
}

func (s *Store) cleanBatch(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	return s.exec(ctx, "delete old messages", sqltext.CleanQueue, s.cfg.Retention.Seconds(), clean.Batch, "")
}
