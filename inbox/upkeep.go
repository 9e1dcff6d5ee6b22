package inbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"

	"github.com/millrace-go/watermill-outbox/internal/drive"
)

// upkeep is the goroutine for what is in no hurry: giving back what dead processes have claimed, and deleting what was done long ago.
type upkeep struct {
	store  *Store
	logger watermill.LoggerAdapter
	lease  time.Duration
	clean  time.Duration // -1 = never
	// bury has messages buried whose time is over, and says whether there may be more. Nil = reaping makes them dead.
	bury func(ctx context.Context) (more bool, err error)
}

// pause is how long to wait for the next time, not the same in all processes.
func (u upkeep) pause(more bool) time.Duration {
	every := u.lease / 2
	switch {
	case more:
		return reapInterval
	case u.clean > 0:
		every = min(every, u.clean)
	}
	return time.Duration(float64(every) * (0.8 + 0.4*rand.Float64()))
}

// once is also the first statement of all: whoever has no table, or no database, learns it here.
func (u upkeep) once(ctx context.Context) (more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	_, err = u.store.reap(ctx, u.bury == nil)
	if err == nil && u.bury != nil {
		more, err = u.bury(ctx)
	}
	return more, err
}

// run goes on after once, which said whether there may be more.
func (u upkeep) run(ctx context.Context, more bool) {
	reaping := trouble{logger: u.logger, what: "Giving back messages whose owners are gone"}
	cleaning := trouble{logger: u.logger, what: "Deleting messages that were done long ago"}
	cleanAt := time.Now().Add(u.clean)
	for {
		pause := time.NewTimer(u.pause(more))
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
		var err error
		if more, err = u.once(ctx); ctx.Err() == nil {
			reaping.tell(err)
		}
		if u.clean > 0 && time.Now().After(cleanAt) {
			if _, err := u.store.Clean(ctx); ctx.Err() == nil {
				cleaning.tell(err)
			}
			cleanAt = time.Now().Add(u.clean)
		}
	}
}

// listen is the goroutine that hears of commits in other processes. What it misses is found by polling.
func listen(ctx context.Context, s *Store, logger watermill.LoggerAdapter, wake func()) {
	report := trouble{logger: logger, what: "Listening for commits of other processes"}
	retry := backoff.NewExponentialBackOff()
	retry.InitialInterval, retry.MaxInterval = 100*time.Millisecond, 30*time.Second
	for {
		err := s.db.Listen(ctx, func() {
			report.tell(nil)
			retry.Reset()
			wake()
		})
		if errors.Is(err, drive.ErrNoListen) {
			logger.Debug("Messages of other processes are found by polling", watermill.LogFields{"err": err.Error()})
			return
		}
		if ctx.Err() != nil {
			return
		}
		report.tell(err)
		pause := time.NewTimer(retry.NextBackOff())
		select {
		case <-ctx.Done():
			pause.Stop()
			return
		case <-pause.C:
		}
	}
}
