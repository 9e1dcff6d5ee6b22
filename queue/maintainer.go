package queue

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/scheduler"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// cleanShare is how long old messages are deleted, or dead ones discarded, before messages of dead processes and other
// databases get their turn.
const cleanShare = time.Second

// maintainer does work that is not urgent: it releases messages of dead processes and deletes old done messages. Only
// one goroutine at a time may use it.
type maintainer struct {
	store  *Store
	logger watermill.LoggerAdapter
	lease  time.Duration
	clean  time.Duration   // -1 = never
	topics func() []string // the topics that it reaps; nil = all
	// takeExpired starts to mark expired messages dead, and reports whether there may be more. nil = reaping does it.
	takeExpired func(ctx context.Context) (more bool, err error)
	service     string // for observers of messages that reaping marks dead

	reapAt time.Time // of the next reaping
	place  reapPlace // where it starts
	more   bool      // there may be more expired messages before then

	cleanAt           time.Time // of the next deletion
	reaping, cleaning trouble.RetryLog
}

func newMaintainer(
	s *Store, logger watermill.LoggerAdapter, lease, clean time.Duration, service string, topics func() []string,
) *maintainer {
	return &maintainer{
		store: s, logger: logger, lease: lease, clean: clean, service: service, topics: topics,
		// Cause: the database.
		// Cure: messages of dead processes wait.
		reaping: trouble.RetryLog{Logger: logger, What: "reaping expired leases"},
		// Cause: the database.
		// Cure: the table grows.
		cleaning: trouble.RetryLog{Logger: logger, What: "deleting done messages past their retention"},
	}
}

// expiredInterval is the wait before the next expired messages are taken after the slots ran out.
const expiredInterval = 50 * time.Millisecond

// once does the work that is due. The first time that is all of it, so a missing table or database is found here.
func (m *maintainer) once(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	m.more = false
	if now := time.Now(); !now.Before(m.reapAt) {
		m.reapAt = time.Time{}
		pause := m.pause()
		m.place, _, err = m.store.reap(ctx, reaping{
			topics: m.topics(), kill: m.takeExpired == nil, by: reporter{m.service, m.logger}, from: m.place,
			share: pause / reapShare,
		})
		if err != nil {
			return err
		}
		m.reapAt = now.Add(pause)
	}
	if m.takeExpired != nil {
		if m.more, err = m.takeExpired(ctx); err != nil {
			m.more, m.reapAt = false, time.Time{}
		}
	}
	return err
}

// turn does the work that is due and logs errors. handled says whether messages were handled since the last clean-up;
// if not, the next clean-up may be late. It reports whether it cleaned up.
func (m *maintainer) turn(ctx context.Context, handled bool) (cleaned bool) {
	err := m.once(ctx)
	if ctx.Err() != nil {
		return false
	}
	m.reaping.Report(err)
	if !m.cleanDue(time.Now()) { // even after an error, which may come from reaping alone
		return false
	}
	discarding := m.store.dead.Turn(ctx, cleanShare)
	_, more, err := m.store.deleteOld(ctx, cleanShare)
	if ctx.Err() == nil {
		m.cleaning.Report(err)
	}
	if err != nil {
		m.cleanAt = time.Now().Add(m.pause())
		return false
	}
	m.cleanAt = time.Now().Add(m.cleanWait(handled, more || discarding))
	return true
}

// cleanWait returns the time until the next clean-up. It varies, because all databases start at the same time.
func (m *maintainer) cleanWait(handled, more bool) time.Duration {
	switch {
	case more:
		return min(m.clean, cleanShare)
	case handled:
		return scheduler.Jitter(m.clean)
	}
	return scheduler.Jitter(rareClean * m.clean)
}

func (m *maintainer) cleanDue(now time.Time) bool { return m.clean > 0 && !now.Before(m.cleanAt) }

// wait returns the time until the next work is due.
func (m *maintainer) wait() (wait time.Duration) {
	switch {
	case m.more:
		wait = expiredInterval
	case m.reapAt.IsZero(): // the last try failed
		return m.pause()
	default:
		wait = time.Until(m.reapAt)
	}
	if m.clean > 0 {
		wait = min(wait, time.Until(m.cleanAt))
	}
	return wait
}

// pause returns how long to wait before reaping again, which varies so that processes spread out.
func (m *maintainer) pause() time.Duration {
	every := m.lease / 2
	if m.clean > 0 {
		every = min(every, m.clean)
	}
	return scheduler.Jitter(every)
}

// run repeats the work after once.
func (m *maintainer) run(ctx context.Context) {
	m.cleanAt = time.Now().Add(m.clean)
	for core.Pause(ctx, m.wait()) {
		m.turn(ctx, true)
	}
}

// listen is the goroutine that receives notifications of commits in other processes. Messages whose notification it
// misses are found by polling.
func listen(ctx context.Context, s *Store, logger watermill.LoggerAdapter, notified func(core.Notification)) {
	// Cause: its connection broke, or the pool is full.
	// Cure: they are found by polling.
	report := trouble.RetryLog{Logger: logger, What: "listening for commits of other processes"}
	wait := newBackOff(100*time.Millisecond, 30*time.Second)
	err := retry(ctx, wait, report.Report, func(ctx context.Context) error {
		err := s.db.Listen(ctx, func(n core.Notification) {
			report.Report(nil)
			wait.Reset()
			notified(n)
		})
		if errors.Is(err, drive.ErrNoListen) {
			err = backoff.Permanent(err)
		}
		return err
	})
	if errors.Is(err, drive.ErrNoListen) {
		logger.Debug("no LISTEN here: polling for messages of other processes", watermill.LogFields{"err": err.Error()})
	}
}
