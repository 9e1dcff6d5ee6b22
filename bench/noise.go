package main

import (
	"context"
	"fmt"
	"math"
	"slices"
)

// noisy is how far the rounds of a side may lie apart, as a part of their median, before the machine and not the side
// is what was measured.
const noisy = 0.5

// quieten repeats rounds while those of a side lie too far apart, at most as many as there were. All sides of the group
// take part, so that what they are compared with was measured at the same time, and each drops its strangest round.
func (b *bench) quieten(ctx context.Context, sides []*series) error {
	for range b.rounds {
		if !slices.ContainsFunc(sides, (*series).isNoisy) {
			return nil
		}
		for _, s := range sides {
			if s.side.rounds == 1 {
				continue
			}
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

func (s *series) dropStrangest() {
	m, strangest := median(s.values), 0
	for i, v := range s.values {
		if math.Abs(v-m) > math.Abs(s.values[strangest]-m) {
			strangest = i
		}
	}
	s.values = slices.Delete(s.values, strangest, strangest+1)
}

// noise says what a reader should know of the rounds.
func (s *series) noise() string {
	switch {
	case s.again == 0:
		return ""
	case s.isNoisy():
		return fmt.Sprintf("%s: noisy machine, still so after %d more rounds", s.side.name, s.again)
	}
	return fmt.Sprintf("%s: noisy machine, %d rounds repeated", s.side.name, s.again)
}
