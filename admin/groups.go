package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/millrace-go/watermill-outbox/internal/text"
)

const maxTexts = 10_000 // different errors of all topics

// toGroup bounds the number of messages read: fewer than are counted, because their errors are read.
var toGroup = bounds{each: 10_000, all: 10_000}

// ErrorGroups groups dead and failing messages by their errors, largest group first. Errors that differ only in
// numbers, ids and quoted text are one group. Filter.States may be Dead or Failing; default both. It reads the newest
// 10,000 messages of each state; Count.More reports a larger group. To act on a group, set Filter.ErrorGroup to its ID.
func (a *Admin) ErrorGroups(ctx context.Context, f Filter) ([]ErrorGroup, error) {
	return a.groups(ctx, f, toGroup)
}

func (a *Admin) groups(ctx context.Context, f Filter, b bounds) ([]ErrorGroup, error) {
	s, states, err := a.prepare(f)
	if err != nil {
		return nil, err
	}
	if len(f.States) == 0 {
		states = []State{Dead, Failing}
	}
	groups := map[string]*ErrorGroup{}
	for _, state := range states {
		if state != Dead && state != Failing {
			return nil, invalid("admin: Filter.States has %q: only dead and failing messages have errors to group", state)
		}
		texts, err := s.errorTexts(ctx, f, state, b)
		if err != nil {
			return nil, fmt.Errorf("group errors: %w", err)
		}
		for _, t := range texts {
			t.text = text.Redact(t.text)
			if id := groupOfRedacted(t.text); f.ErrorGroup == "" || f.ErrorGroup == id {
				t.addTo(groups, id)
			}
		}
	}
	list := make([]ErrorGroup, 0, len(groups))
	for _, g := range groups {
		slices.Sort(g.Topics)
		list = append(list, *g)
	}
	slices.SortFunc(list, func(x, y ErrorGroup) int {
		return cmp.Or(cmp.Compare(y.Count.N, x.Count.N), y.Last.Compare(x.Last), cmp.Compare(x.ID, y.ID))
	})
	return list, nil
}

// errorText is messages of one topic or consumer with the same error.
type errorText struct {
	owner, text string
	count       Count
	first, last time.Time
}

// addTo counts the messages in their group. The text is redacted.
func (t errorText) addTo(groups map[string]*ErrorGroup, id string) {
	g := groups[id]
	if g == nil {
		g = &ErrorGroup{ID: id, Text: normal(t.text), First: t.first}
		groups[id] = g
	}
	g.Count.N += t.count.N
	g.Count.More = g.Count.More || t.count.More
	if t.first.Before(g.First) {
		g.First = t.first
	}
	if !t.last.Before(g.Last) {
		g.Last, g.Example = t.last, t.text
	}
	if !slices.Contains(g.Topics, t.owner) {
		g.Topics = append(g.Topics, t.owner)
	}
}
