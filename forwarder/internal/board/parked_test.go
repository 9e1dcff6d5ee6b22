package board

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestIDs(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var s ids
		var want []int64
		top := int64(1 + rng.IntN(2000))
		for range 2000 {
			id := 1 + rng.Int64N(top)
			if len(want) > 0 && rng.IntN(3) == 0 {
				id = want[0]
			}
			i, found := slices.BinarySearch(want, id)
			switch insert := rng.IntN(2) == 0; {
			case insert && s.insert(id) == found, !insert && s.remove(id) != found:
				t.Fatalf("insert %v of %d, which is there: %v", insert, id, found)
			case insert && !found:
				want = slices.Insert(want, i, id)
			case !insert && found:
				want = slices.Delete(want, i, i+1)
			}
			if !slices.Equal(s.all(), want) || s.len() != len(want) || len(want) > 0 &&
				(s.lowest() != want[0] || s.highest() != want[len(want)-1]) {
				t.Fatalf("have %v, want %v", s.all(), want)
			}
		}
	}
}
