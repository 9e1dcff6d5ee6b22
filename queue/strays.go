package queue

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// strays are messages that are ours without our knowledge. They are given back before the next claim. It is guarded by
// loop.mu.
//
// If the answer of a claim was lost, its messages must be searched for. The server may commit such a claim late, so
// they are searched for again, until their lease has expired.
type strays struct {
	perhaps      []ID      // may have been claimed here while they were being settled
	since, until time.Time // of the last claim that failed; until is zero if it was long ago
	next         time.Time // when to search
	unsure       bool      // they have not been searched for since
}

const (
	// strayInterval is how long to wait before searching again; longer each time.
	strayInterval = time.Second
	// strayTimeout bounds the search, because claims wait for it, and strayRows how many rows it reads in each of two
	// indexes.
	strayTimeout = 2 * time.Second
	strayRows    = 100_000
)

// feared records that a claim failed, or that its messages could not be given back.
func (s *strays) feared(now time.Time, lease time.Duration) {
	s.since, s.until, s.next, s.unsure = now, now.Add(lease), now, true
}

// due reports whether to search.
func (s *strays) due(now time.Time) bool { return !s.until.IsZero() && !now.Before(s.next) }

// looked records a search, and whether all that it found were given back.
func (s *strays) looked(began, now time.Time, ok bool) {
	if s.unsure = s.unsure && !ok; began.After(s.until) {
		s.until, s.unsure = time.Time{}, false
		return
	}
	s.next = now.Add(max(strayInterval, now.Sub(s.since)))
}

// giveBackStrays releases messages that are ours and not known to be. An error does not prevent the next claim.
// claiming must be held.
func (l *loop) giveBackStrays() error {
	ctx, cancel := context.WithTimeout(l.base, strayTimeout)
	defer cancel()
	var perhaps []ID
	l.step(func() {
		for _, id := range l.strays.perhaps {
			if l.claimed[id] == nil {
				perhaps = append(perhaps, id)
			}
		}
		l.strays.perhaps = nil
	})
	_, err := l.store.Release(ctx, l.owner, perhaps...)
	began, due, sources, ids := time.Now(), false, []string{}, []string{}
	l.step(func() {
		if err != nil {
			l.strays.feared(began, l.cfg.lease)
		}
		if due = err == nil && l.strays.due(began); !due {
			return
		}
		for id := range l.claimed {
			sources, ids = append(sources, id.Source), append(ids, id.MessageID)
		}
	})
	if !due {
		return err
	}
	n, err := l.store.exec(ctx, "release unknown claims", sqltext.ReleaseStrays, l.owner.String(), sources, ids, strayRows)
	l.step(func() { l.strays.looked(began, time.Now(), err == nil) })
	if n > 0 {
		l.logger.Info("released messages claimed by a statement whose reply was lost", watermill.LogFields{"messages": n})
	}
	return err
}

// endStrays is the last search.
func (l *loop) endStrays() {
	l.claiming.Lock()
	defer l.claiming.Unlock()
	l.step(func() { l.strays.next = time.Time{} })
	if err := l.giveBackStrays(); err != nil {
		// Cause: the connection broke.
		// Cure: none is needed.
		l.logger.Error("messages may have been claimed by a statement whose reply was lost: they are redelivered "+
			"when their leases expire", err, nil)
	}
}
