package main

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// ticking is a clock that is advanced by rounds.
type ticking struct{ now time.Time }

func (c *ticking) round(takes time.Duration, values ...float64) func(context.Context) (measured, error) {
	n := 0
	return func(context.Context) (measured, error) {
		c.now = c.now.Add(takes)
		n++
		return measured{value: values[n%len(values)]}, nil
	}
}

func (c *ticking) bench(total time.Duration, rounds int) *bench {
	return &bench{rounds: rounds, begun: time.Now(), budget: budget{now: func() time.Time {
		return c.now
	}, end: c.now.Add(total)}}
}

func pair(about time.Duration, ours, rival func(context.Context) (measured, error)) group {
	return group{
		about: about,
		rows:  []row{{name: "row", ours: "ours", rival: "rival", floor: 0.8}},
		sides: func(context.Context) ([]side, func(), error) {
			return []side{{name: "ours", run: ours}, {name: "rival", run: rival}}, nil, nil
		},
	}
}

// TestBudget: groups share the time of a run, unused time goes to later ones, and rounds are repeated only within it.
func TestBudget(t *testing.T) {
	clock := &ticking{now: time.Unix(1e9, 0)}
	b := clock.bench(10*time.Minute, 7)
	begun := clock.now
	at := func() time.Duration { return clock.now.Sub(begun) }
	quick := clock.round(time.Second, 100)
	slow := clock.round(20*time.Second, 100)
	noisy := clock.round(15*time.Second, 100, 20, 300, 10)
	groups := []group{
		pair(time.Minute, quick, quick), pair(time.Minute, slow, slow), pair(time.Minute, noisy, quick),
		pair(3*time.Minute, quick, quick),
	}
	var outcomes []outcome
	ends := make([]time.Duration, len(groups))
	for i, g := range groups {
		b.budget.begin(groups[i:])
		outcomes = append(outcomes, b.measure(t.Context(), g, g.rows)...)
		ends[i] = at()
	}
	if ends[0] != 14*time.Second {
		t.Errorf("seven quick rounds of two sides end after %s", ends[0])
	}
	// Its share is a fifth of the rest, about 117 s, of which two rounds take 80 s.
	if took := ends[1] - ends[0]; took != 80*time.Second {
		t.Errorf("slow rounds take %s", took)
	}
	// A quarter of the rest, 126 s: seven rounds of 16 s, and no time for one more.
	if took := ends[2] - ends[1]; took != 7*16*time.Second ||
		!strings.Contains(outcomes[2].remarks(), "no time to repeat") {
		t.Errorf("noisy rounds take %s", took)
	}
	for i, why := range []string{"", "", "too noisy", ""} {
		if got := outcomes[i].unjudged(); !strings.HasPrefix(got, why) || why == "" && got != "" {
			t.Errorf("row %d is not judged, as it is %q, want %q", i, got, why)
		}
	}
	if code := status(outcomes); code != 3 {
		t.Errorf("status %d", code)
	}
}

// TestBudgetIsOver: a group that does not fit into the run ends it, with a message.
func TestBudgetIsOver(t *testing.T) {
	clock := &ticking{now: time.Unix(1e9, 0)}
	b := clock.bench(time.Minute, 7)
	slow := clock.round(40*time.Second, 100)
	groups := []group{pair(time.Minute, slow, slow), pair(time.Minute, slow, slow)}
	for i, g := range groups {
		b.budget.begin(groups[i:])
		o := b.measure(t.Context(), g, g.rows)[0]
		if o.unjudged() != "no time left" || o.verdict() != "not judged" || o.ratio() != "n/a" || o.below() {
			t.Errorf("row %d: %q, %s, %s, %v", i, o.unjudged(), o.verdict(), o.ratio(), o.below())
		}
	}
	if clock.now.Sub(time.Unix(1e9, 0)) != 80*time.Second {
		t.Errorf("it ended at %s", clock.now)
	}
	clock = &ticking{now: time.Unix(1e9, 0)}
	b = clock.bench(time.Second, 7)
	lasting := &madeUp{values: []float64{100}}
	g := group{rows: []row{{name: "row", ours: "ours"}}, sides: func(context.Context) ([]side, func(), error) {
		clock.now = clock.now.Add(time.Second)
		return []side{{name: "ours", lasting: lasting}}, nil, nil
	}}
	if o := b.measure(t.Context(), g, g.rows)[0]; o.unjudged() != "no time left" || lasting.ran != 0 ||
		lasting.ended != 0 {
		t.Errorf("a lasting side ran %d rounds: %q", lasting.ran, o.unjudged())
	}
}

