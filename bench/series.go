package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// sideTimeout is the time after which a run of a side is abandoned.
const sideTimeout = 4 * time.Minute

// series holds the results of a side's rounds.
type series struct {
	side   side
	values []float64
	all    []float64
	facts  []string
	broken []string
	again  int  // repeated rounds because a side was noisy
	noisy  bool // this side was noisy
	short  bool // the run ended before it had enough rounds
}

// take runs the rounds of all sides alternately, A B A B, including repeated ones.
func (b *bench) take(ctx context.Context, all []*series) error {
	most, fewest := 0, minRounds
	for _, s := range all {
		most = max(most, s.side.rounds)
		if l := s.side.lasting; l != nil {
			fewest = lastingRounds
			defer l.close()
			if err := l.begin(ctx); err != nil {
				return fmt.Errorf("%s: %w", s.side.name, err)
			}
		}
	}
	var took time.Duration
	for round := range most {
		if b.budget.over() {
			for _, s := range all {
				s.short = s.short || round < min(fewest, s.side.rounds)
			}
			break
		}
		if round >= fewest && !b.budget.affords(took) {
			break
		}
		begun := b.budget.clock()
		for _, s := range all {
			if round < s.side.rounds {
				if err := b.round(ctx, s, fmt.Sprintf("round %d/%d", round+1, s.side.rounds)); err != nil {
					return err
				}
			}
		}
		took = b.budget.clock().Sub(begun)
	}
	if slices.ContainsFunc(all, func(s *series) bool { return s.short }) {
		return nil
	}
	for _, s := range all {
		if s.side.lasting != nil {
			s.values = s.values[lastingRounds-lastingCounted:]
		}
	}
	if err := b.quieten(ctx, all, took); err != nil {
		return err
	}
	for _, s := range all {
		if s.side.lasting != nil {
			if err := b.end(ctx, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// round runs a side once.
func (b *bench) round(ctx context.Context, s *series, name string) error {
	begun := time.Now()
	runCtx, cancel := context.WithTimeout(ctx, sideTimeout)
	m, err := s.side.run(runCtx)
	cancel()
	if err != nil {
		return fmt.Errorf("%s: %w", s.side.name, err)
	}
	s.values, s.all = append(s.values, m.value), append(s.all, m.value)
	s.remember(m)
	b.progress("%-24s %s  %12s   (%.1f s)%s", s.side.name, name, number(m.value), time.Since(begun).Seconds(),
		dotted(append(m.facts, m.broken)))
	return nil
}

func (s *series) remember(m measured) {
	s.facts = append(s.facts, m.facts...)
	if m.broken != "" {
		s.broken = append(s.broken, m.broken)
	}
}

// last returns the notes of the last round.
func (s *series) last() []string {
	if len(s.facts) == 0 || s.facts[len(s.facts)-1] == "" {
		return nil
	}
	return []string{s.side.name + ": " + s.facts[len(s.facts)-1]}
}

func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	switch n := len(s); {
	case n == 0:
		return 0
	case n%2 == 1:
		return s[n/2]
	default:
		return (s[n/2-1] + s[n/2]) / 2
	}
}

func span(values []float64) string {
	if len(values) < 2 {
		return ""
	}
	return number(slices.Min(values)) + "–" + number(slices.Max(values))
}
