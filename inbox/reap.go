package inbox

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const reapBatch = 250

// ReapExpired gives back the messages whose lease is over, with the charge and the wait of Abandon, and marks dead those whose ExpiresAt has
// passed and that nobody has. It returns how many messages these were, also with an error.
func (s *Store) ReapExpired(ctx context.Context) (int, error) { return s.reap(ctx, true, nil) }

// reap leaves alive, unless it is to kill, what has used up its attempts, and what expired. Died is told of what it has killed.
func (s *Store) reap(ctx context.Context, kill bool, died func(*Message, error)) (total int, err error) {
	defer func() {
		if total > 0 {
			s.logger.Info("Reaped messages whose lease or time was over", watermill.LogFields{"messages": total})
		}
	}()
	batch := func(what, statement string, cause error, args ...any) (int, error) {
		n := 0
		var dead []*Message
		err := s.collect(ctx, what, func(rows drive.Rows) error {
			r, err := s.scan(rows)
			if n++; r.State == Dead && died != nil {
				dead = append(dead, &r.Message)
			}
			return err
		}, statement, args...)
		if err != nil {
			return 0, err
		}
		for _, msg := range dead {
			died(msg, cause)
		}
		return n, nil
	}
	var maxAttempts any
	if kill {
		maxAttempts = s.maxAttempts()
	}
	for n := reapBatch; n >= reapBatch; total += n {
		if n, err = batch("reap leases", sqltext.ReapLeases, errSpent, reapBatch, s.delays(), maxAttempts); err != nil {
			return total, err
		}
	}
	for n := reapBatch; n >= reapBatch && kill; total += n {
		if n, err = batch("expire messages", sqltext.ExpireMessages, errExpired, reapBatch); err != nil {
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
