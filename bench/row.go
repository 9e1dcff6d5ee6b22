package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// row is one line of the result: a ratio of two sides, and the least that it may be.
type row struct {
	name, what string
	floor, aim float64
	ours       string // name of a side of the same group
	rival      string // name of a side, or "" if the value of ours is the ratio already
	lower      bool   // less is better: the value is rival / ours
	oursBase   string // name of a side that ours is divided by first, or ""
	rivalBase  string // the same for the rival
	unit       string // of the sides; default msg/s
	quick      bool   // part of -quick
	missing    string // why the row cannot be measured, if it cannot
	chart      string // title of the row's section in the chart, if it belongs there
	label      string // of the rival in the chart
}

// side is one thing that is measured.
type side struct {
	name    string
	rounds  int // default: those of the run; fewer for what is slow
	note    string
	run     func(ctx context.Context) (measured, error)
	lasting lasting // instead of run, or nil
}

// measured is what a run of a side found. An error of run means that the side did not do its work; broken
// says that it did, but not as the row demands.
type measured struct {
	value  float64
	broken string
	facts  []string
}

// group is a set of rows that share sides. The rounds of its sides are interleaved.
type group struct {
	rows  []row
	sides func(ctx context.Context) ([]side, func(), error)
}

// sideTimeout is when a run of a side is given up.
const sideTimeout = 4 * time.Minute

// outcome is a row with what was measured for it.
type outcome struct {
	row
	value             float64
	oursMed, rivMed   float64
	oursSpan, rivSpan string
	notes             []string
	broken            []string
	err               error
}

func (o outcome) below() bool {
	return o.missing == "" && (o.err != nil || len(o.broken) > 0 || o.value < o.floor)
}

// series is what the rounds of a side gave.
type series struct {
	side   side
	values []float64 // those that count
	all    []float64
	facts  []string
	broken []string
	again  int  // rounds that were repeated because some side was noisy
	noisy  bool // this side was
}

// measure runs the sides that the wanted rows of a group need, interleaved: A B A B.
func (b *bench) measure(ctx context.Context, g group, wanted []row) []outcome {
	var live []row
	var results []outcome
	needed := map[string]bool{}
	for _, r := range wanted {
		if r.missing != "" {
			results = append(results, outcome{row: r})
			continue
		}
		live = append(live, r)
		for _, name := range []string{r.ours, r.rival, r.oursBase, r.rivalBase} {
			needed[name] = true
		}
	}
	if len(live) == 0 {
		return results
	}
	fail := func(err error) []outcome {
		for _, r := range live {
			results = append(results, outcome{row: r, err: err})
		}
		return results
	}
	sides, done, err := g.sides(ctx)
	if err != nil {
		return fail(err)
	}
	if done != nil {
		defer done()
	}
	found := map[string]*series{}
	var order []*series
	most := 0
	for _, s := range sides {
		if !needed[s.name] {
			continue
		}
		s.rounds = min(cmp.Or(s.rounds, b.rounds), b.rounds)
		if s.lasting != nil {
			s.run, s.rounds = s.lasting.round, lastingRounds
			defer s.lasting.close()
			if err := s.lasting.begin(ctx); err != nil {
				return fail(fmt.Errorf("%s: %w", s.name, err))
			}
		}
		most = max(most, s.rounds)
		found[s.name] = &series{side: s}
		order = append(order, found[s.name])
	}
	for round := range most {
		for _, s := range order {
			if round < s.side.rounds {
				if err := b.round(ctx, s, fmt.Sprintf("round %d/%d", round+1, s.side.rounds)); err != nil {
					return fail(err)
				}
			}
		}
	}
	for _, s := range order {
		if s.side.lasting != nil {
			s.values = s.values[lastingRounds-lastingCounted:]
		}
	}
	if err := b.quieten(ctx, order); err != nil {
		return fail(err)
	}
	for _, s := range order {
		if s.side.lasting != nil {
			if err := b.end(ctx, s); err != nil {
				return fail(err)
			}
		}
	}
	for _, r := range live {
		results = append(results, judge(r, found))
	}
	return results
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
	b.progress("%-24s %s  %12s   (%.1f s)%s", s.side.name, name, number(m.value), time.Since(begun).Seconds(), dotted(append(m.facts, m.broken)))
	return nil
}

func (s *series) remember(m measured) {
	s.facts = append(s.facts, m.facts...)
	if m.broken != "" {
		s.broken = append(s.broken, m.broken)
	}
}

func judge(r row, found map[string]*series) outcome {
	o := outcome{row: r}
	of := func(name string) float64 {
		s := found[name]
		if s == nil {
			o.err = errors.New("no side " + name)
			return 0
		}
		o.broken = append(o.broken, s.broken...)
		o.notes = append(o.notes, s.side.note, s.noise())
		o.notes = append(o.notes, s.last()...)
		return median(s.values)
	}
	o.oursMed = of(r.ours)
	o.value = o.oursMed
	if r.rival != "" {
		o.rivMed = of(r.rival)
		o.value = o.oursMed / o.rivMed
		if r.lower {
			o.value = o.rivMed / o.oursMed
		}
	}
	if r.oursBase != "" {
		o.value *= of(r.rivalBase) / of(r.oursBase)
	}
	if o.err != nil {
		return o
	}
	o.oursSpan = span(found[r.ours].values)
	if r.rival != "" {
		o.rivSpan = span(found[r.rival].values)
	}
	o.notes = slices.DeleteFunc(o.notes, func(s string) bool { return s == "" })
	return o
}

// last returns what the last round had to say.
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

// number prints a rate with thousands separators, or a small one with digits.
func number(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.3g", v)
	}
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func dotted(parts []string) string {
	parts = slices.DeleteFunc(slices.Clone(parts), func(s string) bool { return s == "" })
	if len(parts) == 0 {
		return ""
	}
	return "  " + strings.Join(parts, "; ")
}
