package main

import (
	"context"
	"slices"
	"strings"
	"testing"
)

// madeUp is a side with given rounds, of which the last is repeated forever.
type madeUp struct {
	values       []float64
	ran          int
	begun, ended int
}

func (m *madeUp) round(context.Context) (measured, error) {
	v := m.values[min(m.ran, len(m.values)-1)]
	m.ran++
	return measured{value: v}, nil
}

func (m *madeUp) begin(context.Context) error           { m.begun = m.ran; return nil }
func (m *madeUp) end(context.Context) (measured, error) { m.ended = m.ran; return measured{}, nil }
func (m *madeUp) close()                                {}

// TestNoise: rounds on a busy machine are repeated, on all sides, and the row says so. Slowdowns that a side causes
// itself are kept.
func TestNoise(t *testing.T) {
	steady := slices.Repeat([]float64{100}, 7)
	halving := []float64{12_800, 6400, 3200, 1600, 800, 400, 200, 100, 50, 25, 12, 6, 3, 1}
	tests := map[string]struct {
		values  []float64
		lasting bool
		want    float64
		again   int
		says    string
	}{
		"quiet":              {[]float64{100, 120, 80}, false, 100, 0, ""},
		"one round was slow": {[]float64{100, 20, 110}, false, 110, 1, "noisy machine, rounds repeated: 1"},
		"one round was fast": {[]float64{100, 300, 110}, false, 110, 1, "noisy machine, rounds repeated: 1"},
		"a slow minute":      {[]float64{20, 30, 100}, false, 100, 2, "noisy machine, rounds repeated: 2"},
		"never quiet": {
			[]float64{100, 20, 90, 10, 100, 200}, false, 90, 3, "noisy machine, still so after repeated rounds: 3",
		},
		"lasting, quiet":           {append(steady, 100, 90, 80), true, 90, 0, ""},
		"lasting, slow in between": {[]float64{100, 20, 100, 20, 30, 20, 100, 100, 90, 80}, true, 90, 0, ""},
		"lasting, one was slow":    {append(steady, 100, 20, 100, 90), true, 100, 1, "noisy machine, rounds repeated: 1"},
		"lasting, a slow moment": {
			append(steady, 100, 40, 30, 100, 90), true, 100, 2, "noisy machine, rounds repeated: 2",
		},
		"lasting, up and down":  {append(steady, 130, 75, 100, 76), true, 76, 1, "noisy machine, rounds repeated: 1"},
		"lasting, a slow trend": {[]float64{1000, 500, 333, 250, 200, 167, 143, 125, 111, 100}, true, 111, 0, ""},
		"lasting, slow from then on": {
			append(steady, 100, 100, 20), true, 20, 2, "slower from round to round, also when repeated: 2",
		},
		"lasting, slow just before": {
			append(steady, 100, 22, 18, 20), true, 20, 1, "slower from round to round, also when repeated: 1",
		},
		"lasting, slower and slower": {halving, true, 6, 3, "slower from round to round, also when repeated: 3"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			ours, rival := &madeUp{values: tt.values}, &madeUp{values: []float64{100}}
			sides := []side{{name: "ours", run: ours.round}, {name: "rival", run: rival.round}}
			rounds := 3
			if tt.lasting {
				rounds = lastingRounds
				sides = []side{{name: "ours", lasting: ours}, {name: "rival", lasting: rival}}
			}
			g := group{sides: func(context.Context) ([]side, func(), error) { return sides, nil, nil }}
			b := &bench{rounds: 3, begun: running.begun}
			o := b.measure(t.Context(), g, []row{{name: "row", ours: "ours", rival: "rival"}})[0]
			if o.err != nil {
				t.Fatal(o.err)
			}
			if o.oursMed != tt.want || o.value != tt.want/100 {
				t.Errorf("ours is %v, the ratio %v, want %v", o.oursMed, o.value, tt.want)
			}
			for name, m := range map[string]*madeUp{"ours": ours, "rival": rival} {
				if m.ran != rounds+tt.again {
					t.Errorf("%s ran %d rounds, want %d and %d more", name, m.ran, rounds, tt.again)
				}
				if tt.lasting && (m.begun != 0 || m.ended != m.ran) {
					t.Errorf("%s began after %d rounds, and ended after %d", name, m.begun, m.ended)
				}
			}
			notes := strings.Join(o.notes, "\n")
			if says := strings.Contains(notes, "ours: "+tt.says); tt.says != "" && !says || tt.says == "" &&
				strings.Contains(notes, "repeated") {
				t.Errorf("the row says %q, want %q", notes, tt.says)
			}
		})
	}
}
