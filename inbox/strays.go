package inbox

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/internal/sqltext"
)

// strays are what claims of ours may have taken that failed, or whose answer never came: messages that have an owner who does
// not know of them. They are given back before the next claim. The server may commit such a claim later still, so they are looked
// for again, until what it took has lost its lease. It is guarded by loop.claiming.
type strays struct {
	since, until time.Time // of the last claim that failed; zero = there are none
	next         time.Time // when to look for them
}

// strayInterval is how long to wait before they are looked for once more; longer each time.
const strayInterval = time.Second

// feared says that a claim failed.
func (s *strays) feared(now time.Time, lease time.Duration) {
	s.since, s.until, s.next = now, now.Add(lease), now
}

// due says whether to look for them.
func (s *strays) due(now time.Time) bool { return !s.until.IsZero() && !now.Before(s.next) }

// looked says that those were given back that there were.
func (s *strays) looked(began time.Time) {
	if began.After(s.until) {
		*s = strays{}
		return
	}
	s.next = began.Add(max(strayInterval, began.Sub(s.since)))
}

// giveBackStrays releases what is ours and not known to be. It is called under claiming.
func (l *loop) giveBackStrays(ctx context.Context) error {
	began := time.Now()
	if !l.strays.due(began) {
		return nil
	}
	sources, ids := []string{}, []string{}
	l.step(func() {
		for id := range l.claimed {
			sources, ids = append(sources, id.Source), append(ids, id.MessageID)
		}
	})
	n, err := l.store.exec(ctx, "give back what claims without an answer took", sqltext.ReleaseStrays, l.owner.String(), sources, ids, maxClaim)
	if err != nil {
		return err
	}
	if n > 0 {
		l.logger.Info("Gave back messages that claims without an answer had taken", watermill.LogFields{"messages": n})
	}
	l.strays.looked(began)
	return nil
}

// endStrays is the last look for them.
func (l *loop) endStrays() {
	l.claiming.Lock()
	defer l.claiming.Unlock()
	ctx, cancel := context.WithTimeout(l.base, queryTimeout)
	defer cancel()
	l.strays.next = time.Time{}
	if err := l.giveBackStrays(ctx); err != nil {
		l.logger.Error("What claims without an answer took could not be given back; it comes again when its lease has run out", err, nil)
	}
}
