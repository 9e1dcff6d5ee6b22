package queue

import (
	"testing"
	"time"
)

// clock is a time that a test moves.
type clock time.Time

func (c *clock) now() time.Time        { return time.Time(*c) }
func (c *clock) sleep(d time.Duration) { *c = clock(c.now().Add(d)) }

func newTestSchedule(places, batch int, lines ...*line) (*schedule, *clock) {
	s := newSchedule(places, batch, time.Second, lines...)
	s.jitter = func() float64 { return 0.5 }
	c := clock(time.Now())
	return &s, &c
}

func TestScheduleTakesNoMoreThanThereIsRoom(t *testing.T) {
	all := &line{limit: 100}
	s, c := newTestSchedule(8, 5, all)
	for i, want := range []int{5, 3, 0} {
		l, n, _ := s.look(c.now())
		if n != want || (l == nil) != (want == 0) {
			t.Fatalf("look %d takes %d, not %d", i, n, want)
		}
		if l != nil {
			s.looked(c.now(), c.now(), l, n, true)
		}
	}
	s.done(all)
	if _, n, _ := s.look(c.now()); n != 1 {
		t.Errorf("a free place brings %d", n)
	}
}

func TestScheduleWaitsLongerWhileThereIsNothing(t *testing.T) {
	s, c := newTestSchedule(8, 8, &line{limit: 8})
	for _, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		l, _, _ := s.look(c.now())
		if l == nil {
			t.Fatal("it does not look")
		}
		s.looked(c.now(), c.now(), l, 0, false)
		if _, _, wait := s.look(c.now()); wait != want*time.Second {
			t.Fatalf("it waits %s, not %s", wait, want*time.Second)
		}
		c.sleep(want * time.Second)
	}
	l, n, _ := s.look(c.now())
	s.looked(c.now(), c.now(), l, n-1, false)
	if _, _, wait := s.look(c.now()); wait != time.Second {
		t.Errorf("after a find it waits %s", wait)
	}
	s.jitter = func() float64 { return 1 }
	c.sleep(time.Second)
	s.looked(c.now(), c.now(), l, 0, false)
	if _, _, wait := s.look(c.now()); wait != 2400*time.Millisecond {
		t.Errorf("with the largest jitter it waits %s", wait)
	}
}

func TestScheduleIsWoken(t *testing.T) {
	s, c := newTestSchedule(8, 8, &line{limit: 8})
	l, _, _ := s.look(c.now())
	s.looked(c.now(), c.now(), l, 0, false)
	s.woken(c.now())
	if l, _, wait := s.look(c.now()); l != nil || wait != wokenPause {
		t.Errorf("it looks again at once, after %s", wait)
	}
	c.sleep(wokenPause)
	if l, _, _ := s.look(c.now()); l == nil {
		t.Error("it was not woken")
	}
	s.looked(c.now(), c.now(), l, 3, false)
	s.woken(c.now())
	if l, _, _ := s.look(c.now()); l == nil {
		t.Error("after a find it is woken at once")
	}
}

// TestScheduleGathersPlaces: while there is more to take, a look for one place only comes as often as looks may.
func TestScheduleGathersPlaces(t *testing.T) {
	all := &line{limit: 16}
	s, c := newTestSchedule(16, 50, all)
	l, n, _ := s.look(c.now())
	begun := c.now()
	c.sleep(time.Millisecond)
	s.looked(begun, c.now(), l, n, true)
	s.done(all)
	if l, _, wait := s.look(c.now()); l != nil || wait != time.Millisecond {
		t.Errorf("it looks for one place, wait %s", wait)
	}
	for range 3 {
		s.done(all)
	}
	if _, n, _ := s.look(c.now()); n != 4 {
		t.Errorf("a quarter of the places is free, and it takes %d", n)
	}
}

// TestScheduleOfATopicWithALimit neither waits for others nor takes their places.
func TestScheduleOfATopicWithALimit(t *testing.T) {
	lines := linesOf(map[string]int{"slow": 2}, true, 8)
	s, c := newTestSchedule(8, 8, lines...)
	taken := map[string]int{}
	for {
		l, n, _ := s.look(c.now())
		if l == nil {
			break
		}
		name := "others"
		if l.topics != nil {
			name = l.topics[0]
		} else if len(l.except) != 1 || l.except[0] != "slow" {
			t.Errorf("others are all but %q", l.except)
		}
		taken[name] += n
		s.looked(c.now(), c.now(), l, n, true)
	}
	if taken["slow"] != 2 || taken["others"] != 6 {
		t.Errorf("taken: %v", taken)
	}
	for range 4 {
		s.done(lines[1])
	}
	if l, n, _ := s.look(c.now()); l != lines[1] || n != 4 {
		t.Errorf("the others' places are free: %d of %v", n, l)
	}
}

func TestScheduleSharesBetweenLines(t *testing.T) {
	lines := linesOf(map[string]int{"a": 4, "b": 4}, false, 4)
	s, c := newTestSchedule(4, 4, lines...)
	looks := map[*line]int{}
	for range 100 {
		l, n, _ := s.look(c.now())
		if l == nil {
			t.Fatal("it stopped")
		}
		looks[l]++
		c.sleep(time.Millisecond)
		s.looked(c.now(), c.now(), l, n, true)
		for range n {
			s.done(l)
		}
	}
	if looks[lines[0]] != 50 || looks[lines[1]] != 50 {
		t.Errorf("looks: %d and %d", looks[lines[0]], looks[lines[1]])
	}
}

// TestWokenDuringALook: the look may have begun too early to see what woke it, so another one follows it.
func TestWokenDuringALook(t *testing.T) {
	for _, got := range []int{0, 1} {
		l := &line{limit: 10}
		s := newSchedule(10, 10, time.Hour, l)
		now := time.Unix(1e9, 0)
		if looking, _, _ := s.look(now); looking != l {
			t.Fatal("it does not look")
		}
		s.woken(now)
		s.looked(now, now, l, got, false)
		if _, _, wait := s.look(now); wait > wokenPause {
			t.Errorf("after a look that brought %d it waits %s", got, wait)
		}
		now = now.Add(wokenPause)
		if looking, _, wait := s.look(now); looking != l {
			t.Errorf("after a look that brought %d it waits %s", got, wait)
		}
		s.looked(now, now, l, 0, false)
		if looking, _, wait := s.look(now.Add(wokenPause)); looking != nil || wait < time.Minute {
			t.Errorf("it looks once more, after %s", wait)
		}
	}
}
