package outbox

import (
	"time"
)

// Backoff is how long to wait after a failure. The wait doubles with each failure, with a jitter of a fifth either way, so
// that what failed together does not come back together. The zero value is the default of the field that it is for.
type Backoff struct {
	Initial time.Duration             // after the first failure; -1 = no wait
	Max     time.Duration             // the longest wait
	Func    func(n int) time.Duration // if not nil, the wait after the n-th failure, from 1, instead of all that; safe for concurrent use
}
