package idle

import (
	"maps"
	"math/rand/v2"
	"testing"
	"time"
)

// server is a table whose row ids come from a sequence, and transactions that get their id before the ids of their
// rows.
type server struct {
	rand    *rand.Rand
	xid, id int64 // the next ones
	done    int64 // the highest completed transaction id
	open    map[int64][]int64
	rows    map[int64]bool // committed and ready
}

func (s *server) step() {
	switch s.rand.IntN(6) {
	case 0, 1:
		s.open[s.xid] = nil
		s.xid++
	case 2, 3:
		for x := range s.open {
			s.open[x] = append(s.open[x], s.id)
			s.id++
			break
		}
	default:
		s.end()
	}
}

// end commits a transaction, or rolls it back in part.
func (s *server) end() {
	for x, ids := range s.open {
		delete(s.open, x)
		s.done = max(s.done, x)
		for _, id := range ids {
			if s.rand.IntN(4) > 0 {
				s.rows[id] = true
			}
		}
		return
	}
}

// poll returns the statement's result. The sequence is read some time after the snapshot, and the next transaction id
// after that.
func (s *server) poll(m *Tracker, all bool) Poll {
	number, known := m.Number()
	all = all || !known
	l := Poll{Oldest: s.done + 1, All: all, Due: -1}
	for x := range s.open {
		l.Oldest = min(l.Oldest, x)
	}
	visible := maps.Clone(s.rows)
	for range s.rand.IntN(3) {
		s.step()
	}
	l.Number = s.id - 1
	for id := range visible {
		l.Ready = l.Ready || (all || l.Number != number && id > number)
	}
	for range s.rand.IntN(3) {
		s.step()
	}
	l.Next = s.xid
	return l
}

// misses reports whether polls miss a committed row although all transactions have ended.
func misses(seed uint64, spoil func(*Tracker, *Poll, *server)) bool {
	s := &server{rand: rand.New(rand.NewPCG(seed, 0)), xid: 1, id: 1, open: map[int64][]int64{}, rows: map[int64]bool{}}
	var m Tracker
	for range 100 {
		for range s.rand.IntN(4) {
			s.step()
		}
		l := s.poll(&m, false)
		if spoil != nil {
			spoil(&m, &l, s)
		}
		if m.Polled(l) { // it is read and emptied; transactions in progress follow later
			clear(s.rows)
		}
	}
	for len(s.open) > 0 {
		s.end()
	}
	for range 3 {
		if m.Polled(s.pollAtRest(&m)) {
			clear(s.rows)
		}
	}
	return len(s.rows) > 0
}

// pollAtRest is a poll while nothing happens.
func (s *server) pollAtRest(m *Tracker) Poll {
	number, known := m.Number()
	l := Poll{Number: s.id - 1, Oldest: s.xid, Next: s.xid, All: !known, Due: -1}
	for id := range s.rows {
		l.Ready = l.Ready || (!known || l.Number != number) && (!known || id > number)
	}
	return l
}

func TestIdleMissesNothing(t *testing.T) {
	for seed := range uint64(1000) {
		if misses(seed, nil) {
			t.Fatalf("seed %d: a row is not found", seed)
		}
	}
}

// Variants of the rules that seem equivalent but lose rows in the same schedules.
func TestIdleControls(t *testing.T) {
	for name, spoil := range map[string]func(*Tracker, *Poll, *server){
		"the number is remembered immediately":               func(_ *Tracker, l *Poll, _ *server) { l.Oldest = l.Next },
		"the highest completed id instead of the next":       func(_ *Tracker, l *Poll, s *server) { l.Next = s.done + 1 },
		"the next id is read before the number and snapshot": func(_ *Tracker, l *Poll, _ *server) { l.Next -= 3 },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(1000) {
				if misses(seed, spoil) {
					return
				}
			}
			t.Error("nothing was lost, so the test would not find a fault")
		})
	}
}

func TestIdleRemembers(t *testing.T) {
	var m Tracker
	ask := func(l Poll, work bool, number int64) {
		t.Helper()
		if got := m.Polled(l); got != work {
			t.Errorf("work is %v", got)
		}
		if n, known := m.Number(); known != (number >= 0) || known && n != number {
			t.Errorf("%d is remembered (%v), want %d", n, known, number)
		}
	}
	nothing := time.Duration(-1)
	ask(Poll{Number: 5, Oldest: 9, Next: 10, All: true, Due: nothing}, false, -1)
	ask(Poll{Number: 5, Oldest: 10, Next: 10, All: true, Due: nothing}, false, 5)
	ask(Poll{Number: 7, Oldest: 10, Next: 12, Due: nothing}, false, 5)
	ask(Poll{Number: 7, Oldest: 11, Next: 14, Due: nothing}, false, 5)
	ask(Poll{Number: 8, Oldest: 12, Next: 15, Due: nothing}, false, 7) // transactions begun by the first poll at 7
	ask(Poll{Number: 9, Oldest: 12, Next: 15, Ready: true, Due: nothing}, true, 7)
	ask(Poll{Number: 9, Oldest: 15, Next: 15, Due: 0}, true, 7) // something is due
	ask(Poll{Number: 9, Oldest: 15, Next: 15, Due: time.Second}, false, 9)
	ask(Poll{Number: 2, Oldest: 15, Next: 15, Due: nothing}, false, -1) // the sequence was restarted
	ask(Poll{Number: 2, Oldest: 15, Next: 15, All: true, Due: nothing}, false, 2)
}
