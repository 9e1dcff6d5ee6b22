package queue

import (
	"strconv"
	"testing"
	"time"
)

// got records a scan that returned messages of one topic.
func (s *schedule) got(begun, now time.Time, n int, more bool) {
	for range n {
		s.take("", 1, false)
	}
	s.claimed(begun, now, n, more, nil)
}

// clock is advanced by the test.
type clock time.Time

func (c *clock) now() time.Time        { return time.Time(*c) }
func (c *clock) sleep(d time.Duration) { *c = clock(c.now().Add(d)) }

func newTestSchedule(slots, batch int, limits map[string]int) (*schedule, *clock) {
	s := newSchedule(slots, batch, 1000, time.Second, limits)
	s.jitter = func() float64 { return 0.5 }
	c := clock(time.Now())
	return &s, &c
}

func TestScheduleTakesNoMoreThanThereIsRoom(t *testing.T) {
	s, c := newTestSchedule(8, 5, nil)
	for i, want := range []int{5, 3, 0} {
		n, _ := s.nextClaim(c.now())
		if n != want {
			t.Fatalf("poll %d takes %d, not %d", i, n, want)
		}
		if n > 0 {
			s.got(c.now(), c.now(), n, true)
		}
	}
	s.done("", 1, false)
	if n, _ := s.nextClaim(c.now()); n != 1 {
		t.Errorf("a free slot leads to a claim of %d", n)
	}
}

func TestScheduleWaitsLongerWhileThereIsNothing(t *testing.T) {
	s, c := newTestSchedule(8, 8, nil)
	for _, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
		if n, _ := s.nextClaim(c.now()); n == 0 {
			t.Fatal("no poll")
		}
		s.got(c.now(), c.now(), 0, false)
		if _, wait := s.nextClaim(c.now()); wait != want*time.Second {
			t.Fatalf("waits %s, not %s", wait, want*time.Second)
		}
		c.sleep(want * time.Second)
	}
	n, _ := s.nextClaim(c.now())
	s.got(c.now(), c.now(), n-1, false)
	if _, wait := s.nextClaim(c.now()); wait != time.Second {
		t.Errorf("waits %s after a poll that found messages", wait)
	}
	s.jitter = func() float64 { return 1 }
	c.sleep(time.Second)
	s.got(c.now(), c.now(), 0, false)
	if _, wait := s.nextClaim(c.now()); wait != 2400*time.Millisecond {
		t.Errorf("waits %s with the largest jitter", wait)
	}
}

func TestScheduleIsWoken(t *testing.T) {
	s, c := newTestSchedule(8, 8, nil)
	s.nextClaim(c.now())
	s.got(c.now(), c.now(), 0, false)
	s.woke(c.now())
	if n, wait := s.nextClaim(c.now()); n != 0 || wait != wokenPause {
		t.Errorf("scans again immediately, after %s", wait)
	}
	c.sleep(wokenPause)
	if n, _ := s.nextClaim(c.now()); n == 0 {
		t.Error("the schedule was not woken")
	}
	s.got(c.now(), c.now(), 3, false)
	s.woke(c.now())
	if n, _ := s.nextClaim(c.now()); n == 0 {
		t.Error("woken immediately after a poll that found messages")
	}
}

// TestScheduleWaitsForSeveralSlots: while more messages are ready, polls for a single slot are limited to half of the
// time.
func TestScheduleWaitsForSeveralSlots(t *testing.T) {
	s, c := newTestSchedule(16, 50, nil)
	n, _ := s.nextClaim(c.now())
	begun := c.now()
	c.sleep(time.Millisecond)
	s.got(begun, c.now(), n, true)
	s.done("", 1, false)
	if n, wait := s.nextClaim(c.now()); n != 0 || wait != time.Millisecond {
		t.Errorf("polls for one slot, wait %s", wait)
	}
	for range 3 {
		s.done("", 1, false)
	}
	if n, _ := s.nextClaim(c.now()); n != 4 {
		t.Errorf("takes %d with a quarter of the slots free", n)
	}
}

// TestScheduleOfATopicWithALimit: a free slot leads to an immediate scan if messages of its topic may have been
// skipped, and otherwise not before the next one is due.
func TestScheduleOfATopicWithALimit(t *testing.T) {
	s, c := newTestSchedule(8, 8, map[string]int{"slow": 2, "many": 20})
	s.nextClaim(c.now())
	if rooms := s.began(c.now()); len(rooms) != 2 || rooms[0] != (room{"many", 8}) || rooms[1] != (room{"slow", 2}) {
		t.Errorf("there is room for %v", rooms)
	}
	for range 2 {
		s.take("slow", 1, false)
	}
	s.claimed(c.now(), c.now(), 2, false, map[string]bool{"slow": true})
	if n, wait := s.nextClaim(c.now()); n != 0 || wait != time.Second {
		t.Errorf("scans for %d, after %s, without room", n, wait)
	}
	if rooms := s.began(c.now()); rooms[1].n != 0 {
		t.Errorf("there is room for %v", rooms)
	}
	s.done("slow", 1, false)
	if n, wait := s.nextClaim(c.now()); n != 7 {
		t.Errorf("polls for %d, after %s, although there is room", n, wait)
	}
	s.claimed(c.now(), c.now(), 0, false, map[string]bool{"slow": false})
	c.sleep(wokenPause)
	if n, wait := s.nextClaim(c.now()); n != 0 || wait < time.Second {
		t.Errorf("polls for %d, after %s, although nothing was skipped", n, wait)
	}
	s.take("slow", 1, true)
	if rooms := s.began(c.now()); rooms[1].n != 1 {
		t.Errorf("an expired message takes a slot of its topic: %v", rooms)
	}
	if s.done("slow", 1, true); s.taken != 1 {
		t.Errorf("%d slots are taken", s.taken)
	}
}

