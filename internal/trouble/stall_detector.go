package trouble

import "time"

// maxStall limits the time by which StallDetector.Limit grows. If no server responds, for example because the stream
// does not exist, moving on to another server does not help.
const maxStall = 5 * time.Minute

// StallDetector measures how long a server of a cluster has not responded to requests. The client itself stays with a
// server that is cut off from the others as long as it responds to pings, and with a frozen one for a minute. A
// StallDetector is not safe for concurrent use.
type StallDetector struct {
	Limit time.Duration // the stall after which another server is tried

	since time.Time     // when the first unanswered request began; zero = the last one got a response
	more  time.Duration // added to Limit, because other servers did not respond either
}

// Answered ends the stall.
func (s *StallDetector) Answered() { s.since, s.more = time.Time{}, 0 }

// Unanswered records that a request that began at begun got no response. It returns how long the stall has lasted, and
// whether the caller should try another server and call TriedAnother.
func (s *StallDetector) Unanswered(now, begun time.Time) (lasts time.Duration, over bool) {
	if s.since.IsZero() {
		s.since = begun
		if last := now.Add(-s.Limit / 2); last.After(begun) { // earlier ones of several requests got responses
			s.since = last
		}
	}
	lasts = now.Sub(s.since)
	return lasts, lasts >= s.Limit+s.more
}

// TriedAnother restarts the measurement with a longer limit.
func (s *StallDetector) TriedAnother() {
	s.since, s.more = time.Time{}, min(s.Limit+2*s.more, maxStall)
}
