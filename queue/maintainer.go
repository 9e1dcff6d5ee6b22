package queue

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"

	"github.com/millrace-go/watermill-outbox/internal/core"
	"github.com/millrace-go/watermill-outbox/internal/drive"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// cleanShare is for how long old messages are deleted before messages of dead processes, and other databases, have their
// turn.
const cleanShare = time.Second

// maintainer does the work that is not urgent: it gives back messages of dead processes, and deletes old messages that
// are done. It is used by one goroutine at a time.
type maintainer struct {
	store  *Store
	logger watermill.LoggerAdapter
	lease  time.Duration
	clean  time.Duration // -1 = never
	// bury has messages buried whose time is over, and says whether there may be more. Nil = reaping makes them dead.
	bury    func(ctx context.Context) (more bool, err error)
	service string // that observers are told of with what reaping makes dead

	reapAt time.Time // when to reap again
	place  reapPlace // and where
	more   bool      // there may be more to bury before that

	cleanAt           time.Time // when to delete again
	reaping, cleaning trouble.Log
}

func newMaintainer(s *Store, logger watermill.LoggerAdapter, lease, clean time.Duration, service string) *maintainer {
	return &maintainer{
		store: s, logger: logger, lease: lease, clean: clean, service: service,
		// Cause: the database.
		// Cure: until it works, messages of dead processes wait.
		reaping: trouble.Log{Logger: logger, What: "reaping expired leases"},
		// Cause: the database, or no grant to delete.
		// Cure: grant what schema.Roles prints; the table grows until it works.
		cleaning: trouble.Log{Logger: logger, What: "deleting done messages past their retention"},
	}
}

// buryInterval is how soon burying goes on that had no slots for all.
const buryInterval = 50 * time.Millisecond

// once does what is due. At first that is all: a missing table, or database, shows here.
func (m *maintainer) once(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	m.more = false
	if now := time.Now(); !now.Before(m.reapAt) {
		m.reapAt = time.Time{}
		pause := m.pause()
		m.place, _, err = m.store.reap(ctx, reaping{
			kill: m.bury == nil, by: teller{m.service, m.logger}, from: m.place, share: pause / reapShare,
		})
		if err != nil {
			return err
		}
		m.reapAt = now.Add(pause)
	}
	if m.bury != nil {
		if m.more, err = m.bury(ctx); err != nil {
			m.more, m.reapAt = false, time.Time{}
		}
	}
	return err
}

// turn does what is due, and logs errors. Handled says whether messages were handled since the last clean-up; where none
// were, the next one may be late. It returns whether old messages were deleted, as far as there were any.
func (m *maintainer) turn(ctx context.Context, handled bool) (cleaned bool) {
	err := m.once(ctx)
	if ctx.Err() == nil {
		m.reaping.Tell(err)
	}
	if err != nil || !m.cleanDue(time.Now()) {
		return false
	}
	_, more, err := m.store.clean(ctx, cleanShare)
	if ctx.Err() == nil {
		m.cleaning.Tell(err)
	}
	if err != nil {
		m.cleanAt = time.Now().Add(m.pause())
		return false
	}
	m.cleanAt = time.Now().Add(m.cleanWait(handled, more))
	return true
}

// cleanWait is how long old messages are not deleted again. It is not the same for all databases, which begin together.
func (m *maintainer) cleanWait(handled, more bool) time.Duration {
	switch {
	case more:
		return min(m.clean, cleanShare)
	case handled:
		return jitter(m.clean)
	}
	return jitter(rareClean * m.clean)
}

func (m *maintainer) cleanDue(now time.Time) bool { return m.clean > 0 && !now.Before(m.cleanAt) }

// wait is for how long nothing is due.
func (m *maintainer) wait() (wait time.Duration) {
	switch {
	case m.more:
		wait = buryInterval
	case m.reapAt.IsZero(): // it failed
		return m.pause()
	default:
		wait = time.Until(m.reapAt)
	}
	if m.clean > 0 {
		wait = min(wait, time.Until(m.cleanAt))
	}
	return wait
}

// pause is how long to wait before reaping again, not the same in all processes.
func (m *maintainer) pause() time.Duration {
	every := m.lease / 2
	if m.clean > 0 {
		every = min(every, m.clean)
	}
	return time.Duration(float64(every) * (0.8 + 0.4*rand.Float64()))
}

// run goes on after once.
func (m *maintainer) run(ctx context.Context) {
	m.cleanAt = time.Now().Add(m.clean)
	for pause(ctx, m.wait()) {
		m.turn(ctx, true)
	}
}

// listen is the goroutine that hears of commits in other processes. What it misses is found by polling.
func listen(ctx context.Context, s *Store, logger watermill.LoggerAdapter, heard func(core.Notification)) {
	// Cause: the LISTEN connection broke, or the pool is full.
	// Cure: check the size of the pool; until it works, dispatchers poll.
	report := trouble.Log{Logger: logger, What: "listening for commits of other processes"}
	wait := newBackOff(100*time.Millisecond, 30*time.Second)
	err := retry(ctx, wait, report.Tell, func(ctx context.Context) error {
		err := s.db.Listen(ctx, func(n core.Notification) {
			report.Tell(nil)
			wait.Reset()
			heard(n)
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
