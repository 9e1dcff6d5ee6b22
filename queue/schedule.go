package queue

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

const (
	// pollGrowth is the factor by which the wait between polls grows while polls find nothing.
	pollGrowth = 10
	// wokenPause is the shortest time between two polls that find nothing, however often the schedule is woken.
	wokenPause = 10 * time.Millisecond
	// maxSkipped is how many topics can be skipped at the same time, because each claim lists them.
	maxSkipped = 100
)

// schedule decides when to poll for messages and how many to take: at most as many as there are free slots, because
// another process could handle messages that wait in memory, and at most a topic's own limit. One poll covers all
// topics. It has no clock and no lock; its owner provides both.
type schedule struct {
	slots  int // maximum number of messages here
	room   int // maximum total payload size of these, except the last one
	batch  int // maximum number of messages per poll
	poll   time.Duration
	jitter func() float64 // in [0, 1)

	taken   int           // slots
	bytes   int           // payload bytes
	topics  []*topicSlots // with a limit, sorted
	of      map[string]*topicSlots
	behind  map[*topicSlots]bool // topics of which messages may have been skipped for lack of room
	skipped int                  // topics that have a limit only because they are skipped now

	wait      time.Duration // after a poll that found nothing, before jitter; 0 = the last poll found something
	next      time.Time     // of the next poll unless woken
	notBefore time.Time     // earliest time of the next poll, even if woken
	few       time.Time     // no poll before this, unless enough slots are free
	woken     bool          // woken since the last poll began, which may have been too early to see the cause
}

// topicSlots are the slots of a topic that has a limit or is skipped.
type topicSlots struct {
	topic        string
	limit, taken int
	skipped      time.Time // no room until then
	unlimited    bool      // it has no other limit
}

func (t *topicSlots) room(now time.Time) int {
	if now.Before(t.skipped) {
		return 0
	}
	return max(0, t.limit-t.taken)
}

func newSchedule(slots, batch, room int, poll time.Duration, limits map[string]int) schedule {
	s := schedule{
		slots: slots, batch: batch, room: room, poll: poll, jitter: rand.Float64,
		of: map[string]*topicSlots{}, behind: map[*topicSlots]bool{},
	}
	for topic, limit := range limits {
		s.limit(topic, limit)
	}
	return s
}

func (s *schedule) limit(topic string, limit int) *topicSlots {
	t := &topicSlots{topic: topic, limit: min(limit, s.slots)}
	i, _ := slices.BinarySearchFunc(s.topics, topic, func(t *topicSlots, topic string) int {
		return strings.Compare(t.topic, topic)
	})
	s.of[topic], s.topics = t, slices.Insert(s.topics, i, t)
	return t
}

// skip skips a topic for a while, unless too many are skipped, and reports whether it does.
func (s *schedule) skip(topic string, until time.Time) bool {
	t := s.of[topic]
	if t == nil && s.skipped < maxSkipped {
		s.skipped++
		t = s.limit(topic, s.slots)
		t.unlimited = true
	}
	if t == nil {
		return false
	}
	t.skipped = until
	return true
}

// free returns how many slots a poll may use.
func (s *schedule) free() int {
	if s.taken > 0 && s.bytes >= s.room {
		return 0 // until a message is done
	}
	return max(0, min(s.slots-s.taken, s.batch))
}

// bytesFree returns the maximum total size of the payloads that a poll may claim.
func (s *schedule) bytesFree() int { return max(1, s.room-s.bytes) }

// nextClaim returns how many messages to take now, or 0 and how long to wait unless woken.
func (s *schedule) nextClaim(now time.Time) (n int, wait time.Duration) {
	n = s.free()
	if n == 0 {
		return 0, time.Hour
	}
	at := later(s.next, s.notBefore)
	if 4*n < min(s.batch, s.slots) {
		at = later(at, s.few)
	}
	room, limit := 0, 0
	for t := range s.behind {
		room, limit = room+t.room(now), limit+t.limit
	}
	if room > 0 {
		passed := s.notBefore
		if 4*min(n, room) < min(s.batch, s.slots, limit) {
			passed = later(passed, s.few)
		}
		if passed.Before(at) {
			at = passed
		}
	}
	if wait = at.Sub(now); wait > 0 {
		return 0, wait
	}
	return n, 0
}

// began records the beginning of a poll, and returns the room of topics that have a limit or are still skipped.
func (s *schedule) began(now time.Time) []room {
	s.woken = false
	s.topics = slices.DeleteFunc(s.topics, func(t *topicSlots) bool {
		over := t.unlimited && !now.Before(t.skipped)
		if over {
			s.skipped--
			delete(s.of, t.topic)
			delete(s.behind, t)
		}
		return over
	})
	rooms := make([]room, len(s.topics))
	for i, t := range s.topics {
		rooms[i] = room{t.topic, t.room(now)}
	}
	return rooms
}

// claimed applies the result of a poll. more reports whether topics with room may have more messages. behind reports,
// per topic, whether messages may have been skipped.
func (s *schedule) claimed(begun, now time.Time, got int, more bool, behind map[string]bool) {
	for topic, is := range behind {
		if t := s.of[topic]; is {
			s.behind[t] = true
		} else {
			delete(s.behind, t)
		}
	}
	took := now.Sub(begun)
	s.notBefore = now
	switch {
	case more:
		// A freed slot alone does not justify a poll: polls may take at most half of the time.
		s.wait, s.next, s.few = 0, now, now.Add(took)
		return
	case got > 0:
		s.wait = s.poll
	default:
		s.wait = min(max(2*s.wait, s.poll), pollGrowth*s.poll)
		s.notBefore = now.Add(min(wokenPause, s.poll))
	}
	s.few = now.Add(took)
	s.next = now.Add(time.Duration(float64(s.wait) * (0.8 + 0.4*s.jitter())))
	if s.woken {
		s.next = now
	}
}

// take gives a slot to a message of this topic and size, and done takes it back. An expired message, which must only be
// marked dead, does not count against its topic.
func (s *schedule) take(topic string, size int, expired bool) {
	s.taken++
	s.bytes += size
	if t := s.of[topic]; t != nil && !expired {
		t.taken++
	}
}

func (s *schedule) done(topic string, size int, expired bool) {
	s.taken--
	s.bytes -= size
	if t := s.of[topic]; t != nil && !expired {
		t.taken = max(0, t.taken-1) // the topic may have had no limit when this message was taken
	}
}

// woke moves the next poll forward.
func (s *schedule) woke(now time.Time) {
	s.woken = true
	if now.Before(s.next) {
		s.next = now
	}
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}
