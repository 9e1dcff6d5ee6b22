package leaves

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func TestBounds(t *testing.T) {
	for text, want := range map[string]Range{
		"FOR VALUES FROM (MINVALUE) TO ('4000000')":      {math.MinInt64, 4_000_000},
		"FOR VALUES FROM ('4000000') TO ('8000000')":     {4_000_000, 8_000_000},
		"FOR VALUES FROM ('-5') TO (MAXVALUE)":           {-5, math.MaxInt64},
		"FOR VALUES FROM (7) TO ('9223372036854775806')": {7, math.MaxInt64 - 1},
	} {
		if r, err := parse(text); err != nil || r != want {
			t.Errorf("%s: %v, %v", text, r, err)
		}
	}
	for _, text := range []string{
		"", "DEFAULT", "FOR VALUES IN ('1')", "FOR VALUES WITH (modulus 4, remainder 0)",
		"FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')", "FOR VALUES FROM ('1', '2') TO ('3', '4')",
	} {
		if r, err := parse(text); err == nil || !strings.Contains(err.Error(), "are not an id range") {
			t.Errorf("%s: %v, %v", text, r, err)
		}
	}
}

func TestSet(t *testing.T) {
	leaf := func(from, to int64) Leaf { return Leaf{Range: Range{from, to}} }
	all := []Leaf{leaf(math.MinInt64, 100), leaf(100, 200), leaf(300, 500)}
	for last, want := range map[int64][2]int{ // the current one, and how many are ahead
		0: {0, 2}, 99: {0, 2}, 100: {1, 1}, 199: {1, 1}, 200: {2, 1}, 300: {2, 0}, 499: {2, 0}, 500: {3, 0},
	} {
		s := Set{Last: last, Leaves: all}
		if got := [2]int{s.Current(), s.Ahead()}; got != want {
			t.Errorf("last id %d: %v, want %v", last, got, want)
		}
	}
	for _, c := range []struct {
		leaves []Leaf
		size   int64
		gaps   []Range
	}{
		{nil, 0, []Range{{math.MinInt64, math.MaxInt64}}},
		{all[:1], 100, []Range{{100, math.MaxInt64}}}, // the first leaf begins nowhere, and counts from 0
		{all, 200, []Range{{200, 300}, {500, math.MaxInt64}}},
		{[]Leaf{leaf(7, math.MaxInt64)}, 0, []Range{{math.MinInt64, 7}}},
		{[]Leaf{leaf(math.MinInt64, math.MaxInt64)}, 0, nil},
	} {
		s := Set{Leaves: c.leaves}
		if s.Size() != c.size || !slices.Equal(s.Gaps(), c.gaps) {
			t.Errorf("%v: size %d, gaps %v", c.leaves, s.Size(), s.Gaps())
		}
	}
}
