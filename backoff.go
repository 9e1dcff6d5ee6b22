package outbox

import (
	"time"
)

// Backoff is how long to wait after a failure. The wait doubles with each failure, with a jitter of 20 %. The zero
// value is the default of the field.
//
// Func, if not nil, returns the wait after the n-th failure, n counting from 1. It must be safe for concurrent use.
// Forwarders, queues and subscribers call it when they are made, for n up to 64, and return an error if it panics.
// Middlewares call it after each failure, and use Initial and Max if it panics.
type Backoff struct {
	Initial time.Duration // after the first failure; -1 = no wait
	Max     time.Duration // the longest wait
	Func    func(n int) time.Duration
}
