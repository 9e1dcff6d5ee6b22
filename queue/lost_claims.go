package queue

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// lostClaims tracks messages that may be ours without our knowledge. They are released before the next claim. It is
// guarded by loop.mu.
//
// If the answer of a claim was lost, its messages must be searched for. The server may commit such a claim late, so
// they are searched for again, until their lease has expired.
type lostClaims struct {
	maybeOurs    []ID      // may have been claimed here while they were being settled
	since, until time.Time // of the last failed claim; until is zero if it was long ago
	next         time.Time // of the next search
	unsure       bool      // new since the last search
}

const (
	// lostClaimInterval is the first wait between searches; it grows.
	lostClaimInterval = time.Second
	// lostClaimTimeout bounds the search, because claims wait for it, and lostClaimRows how many rows it reads in each of
	// two indexes.
	lostClaimTimeout = 2 * time.Second
	lostClaimRows    = 100_000
)

// mayExist records that a claim failed, or that its messages could not be given back.
func (s *lostClaims) mayExist(now time.Time, lease time.Duration) {
	s.since, s.until, s.next, s.unsure = now, now.Add(lease), now, true
}

// due reports whether to search.
func (s *lostClaims) due(now time.Time) bool { return !s.until.IsZero() && !now.Before(s.next) }

// searched records a search, and whether all claims that it found were released.
func (s *lostClaims) searched(began, now time.Time, ok bool) {
	if s.unsure = s.unsure && !ok; began.After(s.until) {
		s.until, s.unsure = time.Time{}, false
		return
	}
	s.next = now.Add(max(lostClaimInterval, now.Sub(s.since)))
}

// releaseLostClaims releases messages that are ours without our knowledge. An error does not prevent the next claim.
// claiming must be held.
func (l *loop) releaseLostClaims() error {
	ctx, cancel := context.WithTimeout(l.base, lostClaimTimeout)
	defer cancel()
	var perhaps []ID
	l.step(func() {
		for _, id := range l.lostClaims.maybeOurs {
			if l.claimed[id] == nil {
				perhaps = append(perhaps, id)
			}
		}
		l.lostClaims.maybeOurs = nil
	})
	_, err := l.store.Release(ctx, l.owner, perhaps...)
	began, due, sources, ids := time.Now(), false, []string{}, []string{}
	l.step(func() {
		if err != nil {
			l.lostClaims.mayExist(began, l.cfg.lease)
		}
		if due = err == nil && l.lostClaims.due(began); !due {
			return
		}
		for id := range l.claimed {
			sources, ids = append(sources, id.Source), append(ids, id.MessageID)
		}
	})
	if !due {
		return err
	}
	n, err := l.store.exec(ctx, "release unknown claims", sqltext.ReleaseLostClaims, l.owner.String(), sources, ids,
		lostClaimRows)
	l.step(func() { l.lostClaims.searched(began, time.Now(), err == nil) })
	if n > 0 {
		l.logger.Info("released messages claimed by a statement whose reply was lost", watermill.LogFields{"messages": n})
	}
	return err
}

// releaseLastLostClaims searches for the last time.
func (l *loop) releaseLastLostClaims() {
	l.claiming.Lock()
	defer l.claiming.Unlock()
	l.step(func() { l.lostClaims.next = time.Time{} })
	if err := l.releaseLostClaims(); err != nil {
		// Cause: the connection broke.
		// Cure: none is needed.
		l.logger.Error("messages may have been claimed by a statement whose reply was lost: they are redelivered "+
			"when their leases expire", err, nil)
	}
}
