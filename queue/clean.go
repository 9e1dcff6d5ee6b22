package queue

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/clean"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// Clean deletes messages that were done longer ago than StoreConfig.Retention, and returns how many, also with an error.
// Nothing else is ever deleted. It works in batches, each a transaction of its own, and leaves half of the time to others. A Dispatcher does
// it now and then.
func (s *Store) Clean(ctx context.Context) (int64, error) {
	if s.cfg.Retention < 0 {
		return 0, nil
	}
	total := int64(0)
	for more := true; more; {
		began := time.Now()
		n, err := s.exec(ctx, "delete old messages", sqltext.CleanQueue, s.cfg.Retention.Seconds(), clean.Batch, "")
		if total += int64(n); err != nil {
			return total, err
		}
		if more = n == clean.Batch; more {
			select {
			case <-ctx.Done():
				return total, ctx.Err()
			case <-time.After(time.Since(began)):
			}
		}
	}
	if total > 0 {
		s.logger.Debug("Deleted old messages", watermill.LogFields{"messages": total})
	}
	return total, nil
}
