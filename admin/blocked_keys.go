package admin

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// BlockedKeys lists the first message of each blocked key that fits the filter, oldest first: the messages that
// Skip would discard. It returns at most limit messages, and whether there are more. It returns the errors of
// Skip.
func (a *Admin) BlockedKeys(ctx context.Context, f Filter, limit int) (list []Message, more bool, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("heads: %w", err)
		}
	}()
	if limit < 1 || limit > maxPage {
		return nil, false, invalid("admin: the limit is %d: use 1 to %d", limit, maxPage)
	}
	f.All = true
	act := Action{Filter: f, DryRun: true}
	s, states, err := a.As("nobody").check(skip, &act) // it is not recorded
	if err != nil {
		return nil, false, err
	}
	d := doing{
		Admin: a, verb: skip, act: act, source: s, result: &Result{}, asked: asked{upto: math.MaxInt64}, left: math.MaxInt64,
	}
	var places []place
	for t := d.together(states)[0]; !t.ended() && len(places) <= limit; {
		batch, err := d.next(ctx, t)
		if err != nil {
			return nil, false, err
		}
		places = append(places, batch...)
	}
	more = len(places) > limit
	list, err = s.show(ctx, places[:min(limit, len(places))])
	return list, more, err
}

// heads returns, in id order, the messages found by a walk that come first in their keys and match the filter.
func (d *doing) heads(ctx context.Context, w *walk, all []found) ([]place, error) {
	if d.keys == nil {
		d.keys = map[string]int64{}
		if w.state == Dead { // an older failing message comes first
			if err := d.recordFailing(ctx, w.upto); err != nil {
				return nil, err
			}
		}
	}
	var ids []string
	for _, m := range all {
		if m.key == "" {
			continue
		}
		if first, known := d.keys[m.key]; known && first < m.ID {
			continue
		}
		d.keys[m.key] = m.ID
		if id := strconv.FormatInt(m.ID, 10); len(d.act.Filter.IDs) == 0 || slices.Contains(d.act.Filter.IDs, id) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	f := d.act.Filter
	f.IDs = ids
	named := newWalk(f, w.state)
	named.want, named.batch = len(ids)+1, int64(len(ids)+1)
	fit, err := named.next(ctx, d.source)
	return placesOf(fit), err
}

// recordFailing records the first failing message of each key.
func (d *doing) recordFailing(ctx context.Context, upto int64) error {
	w := newWalk(Filter{Key: d.act.Filter.Key}, Failing)
	w.upto = upto
	for w.from != nil {
		w.batch, w.want = maxStep, maxStep
		all, err := w.next(ctx, d.source)
		if err != nil {
			return err
		}
		for _, m := range all {
			if _, known := d.keys[m.key]; !known {
				d.keys[m.key] = m.ID
			}
		}
	}
	return nil
}

func placesOf(all []found) []place {
	places := make([]place, len(all))
	for i, m := range all {
		places[i] = m.place
	}
	return places
}
