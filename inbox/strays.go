package inbox

import (
	"context"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// strays are messages that are ours without our knowing. They are given back before the next claim. It is guarded by loop.mu.
//
// What a claim took whose answer never came must be looked for. The server may commit such a claim late, so it is looked for again,
// until what was taken has lost its lease.
type strays struct {
	perhaps      []ID      // were claimed here while they were being settled, or could not be given back
	since, until time.Time // of the last claim that failed; until is zero if it was long ago
	next         time.Time // when to look
}

// strayInterval is how long to wait before they are looked for once more; longer each time.
const (
	strayInterval = time.Second
	// strayRows is how deep they are looked for, in each of two indexes.
	strayRows = 100_000
)

// feared says that a claim failed.
func (s *strays) feared(now time.Time, lease time.Duration) {
	s.since, s.until, s.next = now, now.Add(lease), now
}

// due says whether to look for them.
func (s *strays) due(now time.Time) bool { return !s.until.IsZero() && !now.Before(s.next) }

// looked says that they were looked for.
func (s *strays) looked(began time.Time) {
	switch {
	case s.since.After(began):
	case began.After(s.until):
		s.until = time.Time{}
	default:
		s.next = began.Add(max(strayInterval, began.Sub(s.since)))
	}
}

// giveBackStrays releases what is ours and not known to be. It is called under claiming.
func (l *loop) giveBackStrays(ctx context.Context) error {
	var perhaps []ID
	l.step(func() {
		perhaps = slices.DeleteFunc(l.strays.perhaps, func(id ID) bool { return l.claimed[id] != nil })
		l.strays.perhaps = nil
	})
	if _, err := l.store.Release(ctx, l.owner, perhaps...); err != nil {
		l.step(func() { l.strays.perhaps = append(l.strays.perhaps, perhaps...) })
		return err
	}
	began, due, sources, ids := time.Now(), false, []string{}, []string{}
	l.step(func() {
		if due = l.strays.due(began); !due {
			return
		}
		for id := range l.claimed {
			sources, ids = append(sources, id.Source), append(ids, id.MessageID)
		}
	})
	if !due {
		return nil
	}
	n, err := l.store.exec(ctx, "give back what nobody knows of", sqltext.ReleaseStrays, l.owner.String(), sources, ids, strayRows)
	l.step(func() { l.strays.looked(began) }) // also if it failed, so that it keeps no claim after this one from being made
	if err != nil {
		return err
	}
	if n > 0 {
		l.logger.Info("Gave back messages that were claimed and not known", watermill.LogFields{"messages": n})
	}
	return nil
}

// endStrays is the last look for them.
func (l *loop) endStrays() {
	l.claiming.Lock()
	defer l.claiming.Unlock()
	ctx, cancel := context.WithTimeout(l.base, queryTimeout)
	defer cancel()
	l.step(func() { l.strays.next = time.Time{} })
	if err := l.giveBackStrays(ctx); err != nil {
		l.logger.Error("Messages may have been claimed that are not known; they come again when their leases have run out", err, nil)
	}
}
