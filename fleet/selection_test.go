package fleet_test

import (
	"slices"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/fleet"
)

// turns gives each database as many messages as its name has in the list, and returns the order of turns.
func turns(sel fleet.Selection, pending map[string]int, n int) (order []string) {
	status := map[string]fleet.Status{}
	var last fleet.Status
	at := time.Unix(0, 0)
	for range n {
		var idle []fleet.Status
		for _, key := range []string{"a", "b", "c"} {
			s := status[key]
			s.Key = key
			idle = append(idle, s)
		}
		s := idle[sel(idle, last)]
		at = at.Add(time.Second)
		s.LastTurn, s.Handled = at, min(pending[s.Key], 1)
		pending[s.Key] -= s.Handled
		status[s.Key], last = s, s
		order = append(order, s.Key)
	}
	return order
}

func TestFleetSelection(t *testing.T) {
	for name, test := range map[string]struct {
		sel  fleet.Selection
		want []string
	}{
		"round robin": {fleet.RoundRobin, []string{"a", "b", "c", "a", "b", "c", "a"}},
		"drain first": {fleet.DrainFirst, []string{"a", "a", "a", "b", "c", "c", "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := turns(test.sel, map[string]int{"a": 2, "c": 1}, 7); !slices.Equal(got, test.want) {
				t.Errorf("%v, and not %v", got, test.want)
			}
		})
	}
}

// DrainFirst waits for its current database while that is busy; RoundRobin does not.
func TestFleetDrainFirstWhileItIsBusy(t *testing.T) {
	list := []fleet.Status{
		{Key: "a", Busy: true, Handled: 1, LastTurn: time.Unix(1, 0)}, {Key: "b", LastTurn: time.Unix(3, 0)},
		{Key: "c", LastTurn: time.Unix(2, 0)},
	}
	if i := fleet.DrainFirst(list, list[0]); i != 0 {
		t.Error(list[i].Key)
	}
	if i := fleet.DrainFirst(list, list[1]); i != 0 { // it returns to the one that it had to leave
		t.Error(list[i].Key)
	}
	if i := fleet.RoundRobin(list, list[0]); i != 2 {
		t.Error(list[i].Key)
	}
}
