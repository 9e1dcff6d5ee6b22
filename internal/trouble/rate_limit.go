package trouble

import (
	"sync"
	"time"
)

// maxRemembered limits the memory of a RateLimit.
const maxRemembered = 1000

// RateLimit decides when to log an error that concerns many messages: the first time, and then once a minute. The zero
// value is ready for use, and safe for concurrent use.
type RateLimit struct {
	mu     sync.Mutex
	logged map[string]time.Time
}

// Allow reports whether to log this trouble now.
func (s *RateLimit) Allow(trouble string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, known := s.logged[trouble]; known && time.Since(last) < interval {
		return false
	}
	if s.logged == nil || len(s.logged) >= maxRemembered {
		s.logged = map[string]time.Time{}
	}
	s.logged[trouble] = time.Now()
	return true
}
