package main

import (
	"slices"
	"time"
)

// minRounds is the number of rounds that a side gets regardless of its group's budget.
const minRounds = 2

// budget divides the time of a run among its groups, in proportion to the time that each takes on a quiet machine.
// Unused time goes to later groups. The zero value is unlimited.
type budget struct {
	now   func() time.Time // nil = time.Now
	end   time.Time        // end of the run
	group time.Time        // end of the current group
}

func newBudget(total time.Duration) (b budget) {
	if total > 0 {
		b.end = time.Now().Add(total)
	}
	return b
}

func (b *budget) clock() time.Time {
	if b.now != nil {
		return b.now()
	}
	return time.Now()
}

// begin gives the first group its share of the time.
func (b *budget) begin(groups []group) {
	if b.end.IsZero() {
		return
	}
	all := time.Duration(0)
	for _, g := range groups {
		all += g.takes()
	}
	now := b.clock()
	part := float64(groups[0].takes()) / float64(all)
	b.group = now.Add(time.Duration(float64(max(0, b.end.Sub(now))) * part))
}

// takes returns roughly how long minRounds take on two cores.
func (g group) takes() time.Duration { return max(g.about, time.Second) }

// affords reports whether the group has time for something that takes this long.
func (b *budget) affords(takes time.Duration) bool {
	return b.end.IsZero() || !b.clock().Add(takes).After(b.group)
}

// over reports whether the run must end.
func (b *budget) over() bool { return !b.end.IsZero() && !b.clock().Before(b.end) }

// unjudged returns why a row cannot be judged, or "": the machine was busy, and the floor lies between the worst and
// the best case of the ratio; or the time of the run was over.
func (o *outcome) unjudged() string {
	switch {
	case o.missing != "" || o.err != nil || len(o.broken) > 0:
		return ""
	case o.short:
		return "no time left"
	case o.noisy && o.worst < o.floor && o.best >= o.floor:
		return "too noisy: between " + number(o.worst) + " and " + number(o.best)
	}
	return ""
}

// status returns the program's exit code: 1 if a row is below its floor, or failed; otherwise 3 if one could not be
// judged.
func status(outcomes []outcome) (code int) {
	for _, o := range outcomes {
		switch {
		case o.below():
			return 1
		case o.unjudged() != "":
			code = 3
		}
	}
	return code
}

// ratio computes a row's ratio, choosing each side's value with over if the ratio grows with it, and with under
// otherwise.
func (r *row) ratio(found map[string]*series, over, under func([]float64) float64) float64 {
	ours, rival := over, under
	value := 1.0
	if r.lower {
		ours, rival = under, over
	}
	times := func(name string, pick func([]float64) float64, grows bool) {
		s := found[name]
		switch {
		case name == "" || s == nil:
		case grows:
			value *= pick(s.values)
		default:
			value /= pick(s.values)
		}
	}
	times(r.ours, ours, !r.lower)
	times(r.rival, rival, r.lower)
	times(r.oursBase, under, false)
	times(r.rivalBase, over, true)
	return value
}

// isNoisyRow reports whether one of a row's sides was noisy. A side that slows down from round to round under its own
// load does not count.
func isNoisyRow(r row, found map[string]*series) bool {
	return slices.ContainsFunc([]string{r.ours, r.rival, r.oursBase, r.rivalBase}, func(name string) bool {
		s := found[name]
		return s != nil && s.isNoisy() && !s.fell()
	})
}
