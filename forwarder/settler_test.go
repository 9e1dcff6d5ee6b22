package forwarder

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace-go/watermill-outbox/forwarder/internal/dispatch"
)

func rowsOf(ids ...int64) (rows []*dispatch.Row) {
	for _, id := range ids {
		rows = append(rows, &dispatch.Row{ID: id})
	}
	return rows
}

func idsFrom(lo, hi int64) (ids []int64) {
	for id := lo; id <= hi; id++ {
		ids = append(ids, id)
	}
	return ids
}

func without(ids []int64, out ...int64) []int64 {
	return slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return slices.Contains(out, id) })
}

func TestSpanOf(t *testing.T) {
	for _, c := range []struct {
		name string
		ids  []int64
		want span
		rest int
	}{
		{"nothing", nil, span{}, 0},
		{"too few", idsFrom(1, minSpan-1), span{}, minSpan - 1},
		{"consecutive ids", idsFrom(11, 210), span{11, 210, nil, 200}, 0},
		{"gaps are left out", without(idsFrom(11, 210), 50, 51, 100), span{11, 210, []int64{50, 51, 100}, 197}, 0},
		{"too many gaps", without(idsFrom(1, 170), idsFrom(50, 59)...), span{1, 170, idsFrom(50, 59), 160}, 0},
		{"one gap too many", without(idsFrom(1, 170), idsFrom(50, 60)...), span{}, 159},
		{"published twice", append(idsFrom(1, 100), 50, 50), span{1, 100, nil, 100}, 0},
		{"the longest", append(append(idsFrom(1, 70), idsFrom(1000, 1100)...), 5000), span{1000, 1100, nil, 101}, 71},
	} {
		rand.Shuffle(len(c.ids), func(i, j int) { c.ids[i], c.ids[j] = c.ids[j], c.ids[i] })
		s, rest := spanOf(rowsOf(c.ids...))
		if s.lo != c.want.lo || s.hi != c.want.hi || s.rows != c.want.rows || !slices.Equal(s.out, c.want.out) ||
			len(rest) != c.rest {
			t.Errorf("%s: %+v, %d outside", c.name, s, len(rest))
		}
	}
}

// TestSpanLeavesOutWhatWasSentAgain: messages that an operator requeued must be settled individually, by their
// generation.
func TestSpanLeavesOutWhatWasSentAgain(t *testing.T) {
	rows := rowsOf(idsFrom(1, 200)...)
	rows[99].Generation = "1"
	s, rest := spanOf(rows)
	if s.lo != 1 || s.hi != 200 || !slices.Equal(s.out, []int64{100}) || s.rows != 199 || len(rest) != 1 ||
		rest[0].Generation != "1" {
		t.Errorf("%+v, %d outside", s, len(rest))
	}
}

// TestSpanSettlesNothingElse checks each id between the ends of spans of random rows.
func TestSpanSettlesNothingElse(t *testing.T) {
	spans := 0
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 0))
		rows, ours := []*dispatch.Row(nil), map[int64]bool{}
		gaps := rng.IntN(20)
		for id := int64(1); len(rows) < 400; id++ {
			if rng.IntN(100) < gaps {
				id += int64(rng.IntN(2 * maxGap))
			}
			rows, ours[id] = append(rows, &dispatch.Row{ID: id}), true
		}
		rng.Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
		s, rest := spanOf(rows)
		settled := int64(0)
		for id := s.lo; id <= s.hi && s.rows > 0; id++ {
			if slices.Contains(s.out, id) {
				continue
			}
			if settled++; !ours[id] {
				t.Fatalf("seed %d: %d is settled but was not published", seed, id)
			}
		}
		if settled != s.rows || int(settled)+len(rest) != len(rows) {
			t.Fatalf("seed %d: %d settled of %+v, %d outside", seed, settled, s, len(rest))
		}
		if settled > 0 {
			spans++
		}
	}
	if spans < 100 {
		t.Errorf("only %d spans", spans)
	}
}
