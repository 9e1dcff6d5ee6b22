package inbox

import (
	"cmp"
	"context"
	"math"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

const (
	reapBatch = 250
	// reapPage is how many rows a statement looks at, with an owner or without.
	reapPage = 10_000
)

// reapPlace is how far reaping has come, in what was never claimed and in what has a due time.
type reapPlace struct {
	id    int64
	dueAt string
	dueID string
}

var (
	reapFirst = reapPlace{math.MinInt64, "-infinity", "0"}
	reapLast  = reapPlace{math.MaxInt64, "infinity", "0"}
)

// reaping is how reap goes about it. The zero value walks through all messages, and leaves alive what has used up its attempts
// and what expired.
type reaping struct {
	kill  bool
	died  func(*Message, error) // is told of each message that was killed; may be nil
	from  reapPlace             // zero = the first
	share time.Duration         // after which it stops, to go on another time; 0 = none
}

// ReapExpired gives back the messages whose lease is over, with the charge and the wait of Abandon, and marks dead those whose ExpiresAt has
// passed and that nobody has. It returns how many messages these were, also with an error. It looks at all messages that are not done.
func (s *Store) ReapExpired(ctx context.Context) (int, error) {
	_, n, err := s.reap(ctx, reaping{kill: true})
	return n, err
}

// reap returns where to go on another time; the zero place if it has come to the end.
func (s *Store) reap(ctx context.Context, r reaping) (place reapPlace, total int, err error) {
	defer func() {
		if total > 0 {
			s.logger.Info("Reaped messages whose lease or time was over", watermill.LogFields{"messages": total})
		}
	}()
	var maxAttempts any
	if r.kill {
		maxAttempts = s.maxAttempts()
	}
	began := time.Now()
	for place = cmp.Or(r.from, reapFirst); place != reapLast; {
		n, next, err := s.reapBatch(ctx, r.died, "reap leases", errSpent, sqltext.ReapLeases,
			reapBatch, s.delays(), maxAttempts, place.id, place.dueAt, place.dueID, reapPage)
		if total += n; err != nil {
			return place, total, err
		}
		if n < reapBatch { // else the page may have more
			place = next
		}
		if r.share > 0 && time.Since(began) >= r.share {
			break
		}
	}
	if place == reapLast {
		place = reapPlace{}
	}
	for n := reapBatch; n >= reapBatch && r.kill; total += n {
		if n, _, err = s.reapBatch(ctx, r.died, "expire messages", errExpired, sqltext.ExpireMessages, reapBatch); err != nil {
			return place, total, err
		}
	}
	return place, total, nil
}

// reapBatch runs one statement, and returns how many messages it changed and what its header says, if it has one.
func (s *Store) reapBatch(ctx context.Context, died func(*Message, error), what string, cause error, statement string, args ...any) (n int, header reapPlace, err error) {
	var dead []*Message
	err = s.collect(ctx, what, func(rows drive.Rows) error {
		r, err := s.scan(rows)
		switch {
		case err != nil:
			return err
		case r.State == "":
			header = reapPlace{r.id, r.Source, r.MessageID}
			return nil
		case r.State == Dead:
			dead = append(dead, &r.Message)
		}
		n++
		return nil
	}, statement, args...)
	if err != nil {
		return 0, header, err
	}
	for _, msg := range dead {
		if died != nil {
			died(msg, cause)
		}
	}
	return n, header, nil
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
