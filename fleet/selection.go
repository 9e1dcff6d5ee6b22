package fleet

import "time"

// Status is a database that has its turn again and again, as far as a Selection sees it.
type Status struct {
	Key       string
	Handled   int       // messages that its last turn brought
	Full      bool      // and it brought as many as it could
	LastTurn  time.Time // when its last turn began; zero before the first
	LastError error     // of its last turn
}

// Selection chooses whose turn it is. Next gets those that are free, sorted by key, and the one whose turn has ended last (the
// zero Status before the first turn), which need not be among them. It returns an index of idle, which is not empty; anything
// else counts as 0. It is called by one goroutine at a time.
type Selection interface {
	Next(idle []Status, last Status) int
}

// RoundRobin has all databases take turns: it chooses the one whose turn is the longest ago.
func RoundRobin() Selection { return roundRobin{} }

type roundRobin struct{}

func (roundRobin) Next(idle []Status, _ Status) int {
	first := 0
	for i, s := range idle {
		if s.LastTurn.Before(idle[first].LastTurn) {
			first = i
		}
	}
	return first
}

// DrainFirst stays with a database for as long as its turns bring messages, and then goes on as RoundRobin does.
func DrainFirst() Selection { return drainFirst{} }

type drainFirst struct{}

func (drainFirst) Next(idle []Status, last Status) int {
	if last.Handled > 0 {
		for i, s := range idle {
			if s.Key == last.Key {
				return i
			}
		}
	}
	return roundRobin{}.Next(idle, last)
}
