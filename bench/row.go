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

// row is one line of the result: a ratio of two sides, and its minimum.
type row struct {
	name, what string
	floor, aim float64
	ours       string // name of a side of the group
	rival      string // name of a side, or "" if the value of ours is already the ratio
	lower      bool   // less is better, so the value is rival / ours
	oursBase   string // name of a side to divide ours by first, or ""
	rivalBase  string // to divide rival by first
	unit       string // unit of the sides; default msg/s
	quick      bool   // measured with -quick
	missing    string // why the row cannot be measured, or ""
	chart      string // title of the row's section in the chart, or "" to leave it out
	label      string // the rival's name in the chart
}

// side is one side of a comparison.
type side struct {
	name    string
	rounds  int // default: the rounds of the run; fewer for a slow side
	note    string
	run     func(ctx context.Context) (measured, error)
	lasting lasting // instead of run, or nil
}

// measured is the result of a run of a side. An error of run means that the side did not do its work; broken means that
// it did it, but not as the row requires.
type measured struct {
	value  float64
	broken string
	facts  []string
}

// group is a set of rows that share sides. The rounds of its sides are interleaved.
type group struct {
	rows  []row
	about time.Duration // time of minRounds on two cores; roughly determines its share of the run
	sides func(ctx context.Context) ([]side, func(), error)
}

// outcome is a row with its measurements.
type outcome struct {
	row
	value             float64
	oursMed, rivMed   float64
	oursSpan, rivSpan string
	notes             []string
	broken            []string
	err               error

	noisy       bool    // a side was noisy, even after repeated rounds
	worst, best float64 // bounds of the ratio if noisy
	short       bool    // the run ended before there were enough rounds
}

func (o outcome) below() bool {
	return o.missing == "" && (o.err != nil || len(o.broken) > 0 || o.unjudged() == "" && o.value < o.floor)
}

// measure runs the sides that the wanted rows of a group need.
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
	if b.budget.over() {
		for _, r := range live {
			results = append(results, outcome{row: r, short: true})
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
	for _, s := range sides {
		if !needed[s.name] {
			continue
		}
		s.rounds = min(cmp.Or(s.rounds, b.rounds), b.rounds)
		if s.lasting != nil {
			s.run, s.rounds = s.lasting.round, lastingRounds
		}
		found[s.name] = &series{side: s}
		order = append(order, found[s.name])
	}
	if err := b.take(ctx, order); err != nil {
		return fail(err)
	}
	for _, r := range live {
		results = append(results, judge(r, found))
	}
	return results
}

func judge(r row, found map[string]*series) outcome {
	o := outcome{row: r}
	for _, name := range []string{r.ours, r.rival, r.oursBase, r.rivalBase} {
		o.short = o.short || found[name] != nil && found[name].short
	}
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
	if r.rival != "" {
		o.rivMed = of(r.rival)
	}
	if r.oursBase != "" {
		of(r.oursBase)
		of(r.rivalBase)
	}
	if o.err != nil {
		return o
	}
	o.notes = slices.DeleteFunc(o.notes, func(s string) bool { return s == "" })
	if o.short {
		return o
	}
	o.value, o.noisy = r.ratio(found, median, median), isNoisyRow(r, found)
	o.worst, o.best = r.ratio(found, slices.Min, slices.Max), r.ratio(found, slices.Max, slices.Min)
	o.oursSpan = span(found[r.ours].values)
	if r.rival != "" {
		o.rivSpan = span(found[r.rival].values)
	}
	return o
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
