package scheduler

import (
	"container/heap"
	"context"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// Jitter returns d varied by up to 20%, to spread events that would otherwise coincide.
func Jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.8 + 0.4*rand.Float64()))
}

// pools is a heap of pools, the soonest first.
type pools[D any] []*pool[D]

func (l pools[D]) Len() int           { return len(l) }
func (l pools[D]) Less(i, j int) bool { return l[i].at.Before(l[j].at) }
func (l pools[D]) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].index, l[j].index = i, j
}

func (l *pools[D]) Push(x any) {
	p := x.(*pool[D])
	p.index = len(*l)
	*l = append(*l, p)
}

func (l *pools[D]) Pop() any {
	last := len(*l) - 1
	p := (*l)[last]
	*l = (*l)[:last]
	return p
}

// pollIn polls a pool after some time, or earlier if that is scheduled. If a poll is in flight, in = 0 repeats it
// immediately afterwards. mu must be held.
func (s *Scheduler[D]) pollIn(p *pool[D], in time.Duration) {
	at := time.Now().Add(in)
	switch {
	case p.state == polling:
		p.again = p.again || in <= 0
	case at.Before(p.pollAt) || p.pollAt.IsZero():
		p.pollAt = at
	}
	s.visit(p)
}

// visit makes the next pass visit a pool. mu must be held.
func (s *Scheduler[D]) visit(p *pool[D]) {
	p.at = time.Time{}
	heap.Fix(&s.next, p.index)
	s.Signal()
}

// startPolls wakes databases that are due, and starts polls that are due and have slots. It returns the time until
// either is due next. mu must be held.
func (s *Scheduler[D]) startPolls(ctx context.Context, now time.Time) time.Duration {
	for len(s.waiting) > 0 && s.polls.Free(false) {
		p := s.waiting[0]
		s.waiting = s.waiting[1:]
		if len(p.databases) > 0 { // otherwise it was removed
			s.poll(ctx, p, now)
		}
	}
	for len(s.next) > 0 {
		p := s.next[0]
		if wait := p.at.Sub(now); wait > 0 {
			return min(wait, noWait)
		}
		asleep, in := s.wakeDue(p, now)
		switch poll := p.pollAt.Sub(now); {
		case !asleep || p.state != scheduled:
		case poll > 0:
			in = min(in, poll)
		case p.breaker.Failing() && !s.polls.Free(true):
			in = min(in, checkInterval)
		case p.breaker.Failing() || s.polls.Free(false):
			s.poll(ctx, p, now)
		default:
			p.state = waiting
			s.waiting = append(s.waiting, p)
		}
		p.at = now.Add(in)
		heap.Fix(&s.next, p.index)
	}
	return noWait
}

// wakeDue wakes the databases of a pool that are due. Failed ones are polled first, so that a server that hangs is not
// tried once for each of them. It reports whether databases can be polled, and the time until another is due. mu must
// be held.
func (s *Scheduler[D]) wakeDue(p *pool[D], now time.Time) (asleep bool, in time.Duration) {
	in = noWait
	for d := range p.databases {
		switch {
		case !d.asleep:
		case now.Before(d.SkipUntil):
			in = min(in, d.SkipUntil.Sub(now))
		case d.wakeAt.IsZero() || !d.SkipUntil.IsZero():
			asleep = true
		case now.Before(d.wakeAt):
			asleep = true
			in = min(in, d.wakeAt.Sub(now))
		default:
			s.wake(d, now)
		}
	}
	return asleep, in
}

// poll polls the sleeping databases of a pool. mu must be held.
func (s *Scheduler[D]) poll(ctx context.Context, p *pool[D], now time.Time) {
	var list []*Database[D]
	var owned []D
	for d := range p.databases {
		if d.asleep && !now.Before(d.SkipUntil) {
			list, owned = append(list, d), append(owned, d.Own)
			d.work.Add(1)
		}
	}
	p.state, p.again = polling, false
	slot := s.polls.Take(p.breaker.Failing(), nil)
	s.work.Go(func() {
		err := s.cfg.Poll(ctx, owned)
		s.cfg.Mu.Lock()
		defer s.cfg.Mu.Unlock()
		slot.Leave()
		for _, d := range list {
			d.work.Done()
			if err == nil && !time.Now().Before(d.SkipUntil) {
				d.SkipUntil = time.Time{}
			}
		}
		s.polled(ctx, p, err)
		s.Signal()
	})
}

// polled schedules the next poll of a pool. mu must be held.
func (s *Scheduler[D]) polled(ctx context.Context, p *pool[D], err error) {
	if len(p.databases) == 0 {
		return // it was removed
	}
	now := time.Now()
	p.wait = min(max(2*p.wait, s.cfg.PollInterval), s.cfg.MaxPollInterval)
	wait := Jitter(p.wait)
	switch name, logger := p.name(); {
	case ctx.Err() != nil:
	case err != nil:
		p.breaker.Logger = logger.With(watermill.LogFields{"db": name})
		wait = p.breaker.Failed(now, err)
	default:
		p.breaker.Worked()
	}
	if p.again {
		wait = 0
	}
	p.state, p.pollAt = scheduled, now.Add(wait)
	s.visit(p)
}
