package fleet

import "time"

// Status describes a database to a Selection.
type Status struct {
	Key       string
	Handled   int       // messages handled in the last turn
	Full      bool      // the last turn ended at its limit, so more messages are likely
	LastTurn  time.Time // when the last turn began; zero before the first
	LastError error     // of the last turn
	Busy      bool      // it is having a turn, or has as many messages in flight as allowed
}

// Selection chooses whose turn it is. It gets the databases that may have messages, sorted by key, and the database of
// the last turn (the zero Status before the first), which may be missing from the list. It returns an index of list; an
// invalid index means RoundRobin's choice. At least one database of list is not Busy. Choosing a Busy database waits
// for it for at most 250 ms; then it is RoundRobin's choice's turn. It is called by one goroutine at a time.
type Selection func(list []Status, last Status) int

// RoundRobin is a Selection that chooses, among the databases that are not Busy, the one with the least recent turn.
func RoundRobin(list []Status, _ Status) int {
	first := -1
	for i, s := range list {
		if !s.Busy && (first < 0 || s.LastTurn.Before(list[first].LastTurn)) {
			first = i
		}
	}
	return first
}

// DrainFirst is a Selection that stays with a database while its turns find messages, and then continues like
// RoundRobin. It waits for a Busy database for at most 250 ms at a time.
func DrainFirst(list []Status, last Status) int {
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
	return RoundRobin(list, last)
}
