package fleet_test

import (
	"slices"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/fleet"
)

// turns gives each database as many messages as its name has in the list, and returns who had turns.
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
		s := idle[sel.Next(idle, last)]
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
		"round robin": {fleet.RoundRobin(), []string{"a", "b", "c", "a", "b", "c", "a"}},
		"drain first": {fleet.DrainFirst(), []string{"a", "a", "a", "b", "c", "c", "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := turns(test.sel, map[string]int{"a": 2, "c": 1}, 7); !slices.Equal(got, test.want) {
				t.Errorf("%v, and not %v", got, test.want)
			}
		})
	}
}

// Drain first goes on to another one while the one that it is at has its turn.
func TestFleetDrainFirstWhileItIsBusy(t *testing.T) {
	idle := []fleet.Status{{Key: "b", LastTurn: time.Unix(2, 0)}, {Key: "c", LastTurn: time.Unix(1, 0)}}
	if i := fleet.DrainFirst().Next(idle, fleet.Status{Key: "a", Handled: 1}); i != 1 {
		t.Error(idle[i].Key)
	}
}
