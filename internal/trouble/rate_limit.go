package trouble

import (
	"sync"
	"time"
)

// maxRemembered bounds the memory of a RateLimit.
const maxRemembered = 1000

// RateLimit says when an error line is due about a trouble that many messages have: at first, and then once a minute.
// The zero value is ready for use, by any number of goroutines.
type RateLimit struct {
	mu     sync.Mutex
	logged map[string]time.Time
}

// Allow reports whether a line is due about this trouble. If so, the caller writes it now.
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
