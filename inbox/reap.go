package inbox

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const reapBatch = 250

// ReapExpired gives back the messages whose lease is over, with the charge and the wait of Abandon, and marks dead those whose ExpiresAt has
// passed and that nobody has. It returns how many messages these were, also with an error.
func (s *Store) ReapExpired(ctx context.Context) (int, error) { return s.reap(ctx, true) }

// reap leaves alive, unless it is to kill, what has used up its attempts, and what expired.
func (s *Store) reap(ctx context.Context, kill bool) (total int, err error) {
	defer func() {
		if total > 0 {
			s.logger.Info("Reaped messages whose lease or time was over", watermill.LogFields{"messages": total})
		}
	}()
	var maxAttempts any
	if kill {
		maxAttempts = s.maxAttempts()
	}
	for n := reapBatch; n >= reapBatch; total += n {
		if n, err = s.exec(ctx, "reap leases", sqltext.ReapLeases, reapBatch, s.delays(), maxAttempts); err != nil {
			return total, err
		}
	}
	for n := reapBatch; n >= reapBatch && kill; total += n {
		if n, err = s.exec(ctx, "expire messages", sqltext.ExpireMessages, reapBatch); err != nil {
			return total, err
		}
	}
	return total, nil
}

// reapSometimes is for those who claim and have no Dispatcher.
func (s *Store) reapSometimes(ctx context.Context) error {
	began := time.Now()
	s.mu.Lock()
	wait := began.Before(s.reapAt)
	if !wait {
		s.reapAt = began.Add(reapInterval)
	}
	s.mu.Unlock()
	if wait {
		return nil
	}
	_, err := s.ReapExpired(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reapAt = time.Now().Add(max(reapInterval, reapShare*time.Since(began)))
	return err
}
