package forwarder

import (
	"context"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"
)

const (
	maxSettle  = 10000 // rows per statement
	lastSettle = 500   // rows per statement of the pass before giving up
	// lockedPause is how long a row is left alone at least that somebody has locked, or that cannot be settled.
	lockedPause = 100 * time.Millisecond
	// stayCareful is how long no statement waits for locks any more after one did so in vain.
	stayCareful = time.Minute
)

// settler writes results back, off the publishing path. It is of one goroutine.
//
// What fails is repeated: settling twice changes nothing. After an error that one row can cause, a time-out among them, a batch is halved, down
// to the row, which is put aside and tried again by itself, so that it stops no other.
type settler struct {
	e         *engine
	published []*row
	failed    []failure
	most      int       // rows of the next statement
	careful   time.Time // until then statements pass by rows that are locked
	retry     *backoff.ExponentialBackOff
	report    errorLog
	alone     errorLog // about rows that cannot be settled

	asidePublished []*row
	asideFailed    []failure
	asideUntil     time.Time
}

// settle is the goroutine of the settler.
func (e *engine) settle(ctx context.Context) {
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 50*time.Millisecond, 5*time.Second
	s := &settler{e: e, most: maxSettle, retry: retry,
		report: errorLog{logger: e.logger, what: "Settling messages"},
		alone:  errorLog{logger: e.logger, what: "Settling some of the messages, apart from the others,"}}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		s.take()
		wait := s.round(context.WithoutCancel(ctx))
		if wait == 0 {
			continue
		}
		timer.Reset(wait)
		now := e.settleNow
		if len(s.published)+len(s.failed) > 0 {
			now = nil // something is wrong: wait for all of the pause
		}
		select {
		case <-ctx.Done():
		case <-now:
		case <-timer.C:
		}
	}
	s.last(context.WithoutCancel(ctx))
}

func (s *settler) take() {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	published, failed := s.e.board.takeResults(maxSettle)
	s.published, s.failed = append(s.published, published...), append(s.failed, failed...)
}

// round runs a statement for each kind of result, and says how long to wait before the next round.
func (s *settler) round(ctx context.Context) time.Duration {
	begun := time.Now()
	if len(s.asidePublished)+len(s.asideFailed) > 0 && !begun.Before(s.asideUntil) {
		s.tryAside(ctx, maxSettle)
		// It may use a twentieth of the time.
		s.asideUntil = time.Now().Add(max(lockedPause, 20*time.Since(begun)))
	}
	if len(s.published)+len(s.failed) == 0 {
		if len(s.asidePublished)+len(s.asideFailed) == 0 {
			s.alone.report(nil)
			return time.Hour // results wake us
		}
		return max(time.Until(s.asideUntil), time.Millisecond)
	}
	err := s.step(ctx)
	s.report.report(err)
	if err == nil {
		s.most = min(2*s.most, maxSettle)
		s.retry.Reset()
		return 0
	}
	if ofRows(err) && !timedOut(err) {
		return 0
	}
	return s.retry.NextBackOff()
}

// step settles the first results of each kind.
func (s *settler) step(ctx context.Context) error {
	if n := min(s.most, len(s.published)); n > 0 {
		part := s.published[:n]
		locked, err := s.e.settlePublished(ctx, part, time.Now().Before(s.careful))
		switch {
		case err == nil:
			s.putAside(locked, nil)
			s.published = s.published[n:]
		case timedOut(err) && n > 1:
			s.careful, s.most = time.Now().Add(stayCareful), n/2
			return err
		case ofRows(err) && n > 1:
			s.most = n / 2
			return err
		case ofRows(err):
			s.careful = time.Now().Add(stayCareful)
			s.alone.report(err)
			s.putAside(part, nil)
			s.published = s.published[n:]
		default:
			return err
		}
	}
	if n := min(s.most, len(s.failed)); n > 0 {
		part := s.failed[:n]
		locked, err := s.e.settleFailed(ctx, part)
		switch {
		case err == nil:
			s.putAside(nil, locked)
			s.failed = s.failed[n:]
		case ofRows(err) && n > 1:
			s.most = n / 2
			return err
		case ofRows(err):
			s.alone.report(err)
			s.putAside(nil, part)
			s.failed = s.failed[n:]
		default:
			return err
		}
	}
	if len(s.published)+len(s.failed) == 0 {
		s.published, s.failed = nil, nil // and their arrays
	}
	return nil
}

// putAside keeps rows for later that are locked, or cannot be settled.
func (s *settler) putAside(published []*row, failed []failure) {
	if len(published)+len(failed) == 0 {
		return
	}
	if len(s.asidePublished)+len(s.asideFailed) == 0 {
		s.asideUntil = time.Now().Add(lockedPause)
	}
	s.asidePublished, s.asideFailed = append(s.asidePublished, published...), append(s.asideFailed, failed...)
}

// tryAside tries what was put aside once, in parts that are halved where one fails.
func (s *settler) tryAside(ctx context.Context, most int) {
	published, failed := s.asidePublished, s.asideFailed
	s.asidePublished, s.asideFailed = nil, nil
	halves(published, most, func(part []*row) bool {
		locked, err := s.e.settlePublished(ctx, part, true)
		if err != nil && (len(part) == 1 || !ofRows(err)) {
			locked = part
		} else if err != nil {
			return false
		}
		s.putAside(locked, nil)
		return true
	})
	halves(failed, most, func(part []failure) bool {
		locked, err := s.e.settleFailed(ctx, part)
		if err != nil && (len(part) == 1 || !ofRows(err)) {
			locked = part
		} else if err != nil {
			return false
		}
		s.putAside(nil, locked)
		return true
	})
}

// halves calls try with parts of a list; where it says no, with the halves of the part.
func halves[T any](list []T, most int, try func([]T) bool) {
	for part := range slices.Chunk(list, most) {
		if !try(part) {
			halves(part, (len(part)+1)/2, try)
		}
	}
}

// last settles what it can before the forwarder ends: once around, without waiting for anybody, and says what it left.
func (s *settler) last(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, s.e.cfg.QueryTimeout)
	defer cancel()
	for {
		s.take()
		s.asidePublished, s.asideFailed = append(s.asidePublished, s.published...), append(s.asideFailed, s.failed...)
		if s.published, s.failed = nil, nil; len(s.asidePublished)+len(s.asideFailed) == 0 {
			return
		}
		s.tryAside(ctx, lastSettle)
		s.e.mu.Lock()
		more := len(s.e.board.published)+len(s.e.board.failed) > 0
		s.e.mu.Unlock()
		if !more {
			break
		}
	}
	if left := len(s.asidePublished) + len(s.asideFailed); left > 0 {
		s.e.logger.Error("Stopped before all results were settled; their messages will be sent again", context.DeadlineExceeded,
			watermill.LogFields{"messages": left})
	}
}
