package partitions

import (
	"math"
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
	of := func(from, to int64) Partition { return Partition{Range: Range{from, to}} }
	all := []Partition{of(math.MinInt64, 100), of(100, 200), of(300, 500)}
	for last, want := range map[int64][2]int{ // behind and ahead
		0: {0, 2}, 99: {0, 2}, 100: {1, 1}, 199: {1, 1}, 200: {2, 1}, 300: {2, 0}, 499: {2, 0}, 500: {3, 0},
	} {
		s := Set{Last: last, Partitions: all}
		if got := [2]int{len(s.Behind()), s.Ahead()}; got != want {
			t.Errorf("last id %d: %v, want %v", last, got, want)
		}
	}
	for last, want := range map[int64]int{198: 2, 199: 0, 248: 0, 249: 2, 299: 2, 300: 1} {
		s := Set{Last: last, Partitions: []Partition{of(math.MinInt64, 200), of(300, 350), of(350, 400)}}
		if got := s.Ahead(); got != want {
			t.Errorf("last id %d: %d ahead, want %d", last, got, want)
		}
	}
	for _, c := range []struct {
		partitions []Partition
		size       int64
	}{
		{nil, 0}, {all[:1], 100}, {all, 200}, {[]Partition{of(7, math.MaxInt64)}, 0},
		{[]Partition{of(math.MinInt64, math.MaxInt64)}, 0},
	} {
		if size := (Set{Partitions: c.partitions}).Size(); size != c.size {
			t.Errorf("%v: size %d", c.partitions, size)
		}
	}
}
