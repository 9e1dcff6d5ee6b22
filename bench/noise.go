package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"
)

// noisy is how far the rounds of a side may differ, relative to their median, before they are taken to measure the
// machine.
const noisy = 0.5

// quieten repeats rounds while the rounds of a side differ too much, at most as many as there were. All sides of the
// group take part, so that sides are compared at the same time, and each drops its strangest round.
//
// A lasting side that slows down under its own load is treated the same: it stays slow in repeated rounds, and its fast
// rounds are dropped as the strangest.
//
// takes is how long a round of all sides took: if the group has no time for another round, its rows stay noisy.
func (b *bench) quieten(ctx context.Context, sides []*series, takes time.Duration) error {
	limit := 0
	for _, s := range sides {
		limit = max(limit, len(s.values))
	}
	for range limit {
		quiet := true
		for _, s := range sides {
			if s.isNoisy() {
				quiet, s.noisy = false, true
			}
		}
		if quiet || !b.budget.affords(takes) {
			return nil
		}
		for _, s := range sides {
			if err := b.round(ctx, s, "noisy, again"); err != nil {
				return err
			}
			s.again++
			s.dropStrangest()
		}
	}
	return nil
}

func (s *series) isNoisy() bool {
	return len(s.values) > 1 && slices.Max(s.values)-slices.Min(s.values) > noisy*median(s.values)
}

// dropStrangest drops the value that is farthest from the median, the oldest of several.
func (s *series) dropStrangest() {
	m, strangest := median(s.values), 0
	for i, v := range s.values {
		if math.Abs(v-m) > math.Abs(s.values[strangest]-m) {
			strangest = i
		}
	}
	s.values = slices.Delete(s.values, strangest, strangest+1)
}

// fell reports whether a lasting side slowed down and hardly recovered, from the first counted round to the last
// repeated one. Noise does not last.
func (s *series) fell() bool {
	if s.side.lasting == nil {
		return false
	}
	judged := s.all[lastingRounds-lastingCounted:]
	lowest, rise := math.Inf(1), 0.0
	for _, v := range judged {
		lowest = min(lowest, v)
		rise = max(rise, v-lowest)
	}
	return rise <= (slices.Max(judged)-lowest)/4
}

// noise describes unusual rounds to the reader.
func (s *series) noise() string {
	switch {
	case s.again == 0 && s.noisy:
		return s.side.name + ": noisy machine, and no time to repeat rounds"
	case s.again == 0:
		return ""
	case !s.noisy:
		return fmt.Sprintf("%s: rounds repeated: %d", s.side.name, s.again)
	case s.fell():
		return fmt.Sprintf("%s: slower from round to round, also when repeated: %d", s.side.name, s.again)
	case s.isNoisy():
		return fmt.Sprintf("%s: noisy machine, still so after repeated rounds: %d", s.side.name, s.again)
	}
	return fmt.Sprintf("%s: noisy machine, rounds repeated: %d", s.side.name, s.again)
}
