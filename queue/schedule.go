package queue

import (
	"math/rand/v2"
	"slices"
	"time"
)

const (
	// pollGrowth is how many times longer the wait between looks gets while there is nothing to do.
	pollGrowth = 10
	// wokenPause is the shortest time between two looks that find nothing, however often somebody wakes us.
	wokenPause = 10 * time.Millisecond
)

// schedule says when to look for messages and how many to take: never more than there are free places, for what waits in
// memory could be handled elsewhere. It has no clock and no lock; whoever owns it brings both.
type schedule struct {
	places int // how many messages may be here at once
	batch  int // how many one look may take
	poll   time.Duration
	jitter func() float64 // 0 to 1

	taken int // places
	lines []*line
}

// line is a part of the table that is claimed by itself: a topic whose handler has a limit of its own, or all the others.
type line struct {
	topics, except []string
	limit          int // places of this line

	taken int
	wait  time.Duration // after a look that found nothing, before jitter; 0 = the last one found something
	next  time.Time     // when to look unless woken
	hold  time.Time     // not before, whatever happens
	few   time.Time     // not before, unless enough places are free
	woken bool          // since the last look was handed out, which may have begun too early to see why
}

func newSchedule(places, batch int, poll time.Duration, lines ...*line) schedule {
	for _, l := range lines {
		l.limit = min(l.limit, places)
	}
	return schedule{places: places, batch: batch, poll: poll, jitter: rand.Float64, lines: lines}
}

// look returns a line to look at now and how many messages to take, or nil and how long to wait unless something happens.
func (s *schedule) look(now time.Time) (*line, int, time.Duration) {
	var best *line
	wait := time.Hour
	for _, l := range s.lines {
		n := s.room(l)
		if n == 0 {
			continue
		}
		at := later(l.next, l.hold)
		if 4*n < min(s.batch, l.limit) {
			at = later(at, l.few)
		}
		if d := at.Sub(now); d > 0 {
			wait = min(wait, d)
		} else if best == nil || l.next.Before(best.next) {
			best = l
		}
	}
	if best == nil {
		return nil, 0, wait
	}
	best.woken = false
	return best, s.room(best), 0
}

func (s *schedule) room(l *line) int { return max(0, min(s.places-s.taken, s.batch, l.limit-l.taken)) }

// looked takes what came of a look. There may be more if it brought all that was asked for.
func (s *schedule) looked(begun, now time.Time, l *line, got int, more bool) {
	s.taken += got
	l.taken += got
	took := now.Sub(begun)
	l.hold = now
	switch {
	case more:
		// A place that becomes free is worth no look of its own: looks may take half of the time.
		l.wait, l.next, l.few = 0, now, now.Add(took)
		return
	case got > 0:
		l.wait = s.poll
	default:
		l.wait = min(max(2*l.wait, s.poll), pollGrowth*s.poll)
		l.hold = now.Add(min(wokenPause, s.poll))
	}
	l.few = now.Add(took)
	l.next = now.Add(time.Duration(float64(l.wait) * (0.8 + 0.4*s.jitter())))
	if l.woken {
		l.next = now
	}
}

// done frees the place of a message.
func (s *schedule) done(l *line) {
	s.taken--
	l.taken--
}

// woken has all lines looked at.
func (s *schedule) woken(now time.Time) {
	for _, l := range s.lines {
		l.woken = true
		if now.Before(l.next) {
			l.next = now
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// linesOf makes the lines of topics, of which limits says how many messages may be handled at once; others has one more for
// all topics that are not among them.
func linesOf(limits map[string]int, others bool, places int) []*line {
	var lines []*line
	var limited []string
	for topic, limit := range limits {
		limited = append(limited, topic)
		lines = append(lines, &line{topics: []string{topic}, limit: limit})
	}
	slices.Sort(limited)
	slices.SortFunc(lines, func(a, b *line) int { return slices.Compare(a.topics, b.topics) })
	if others {
		lines = append(lines, &line{except: limited, limit: places})
	}
	return lines
}
