package queue

import (
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

var reapFirst, reapEnd = reapPlace{math.MinInt64, "-infinity", "0"}, reapPlace{math.MaxInt64, "infinity", "0"}

// reaping is how reap goes about it. The zero value looks at all messages once, and leaves alive what has used up its
// attempts and what expired.
type reaping struct {
	kill  bool
	by    teller        // of what dies
	from  reapPlace     // where to go on behind the first page, which is looked at each time; zero = there
	share time.Duration // after which it stops, to go on another time; 0 = none
}

// ReapExpired gives back the messages whose lease is over, with the charge and the wait of Abandon, and marks dead
// those whose ExpiresAt has passed and that have no owner. It returns how many messages these were, also with an error.
// It looks at all messages that are not done.
func (s *Store) ReapExpired(ctx context.Context) (int, error) {
	_, n, err := s.reap(ctx, reaping{kill: true, by: teller{logger: s.logger}})
	return n, err
}

// reap returns where to go on another time.
func (s *Store) reap(ctx context.Context, r reaping) (goOn reapPlace, total int, err error) {
	defer func() {
		if total > 0 {
			s.logger.Info("reaped messages whose lease or ExpiresAt had passed", watermill.LogFields{"messages": total})
		}
	}()
	var maxAttempts any
	if r.kill {
		maxAttempts = s.maxAttempts()
	}
	began := time.Now()
	over := func() bool { return r.share > 0 && time.Since(began) >= r.share }
	goOn = r.from
	jump := r.from != reapPlace{} && r.from != reapFirst
	for at, done, freshEnded, dueEnded := reapFirst, false, false, false; !done; {
		n, next, err := s.reapBatch(ctx, r.by, "reap leases", errSpent, sqltext.ReapLeases,
			reapBatch, s.delays(), maxAttempts, at.id, at.dueAt, at.dueID, reapPage)
		if total += n; err != nil {
			return goOn, total, err
		}
		switch {
		case n == reapBatch: // the page may have more
		case jump:
			at, jump = r.from, false
		default: // each index comes round by itself
			at = next
			if at.id == reapEnd.id {
				at.id, freshEnded = reapFirst.id, true
			}
			if at.dueAt == reapEnd.dueAt {
				at.dueAt, at.dueID, dueEnded = reapFirst.dueAt, reapFirst.dueID, true
			}
			goOn, done = at, freshEnded && dueEnded || over()
		}
	}
	for n := reapBatch; n >= reapBatch && r.kill; {
		n, _, err = s.reapBatch(ctx, r.by, "expire messages", errExpired, sqltext.ExpireMessages, reapBatch)
		if total += n; err != nil || over() {
			break
		}
	}
	return goOn, total, err
}

// reapBatch runs one statement, and returns how many messages it changed and what its header says, if it has one.
func (s *Store) reapBatch(
	ctx context.Context, by teller, what string, cause error, statement string, args ...any,
) (n int, header reapPlace, err error) {
	var dead []*Message
	scanner := s.scanner()
	err = s.collect(ctx, what, func(rows drive.Rows) error {
		r, err := scanner.scan(rows)
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
		s.died(ctx, by, msg, cause)
	}
	return n, header, nil
}

// reapSometimes is for programs that claim without a Dispatcher.
func (s *Store) reapSometimes(ctx context.Context) error {
	began := time.Now()
	s.mu.Lock()
	from := s.reapFrom
	wait := began.Before(s.reapAt)
	if !wait {
		s.reapAt = began.Add(reapInterval)
	}
	s.mu.Unlock()
	if wait {
		return nil
	}
	goOn, _, err := s.reap(ctx, reaping{
		kill: true, by: teller{logger: s.logger}, from: from, share: reapInterval / reapShare,
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reapFrom = goOn
	s.reapAt = time.Now().Add(max(reapInterval, reapShare*time.Since(began)))
	return err
}
