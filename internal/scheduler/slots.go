package scheduler

import (
	"sync"
	"time"
)

const (
	slowAfter     = 250 * time.Millisecond
	maxSlow       = 32
	checkInterval = 100 * time.Millisecond // for a slot of a failed database
)

// Slots limits how many databases are used concurrently. A use longer than 250 ms is slow and frees its slot for
// others, as long as at most 32 uses are slow in all Slots of a Scheduler. A database that failed counts as slow from
// the beginning. It is guarded by Config.Mu.
type Slots struct {
	max, taken int
	slow       *int
	mu         *sync.Mutex
	signal     func()
}

// NewSlots makes Slots of a Scheduler.
func (s *Scheduler[D]) NewSlots(most int) *Slots {
	return &Slots{max: most, slow: &s.slow, mu: s.cfg.Mu, signal: s.Signal}
}

// Free reports whether a slot is free, for a database that failed or for any other.
func (s *Slots) Free(failed bool) bool {
	if failed {
		return *s.slow < maxSlow
	}
	return s.taken < s.max
}

// Slot is a slot in use.
type Slot struct {
	of    *Slots
	slow  bool
	over  bool
	timer *time.Timer
}

// Take takes a slot, which must be free. It calls slowed, if not nil, with mu held when the use turns out to be slow.
func (s *Slots) Take(failed bool, slowed func()) *Slot {
	t := &Slot{of: s, slow: failed}
	if failed {
		*s.slow++
		return t
	}
	s.taken++
	t.timer = time.AfterFunc(slowAfter, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if t.over {
			return
		}
		if slowed != nil {
			slowed()
		}
		if *s.slow < maxSlow {
			t.slow = true
			s.taken--
			*s.slow++
		}
		s.signal()
	})
	return t
}

// Leave frees the slot.
func (t *Slot) Leave() {
	t.over = true
	if t.timer != nil {
		t.timer.Stop()
	}
	if t.slow {
		*t.of.slow--
	} else {
		t.of.taken--
	}
}

// Polls returns the slots of polls, which the owner may use too.
func (s *Scheduler[D]) Polls() *Slots { return s.polls }