// TestNoBudget: without a budget there are as many rounds as requested.
func TestNoBudget(t *testing.T) {
	clock := &ticking{now: time.Unix(1e9, 0)}
	b := &bench{rounds: 7, begun: time.Now()}
	g := pair(time.Second, clock.round(time.Hour, 100), clock.round(time.Hour, 100))
	b.budget.begin([]group{g})
	o := b.measure(t.Context(), g, g.rows)[0]
	if took := clock.now.Sub(time.Unix(1e9, 0)); took != 14*time.Hour || o.verdict() != "aim" {
		t.Errorf("%s, %s", took, o.verdict())
	}
}

// TestJudgementOfNoise: a noisy row is judged only if its worst case is above the floor or its best case below it.
func TestJudgementOfNoise(t *testing.T) {
	for name, tt := range map[string]struct {
		ours, rival []float64
		row         row
		says        string
		code        int
	}{
		"quiet, above":        {[]float64{100, 110, 90}, []float64{100, 100, 100}, row{floor: 0.8}, "aim", 0},
		"quiet, below":        {[]float64{70, 70, 71}, []float64{100, 100, 100}, row{floor: 0.8}, "BELOW", 1},
		"noisy, above":        {[]float64{100, 20, 110}, []float64{100, 100, 100}, row{floor: 0.8}, "not judged", 3},
		"noisy, below":        {[]float64{100, 20, 30}, []float64{100, 100, 100}, row{floor: 0.8}, "not judged", 3},
		"noisy, always above": {[]float64{1000, 200, 1100}, []float64{100, 100, 100}, row{floor: 0.8}, "aim", 0},
		"noisy, always below": {[]float64{50, 20, 60}, []float64{100, 100, 100}, row{floor: 0.8}, "BELOW", 1},
		"rival noisy":         {[]float64{100, 100, 100}, []float64{100, 200, 100}, row{floor: 0.8}, "not judged", 3},
		"less is better":      {[]float64{10, 10, 10}, []float64{100, 20, 110}, row{floor: 1, lower: true}, "aim", 0},
		"less is better, unclear": {
			[]float64{10, 30, 10}, []float64{20, 20, 20}, row{floor: 1, lower: true}, "not judged", 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.row.name, tt.row.ours, tt.row.rival = "row", "ours", "rival"
			o := judge(tt.row, map[string]*series{
				"ours": {side: side{name: "ours"}, values: tt.ours}, "rival": {side: side{name: "rival"}, values: tt.rival},
			})
			if o.verdict() != tt.says || status([]outcome{o}) != tt.code {
				t.Errorf("%s, status %d: %s", o.verdict(), status([]outcome{o}), o.remarks())
			}
			var table strings.Builder
			(&bench{begun: time.Now()}).printTable(&table, []outcome{o})
			if said := strings.Contains(table.String(), "not judged: row"); said != (tt.code == 3) {
				t.Errorf("the table says\n%s", table.String())
			}
		})
	}
	found := map[string]*series{
		"a": {values: []float64{8, 10}}, "b": {values: []float64{4, 5}}, "c": {values: []float64{2}},
		"d": {values: []float64{3, 6}},
	}
	r := row{ours: "a", rival: "b", oursBase: "c", rivalBase: "d"}
	if worst, best := r.ratio(found, slices.Min, slices.Max),
		r.ratio(found, slices.Max, slices.Min); math.Abs(worst-2.4) > 1e-9 || math.Abs(best-7.5) > 1e-9 {
		t.Errorf("from %v to %v", worst, best)
	}
	below := outcome{row: row{floor: 1}}
	if status([]outcome{{row: row{floor: 1}, short: true}, below}) != 1 {
		t.Error("a row below its floor takes precedence over an unjudged one")
	}
}
