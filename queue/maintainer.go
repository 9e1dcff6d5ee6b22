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

// maintainer is the goroutine for work that is not urgent: giving back messages of dead processes, and deleting old
// messages that are done.
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
		m.more, err = m.bury(ctx)
	}
	return err
}

// wait is for how long nothing is due.
func (m *maintainer) wait() time.Duration {
	switch {
	case m.more:
		return buryInterval
	case m.reapAt.IsZero(): // it failed
		return m.pause()
	}
	return time.Until(m.reapAt)
}

// pause is how long to wait before reaping again, not the same in all processes.
func (m *maintainer) pause() time.Duration {
	every := m.lease / 2
	if m.clean > 0 {
		every = min(every, m.clean)
	}
	return time.Duration(float64(every) * (0.8 + 0.4*rand.Float64()))
}

func reapingLog(l watermill.LoggerAdapter) trouble.Log {
	// Cause: the database.
	// Cure: until it works, messages of dead processes wait.
	return trouble.Log{Logger: l, What: "reaping expired leases"}
}

func cleaningLog(l watermill.LoggerAdapter) trouble.Log {
	// Cause: the database, or no grant to delete.
	// Cure: grant what schema.Roles prints; the table grows until it works.
	return trouble.Log{Logger: l, What: "deleting done messages past their retention"}
}

// run goes on after once.
func (m *maintainer) run(ctx context.Context) {
	reaping, cleaning := reapingLog(m.logger), cleaningLog(m.logger)
	cleanAt := time.Now().Add(m.clean)
	for {
		pause := time.NewTimer(m.wait())
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		if err := m.once(ctx); ctx.Err() == nil {
			reaping.Tell(err)
		}
		if m.clean > 0 && time.Now().After(cleanAt) {
			if _, err := m.store.Clean(ctx); ctx.Err() == nil {
				cleaning.Tell(err)
			}
			cleanAt = time.Now().Add(m.clean)
		}
	}
}

// listen is the goroutine that hears of commits in other processes. What it misses is found by polling.
func listen(ctx context.Context, s *Store, logger watermill.LoggerAdapter, heard func(core.Notification)) {
	// Cause: the LISTEN connection broke, or the pool is full.
	// Cure: check the size of the pool; until it works, dispatchers poll.
	report := trouble.Log{Logger: logger, What: "listening for commits of other processes"}
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 100*time.Millisecond, 30*time.Second
	for {
		err := s.db.Listen(ctx, func(n core.Notification) {
			report.Tell(nil)
			retry.Reset()
			heard(n)
		})
		if errors.Is(err, drive.ErrNoListen) {
			logger.Debug("no LISTEN here: polling for messages of other processes", watermill.LogFields{"err": err.Error()})
			return
		}
		if ctx.Err() != nil {
			return
		}
		report.Tell(err)
		pause := time.NewTimer(retry.NextBackOff())
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}
