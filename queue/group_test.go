package queue

import (
	"strconv"
	"testing"
	"time"

	"github.com/millrace-go/watermill-outbox/fleet"
)

// newTestMember is a database whose Dispatcher has four places and something to look for.
func newTestMember() *member {
	return &member{d: &Dispatcher{loop: newLoop(nil, loopConfig{places: 4, batch: 4, room: 1}, nil, func(*claimed) {})}}
}

// TestGroupLeavesNoPlaceFree: what a database has already counts against its share, and not against the places that are
// free.
func TestGroupLeavesNoPlaceFree(t *testing.T) {
	for _, test := range []struct{ taken, free, want int }{
		{0, 4, 2}, {0, 1, 1}, {1, 3, 1}, {1, 1, 1}, {2, 2, 0},
	} {
		m := newTestMember()
		m.d.loop.schedule.taken = test.taken
		turn, _ := m.turn(time.Now(), test.free, 2)
		if turn.n != test.want {
			t.Errorf("with %d of its 2 places taken and %d free it takes %d, not %d", test.taken, test.free, turn.n, test.want)
		}
	}
}

// TestADatabaseHasHalfOfAGroup: one database claims no more than half of what a Group handles at once, unless it is the
// only one.
func TestADatabaseHasHalfOfAGroup(t *testing.T) {
	for databases, want := range map[int]int{1: 4, 2: 2, 3: 2} {
		g := &Group{cfg: GroupConfig{Dispatcher: DispatcherConfig{Concurrency: 4}, MaxPolls: 4}, places: newPlaces(4)}
		g.targets = map[string]*target{}
		m := newTestMember()
		for i := range databases {
			key := strconv.Itoa(i)
			g.targets[key] = &target{key: key}
		}
		m.t = g.targets["0"]
		m.t.server = &server{places: newPlaces(noLimit)}
		g.members = []*member{m}
		ready, _, _ := g.candidates(time.Now())
		if len(ready) != 1 || ready[0].n != want {
			t.Errorf("of %d databases one claims %v, not %d", databases, ready, want)
		}
	}
}

// TestBurialsFreeNoPlaceOfAGroup: what is only buried had none.
func TestBurialsFreeNoPlaceOfAGroup(t *testing.T) {
	g, s := &Group{places: newPlaces(4)}, &server{places: newPlaces(4)}
	k := s.take(&g.places, 2)
	k.got(2)
	g.freed(&claimed{expired: true}, s)
	if g.places.taken != 2 || s.places.taken != 2 {
		t.Errorf("a burial leaves %d and %d places taken, not 2", g.places.taken, s.places.taken)
	}
	if g.freed(&claimed{}, s); g.places.taken != 1 || s.places.taken != 1 {
		t.Errorf("a message leaves %d and %d places taken, not 1", g.places.taken, s.places.taken)
	}
}

// TestGroupHearsOfPlacesThatAreFree: whoever is told that a place is free finds it free in the database whose it was,
// and not only in others, which would have its turn.
func TestGroupHearsOfPlacesThatAreFree(t *testing.T) {
	m := newTestMember()
	l, taken := m.d.loop, -1
	l.freed = func(*claimed) { l.step(func() { taken = l.schedule.taken }) }
	l.step(func() {
		l.schedule.looked(time.Now(), time.Now(), 1, false, nil)
		l.start(&claimed{loop: l}, time.Now())
	})
	l.handlers.Wait()
	if taken != 0 {
		t.Errorf("%d places are taken", taken)
	}
	select {
	case <-l.news:
	default:
		t.Error("nobody is told")
	}
}

// TestABrokenDatabaseHasNoTurnBeforeItsWaitIsOver, and then only to see whether it answers; Drain waits for nothing.
func TestABrokenDatabaseHasNoTurnBeforeItsWaitIsOver(t *testing.T) {
	m, now := newTestMember(), time.Now()
	for range 3 {
		wait := m.breaker.Failed(now)
		if turn, in := m.turn(now.Add(wait-1), 4, 4); turn.m != nil || in != 1 {
			t.Errorf("it has its turn %s before its wait of %s is over", in, wait)
		}
		now = now.Add(wait)
		if turn, _ := m.turn(now, 4, 4); turn.m != m || turn.n != 0 {
			t.Errorf("after its wait of %s it claims %d messages", wait, turn.n)
		}
	}
	m.breaker.Failed(now)
	m.d.loop.drains = append(m.d.loop.drains, &drain{})
	if turn, _ := m.turn(now, 4, 4); turn.m != m {
		t.Error("Drain waits for it")
	}
}

// noSelection chooses nothing.
type noSelection struct{}

func (noSelection) Next([]fleet.Status, fleet.Status) int { return -1 }

// TestGroupStarvesNobodyBehindABusyOne: those who have their turns instead of it take turns.
func TestGroupStarvesNobodyBehindABusyOne(t *testing.T) {
	g := &Group{cfg: GroupConfig{Selection: noSelection{}}}
	at := time.Now()
	list := []fleet.Status{{Key: "a", LastTurn: at.Add(-time.Hour), Busy: true}, {Key: "b"}, {Key: "c"}, {Key: "d"}}
	var order string
	for i := range 6 {
		chosen := g.next(list)
		order += list[chosen].Key
		list[chosen].LastTurn = at.Add(time.Duration(i) * time.Second)
	}
	if order != "bcdbcd" {
		t.Errorf("they have their turns in the order %s", order)
	}
}

// TestDatabasesOfAGroupAreCleanedAtTimesOfTheirOwn, though they begin together.
func TestDatabasesOfAGroupAreCleanedAtTimesOfTheirOwn(t *testing.T) {
	g := &Group{cfg: GroupConfig{Dispatcher: DispatcherConfig{CleanInterval: time.Minute}}}
	for _, handled := range []bool{true, false} {
		shortest, longest := g.cleanWait(handled, false), time.Duration(0)
		for range 100 {
			wait := g.cleanWait(handled, false)
			shortest, longest = min(shortest, wait), max(longest, wait)
		}
		if longest < shortest*5/4 {
			t.Errorf("a hundred of them are cleaned within %s", longest-shortest)
		}
	}
}
