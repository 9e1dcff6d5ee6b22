package admin

import (
	"context"
	"slices"
	"testing"
)

// sparse is a table in which a step reads a few rows and returns few of them, like a filter among others' messages.
type sparse struct {
	ids   map[State][]int64
	batch int64
}

func (s sparse) step(_ context.Context, w *walk) (list []found, next *place, err error) {
	upto := w.from.ID + s.batch
	for _, id := range s.ids[w.state] {
		if id > w.from.ID && id <= upto {
			list = append(list, found{place: place{ID: id}})
			if len(list) == w.want {
				return list, &list[len(list)-1].place, nil
			}
		}
	}
	if upto >= 1000 {
		return list, nil, nil
	}
	return list, &place{ID: upto}, nil
}

// TestTogetherWaitsForEachWalk: a message is returned only when every state has been read up to its id. Dead and
// failing messages of a key are interleaved, more than a batch of them, and the dead ones are far behind others' that
// do not match.
func TestTogetherWaitsForEachWalk(t *testing.T) {
	ids := map[State][]int64{}
	var want []int64
	for id := int64(500); id < 540; id++ {
		state := Dead
		if id%3 == 0 {
			state = Failing
		}
		ids[state] = append(ids[state], id)
		want = append(want, id)
	}
	ids[Failing] = append([]int64{7}, ids[Failing]...)
	want = append([]int64{7}, want...)
	for _, step := range []int64{1, 13, 64, 2000} {
		tt := &together{states: []State{Dead, Failing}, found: make([][]found, 2)}
		for _, s := range tt.states {
			tt.walks = append(tt.walks, &walk{state: s, from: &place{}, filter: Filter{In: Outbox}})
		}
		var got []int64
		for !tt.ended() {
			list, err := tt.next(t.Context(), sparse{ids: ids, batch: step}, 4)
			if err != nil {
				t.Fatal(err)
			}
			if len(list) > 4 {
				t.Fatalf("%d messages in a batch of 4", len(list))
			}
			for _, f := range list {
				got = append(got, f.ID)
			}
		}
		if !slices.Equal(want, got) {
			t.Errorf("steps of %d rows: %v\nwant %v", step, got, want)
		}
	}
}
