package inbox

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// strays are messages that are ours without our knowing: a claim took them whose answer never came, or took one that was being
// settled here, and is forgotten. They are given back before the next claim. The server may commit a claim late, so they
// are looked for again, until what was taken has lost its lease. It is guarded by loop.mu.
type strays struct {
	since, until time.Time // of the last reason to fear some; zero = there are none
	next         time.Time // when to look for them
}

// strayInterval is how long to wait before they are looked for once more; longer each time.
const strayInterval = time.Second

// feared says that there may be some.
func (s *strays) feared(now time.Time, lease time.Duration) {
	s.since, s.until, s.next = now, now.Add(lease), now
}

// due says whether to look for them.
func (s *strays) due(now time.Time) bool { return !s.until.IsZero() && !now.Before(s.next) }

// looked says that those were given back that there were.
func (s *strays) looked(began time.Time) {
	switch {
	case s.since.After(began):
	case began.After(s.until):
		*s = strays{}
	default:
		s.next = began.Add(max(strayInterval, began.Sub(s.since)))
	}
}

// fearStrays has them looked for before the next claim.
func (l *loop) fearStrays() {
	l.step(func() { l.strays.feared(time.Now(), l.cfg.lease) })
}

// giveBackStrays releases what is ours and not known to be. It is called under claiming.
func (l *loop) giveBackStrays(ctx context.Context) error {
	var began time.Time
	due, sources, ids := false, []string{}, []string{}
	l.step(func() {
		if began = time.Now(); !l.strays.due(began) {
			return
		}
		due = true
		for id := range l.claimed {
			sources, ids = append(sources, id.Source), append(ids, id.MessageID)
		}
	})
	if !due {
		return nil
	}
	n, err := l.store.exec(ctx, "give back what nobody knows of", sqltext.ReleaseStrays, l.owner.String(), sources, ids, maxClaim)
	if err != nil {
		return err
	}
	if n > 0 {
		l.logger.Info("Gave back messages that were claimed and not known", watermill.LogFields{"messages": n})
	}
	l.step(func() { l.strays.looked(began) })
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
