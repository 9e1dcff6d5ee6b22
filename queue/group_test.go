package queue

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-go/watermill-outbox/fleet"
	"github.com/millrace-go/watermill-outbox/internal/trouble"
)

// newTestWorker is a database whose Dispatcher has four slots and something to poll for.
func newTestWorker() *worker {
	return &worker{
		d:       &Dispatcher{loop: newLoop(nil, loopConfig{slots: 4, batch: 4, room: 1}, nil, func(*claimed) {})},
		breaker: trouble.Breaker{Logger: watermill.NopLogger{}},
	}
}

// TestGroupLeavesNoSlotFree: the slots that a database already uses count against its share, and not against the free
// slots.
func TestGroupLeavesNoSlotFree(t *testing.T) {
	for _, test := range []struct{ taken, free, want int }{
		{0, 4, 2}, {0, 1, 1}, {1, 3, 1}, {1, 1, 1}, {2, 2, 0},
	} {
		m := newTestWorker()
		m.d.loop.schedule.taken = test.taken
		turn, _ := m.turn(time.Now(), test.free, 2)
		if turn.n != test.want {
			t.Errorf("with %d of its 2 slots taken and %d free, the database takes %d, not "+
				"%d", test.taken, test.free, turn.n, test.want)
		}
	}
}

// TestADatabaseHasHalfOfAGroup: one database claims no more than half of the messages that a Group handles
// concurrently, unless it is the only one.
func TestADatabaseHasHalfOfAGroup(t *testing.T) {
	for databases, want := range map[int]int{1: 4, 2: 2, 3: 2} {
		nothing := func(string, string) ([][]any, error) { return nil, nil }
		g := newTestGroup(t, databases, DispatcherConfig{Concurrency: 4}, nothing)
		m := newTestWorker()
		m.db = g.scheduler.All()[0].Own
		g.workers = []*worker{m}
		ready, _, _ := g.candidates(time.Now())
		g.workers = nil
		if len(ready) != 1 || ready[0].n != want {
			t.Errorf("of %d databases one claims %v messages, not %d", databases, ready, want)
		}
	}
}

// TestExpiredMessagesFreeNoSlotOfAGroup: an expired message has no slot of the group.
func TestExpiredMessagesFreeNoSlotOfAGroup(t *testing.T) {
	g, s := &Group{slots: newSlots(4)}, &connSlots{slots: newSlots(4)}
	k := s.reserve(&g.slots, 2)
	k.confirm(2)
	g.freed(&claimed{expired: true}, s)
	if g.slots.taken != 2 || s.slots.taken != 2 {
		t.Errorf("an expired message leaves %d and %d slots taken, not 2", g.slots.taken, s.slots.taken)
	}
	if g.freed(&claimed{}, s); g.slots.taken != 1 || s.slots.taken != 1 {
		t.Errorf("a message leaves %d and %d slots taken, not 1", g.slots.taken, s.slots.taken)
	}
}

// TestGroupHearsOfSlotsThatAreFree: when a Group is notified of a free slot, its own database can already use it.
// Otherwise others would take the turn.
func TestGroupHearsOfSlotsThatAreFree(t *testing.T) {
	m := newTestWorker()
	l, taken := m.d.loop, -1
	l.freed = func(*claimed) { l.step(func() { taken = l.schedule.taken }) }
	l.step(func() {
		l.schedule.claimed(time.Now(), time.Now(), 1, false, nil)
		l.start(&claimed{loop: l}, time.Now())
	})
	l.handlers.Wait()
	if taken != 0 {
		t.Errorf("%d slots are taken", taken)
	}
	select {
	case <-l.news:
	default:
		t.Error("no notification")
	}
}

// TestABrokenDatabaseHasNoTurnBeforeItsWaitIsOver, and then only to check whether it responds; Drain waits for nothing.
func TestABrokenDatabaseHasNoTurnBeforeItsWaitIsOver(t *testing.T) {
	m, now := newTestWorker(), time.Now()
	for range 3 {
		wait := m.breaker.Failed(now, errors.New("broken"))
		if turn, in := m.turn(now.Add(wait-1), 4, 4); turn.m != nil || in != 1 {
			t.Errorf("the broken database has a turn %s before its wait of %s is over", in, wait)
		}
		now = now.Add(wait)
		if turn, _ := m.turn(now, 4, 4); turn.m != m || turn.n != 0 {
			t.Errorf("after its wait of %s the broken database claims %d messages", wait, turn.n)
		}
	}
	m.breaker.Failed(now, errors.New("broken"))
	m.d.loop.drains = append(m.d.loop.drains, &drain{})
	if turn, _ := m.turn(now, 4, 4); turn.m != m {
		t.Error("Drain waits for the broken database")
	}
}

// noSelection chooses nothing.
func noSelection([]fleet.Status, fleet.Status) int { return -1 }

// TestGroupStarvesNobodyBehindABusyOne: the turns of a busy database go to the others in turn.
func TestGroupStarvesNobodyBehindABusyOne(t *testing.T) {
	g := &Group{cfg: GroupConfig{Selection: noSelection}}
	at := time.Now()
	list := []fleet.Status{{Key: "a", LastTurn: at.Add(-time.Hour), Busy: true}, {Key: "b"}, {Key: "c"}, {Key: "d"}}
	var order string
	for i := range 6 {
		chosen := g.next(list)
		order += list[chosen].Key
		list[chosen].LastTurn = at.Add(time.Duration(i) * time.Second)
	}
	if order != "bcdbcd" {
		t.Errorf("turns in the order %s", order)
	}
}

// TestDatabasesOfAGroupAreCleanedAtTimesOfTheirOwn, although all start at the same time.
func TestDatabasesOfAGroupAreCleanedAtTimesOfTheirOwn(t *testing.T) {
	m := &maintainer{clean: time.Minute}
	for _, handled := range []bool{true, false} {
		shortest, longest := m.cleanWait(handled, false), time.Duration(0)
		for range 100 {
			wait := m.cleanWait(handled, false)
			shortest, longest = min(shortest, wait), max(longest, wait)
		}
		if longest < shortest*5/4 {
			t.Errorf("a hundred databases are cleaned within %s", longest-shortest)
		}
	}
}
