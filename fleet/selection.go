package fleet

import "time"

// Status describes a database to a Selection.
type Status struct {
	Key       string
	Handled   int       // messages handled in its last turn
	Full      bool      // it handled as many as it could
	LastTurn  time.Time // when its last turn began; zero before the first
	LastError error     // of its last turn
	Busy      bool      // it is having a turn, or has as many messages in flight as allowed
}

// Selection chooses whose turn it is. It gets the databases that may have messages, sorted by key, and the database of
// the last turn (the zero Status before the first), which may be missing from the list. It returns an index of list, of
// which at least one is not Busy; an invalid index counts as RoundRobin's choice. To choose a Busy database is to wait
// for it, for a quarter of a second at most; then RoundRobin's choice has its turn. It is called by one goroutine at a
// time.
type Selection func(list []Status, last Status) int

// RoundRobin is the Selection of the database, not Busy, whose last turn is the longest ago.
func RoundRobin(list []Status, _ Status) int {
	first := -1
	for i, s := range list {
		if !s.Busy && (first < 0 || s.LastTurn.Before(list[first].LastTurn)) {
			first = i
		}
	}
	return first
}

// DrainFirst is a Selection that stays with a database while its turns bring messages, and then continues like
// RoundRobin. It waits for a Busy database at most a quarter of a second at a time.
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
