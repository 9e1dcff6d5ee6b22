package fleet

import "time"

// Status is a database that has its turn again and again, as far as a Selection sees it.
type Status struct {
	Key       string
	Handled   int       // messages that its last turn handled
	Full      bool      // and it handled as many as it could
	LastTurn  time.Time // when its last turn began; zero before the first
	LastError error     // of its last turn
	Busy      bool      // it has its turn, or as many messages at work as it may have
}

// Selection chooses whose turn it is. Next gets those that may have messages, sorted by key, and the one whose turn has
// ended last (the zero Status before the first turn), which need not be among them. It returns an index of list, of
// which at least one is not Busy; anything else counts as the choice of RoundRobin. To choose one that is Busy is to
// wait for it, for a quarter of a second at most: then RoundRobin's choice has its turn. It is called by one goroutine
// at a time.
type Selection interface {
	Next(list []Status, last Status) int
}

// RoundRobin has all databases take turns: it chooses the one whose turn is the longest ago, of those that are not
// Busy.
func RoundRobin() Selection { return roundRobin{} }

type roundRobin struct{}

func (roundRobin) Next(list []Status, _ Status) int {
	first := -1
	for i, s := range list {
		if !s.Busy && (first < 0 || s.LastTurn.Before(list[first].LastTurn)) {
			first = i
		}
	}
	return first
}

// DrainFirst stays with a database for as long as its turns bring messages, and then goes on as RoundRobin does. While
// such a database is Busy the others wait for it, but for no longer than a quarter of a second at a time: one that
// hangs stops no other.
func DrainFirst() Selection { return drainFirst{} }

type drainFirst struct{}

func (drainFirst) Next(list []Status, last Status) int {
	chosen := -1
	for i, s := range list {
		if s.Busy || s.Handled > 0 {
			if s.Key == last.Key {
				return i
			}
			if chosen < 0 {
				chosen = i
			}
		}
	}
	if chosen >= 0 {
		return chosen
	}
	return roundRobin{}.Next(list, last)
}