// TestScheduleOfATopicThatIsSkipped: a skipped topic has no free slot for a while, and all its slots afterwards.
func TestScheduleOfATopicThatIsSkipped(t *testing.T) {
	s, c := newTestSchedule(8, 8, map[string]int{"slow": 2})
	s.nextClaim(c.now())
	s.take("skipped", 1, false)
	if !s.skip("skipped", c.now().Add(time.Minute)) {
		t.Fatal("the topic is not skipped")
	}
	s.done("skipped", 1, false) // the message handled before does not count
	if rooms := s.began(c.now()); len(rooms) != 2 || rooms[0] != (room{"skipped", 0}) || rooms[1] != (room{"slow", 2}) {
		t.Errorf("there is room for %v", rooms)
	}
	s.claimed(c.now(), c.now(), 0, false, map[string]bool{"skipped": true})
	c.sleep(wokenPause)
	if n, _ := s.nextClaim(c.now()); n != 0 {
		t.Error("scans for skipped messages")
	}
	c.sleep(time.Minute)
	if n, _ := s.nextClaim(c.now()); n != 8 {
		t.Errorf("polls for %d", n)
	}
	if rooms := s.began(c.now()); len(rooms) != 1 {
		t.Errorf("a topic that is no longer skipped still has a limit: %v", rooms)
	}
	for round := range 2 { // the first messages make room for others
		for i := range maxSkipped + 1 {
			if last := i == maxSkipped; s.skip(strconv.Itoa(1000*round+i), c.now().Add(time.Second)) == last {
				t.Errorf("the %dth: %v", i+1, !last)
			}
		}
		c.sleep(time.Second)
		s.began(c.now())
	}
	if !s.skip("slow", c.now().Add(time.Minute)) || s.began(c.now())[len(s.topics)-1].n != 0 {
		t.Error("a topic with a limit is not skipped")
	}
}

// TestWokenDuringAScan: the scan may have begun too early to see the new message, so another scan follows.
func TestWokenDuringAScan(t *testing.T) {
	for _, got := range []int{0, 1} {
		s := newSchedule(10, 10, 1000, time.Hour, nil)
		now := time.Unix(1e9, 0)
		if n, _ := s.nextClaim(now); n == 0 {
			t.Fatal("no poll")
		}
		s.began(now)
		s.woke(now)
		s.got(now, now, got, false)
		if _, wait := s.nextClaim(now); wait > wokenPause {
			t.Errorf("after a poll that returned %d: waits %s", got, wait)
		}
		now = now.Add(wokenPause)
		if n, wait := s.nextClaim(now); n == 0 {
			t.Errorf("after a poll that returned %d: waits %s", got, wait)
		}
		s.began(now)
		s.got(now, now, 0, false)
		if n, wait := s.nextClaim(now.Add(wokenPause)); n != 0 || wait < time.Minute {
			t.Errorf("polls once more, after %s", wait)
		}
	}
}

// TestScheduleHasRoomForPayloads: at the byte limit nothing is claimed until a message is done, but a single message
// may exceed the limit.
func TestScheduleHasRoomForPayloads(t *testing.T) {
	s, c := newTestSchedule(8, 8, nil) // 1000 bytes
	if free := s.bytesFree(); free != 1000 {
		t.Errorf("room for %d at first", free)
	}
	s.take("", 600, false)
	if n, _ := s.nextClaim(c.now()); n != 7 || s.bytesFree() != 400 {
		t.Errorf("%d slots, with room for %d", n, s.bytesFree())
	}
	s.take("", 5000, false)
	if n, wait := s.nextClaim(c.now()); n != 0 || wait < time.Minute {
		t.Errorf("%d slots after %s, and no room", n, wait)
	}
	s.done("", 600, false)
	if n, _ := s.nextClaim(c.now()); n != 0 {
		t.Errorf("%d slots behind a large message", n)
	}
	s.done("", 5000, false)
	if n, _ := s.nextClaim(c.now()); n != 8 || s.bytesFree() != 1000 {
		t.Errorf("%d slots, with room for %d", n, s.bytesFree())
	}
}
