package trouble

import (
	"sync"
	"time"
)

// maxTold bounds the memory of a Seldom.
const maxTold = 1000

// Seldom says when an error line is due about a trouble that many messages have: at first, and then once a minute. The
// zero value is ready for use, by any number of goroutines.
type Seldom struct {
	mu   sync.Mutex
	told map[string]time.Time
}

// Due says whether a line is due about this trouble, and that it is written now if it is.
func (s *Seldom) Due(trouble string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, known := s.told[trouble]; known && time.Since(last) < interval {
		return false
	}
	if s.told == nil || len(s.told) >= maxTold {
		s.told = map[string]time.Time{}
	}
	s.told[trouble] = time.Now()
	return true
}
