package trouble

import "time"

// maxStall is how much longer than its limit a stall may last at most before it is over: all servers may be alike,
// as where there is no stream.
const maxStall = 5 * time.Minute

// StallDetector measures how long a server of a cluster has answered no request. Its client would stay
// with one that is cut off from the others and answers pings for as long as that lasts, and for a minute with one that
// is frozen. It is not safe for concurrent use.
type StallDetector struct {
	Limit time.Duration // after which another server is tried

	since time.Time     // when the first unanswered request began; zero = the last one was answered
	more  time.Duration // than Limit: other servers did not answer either
}

// Answered ends the stall.
func (s *StallDetector) Answered() { s.since, s.more = time.Time{}, 0 }

// Unanswered is told when something began that is over without an answer, says how long the stall lasts, and whether
// it is time to try another server. Then the caller does, and tells TriedAnother.
func (s *StallDetector) Unanswered(now, begun time.Time) (lasts time.Duration, over bool) {
	if s.since.IsZero() {
		s.since = begun
		if last := now.Add(-s.Limit / 2); last.After(begun) { // of several things the first were answered
			s.since = last
		}
	}
	lasts = now.Sub(s.since)
	return lasts, lasts >= s.Limit+s.more
}

// TriedAnother starts anew, with a longer limit.
func (s *StallDetector) TriedAnother() {
	s.since, s.more = time.Time{}, min(s.Limit+2*s.more, maxStall)
}
