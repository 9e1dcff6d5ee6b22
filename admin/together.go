package admin

import (
	"context"
	"math"
	"slices"
)

// together iterates over messages of several states. In the outbox it goes by id: messages of one key that one act
// requeues must fall due in that order, whatever their states were.
type together struct {
	states []State
	walks  []*walk   // by state
	found  [][]found // by state: found and not yet returned
}

// together returns the iterations to run one after another. Delayed and due messages are found in order of their times,
// so each has an iteration of its own.
func (d *doing) together(states []State) (list []*together) {
	merge := func(s State) bool { return d.act.Filter.In == Outbox && s != Delayed && s != due }
	var merged *together
	for _, state := range d.act.Filter.parts(states) {
		t := merged
		if t == nil || !merge(state) {
			t = &together{}
			list = append(list, t)
		}
		if merge(state) {
			merged = t
		}
		t.states, t.walks, t.found = append(t.states, state), append(t.walks, d.walk(state)), append(t.found, nil)
	}
	return list
}

// ended reports that no messages are left.
func (t *together) ended() bool {
	return !slices.ContainsFunc(t.walks, func(w *walk) bool { return w.from != nil }) &&
		!slices.ContainsFunc(t.found, func(f []found) bool { return len(f) > 0 })
}

// next returns at most want messages. The list may be empty although more follow.
func (t *together) next(ctx context.Context, s stepper, want int) (list []found, err error) {
	horizon := int64(math.MaxInt64) // id up to which all walks have read
	for i, w := range t.walks {
		if len(t.found[i]) == 0 && w.from != nil {
			w.want = want
			if t.found[i], err = w.next(ctx, s); err != nil {
				return nil, err
			}
		}
		if w.from != nil {
			horizon = min(horizon, w.from.ID)
		}
	}
	if len(t.walks) == 1 {
		list, t.found[0] = t.found[0], nil
		return list, nil
	}
	for len(list) < want {
		first := -1
		for i, f := range t.found {
			if len(f) > 0 && f[0].ID <= horizon && (first < 0 || f[0].ID < t.found[first][0].ID) {
				first = i
			}
		}
		if first < 0 {
			break
		}
		list, t.found[first] = append(list, t.found[first][0]), t.found[first][1:]
	}
	return list, nil
}
