package outbox

import (
	"time"
)

// Backoff is how long to wait after a failure. The wait doubles with each failure, with a jitter of a fifth either way,
// so that what failed together is not retried together. The zero value is the default of the field that it is for.
//
// Func, if not nil, says instead how long to wait after the n-th failure, n counting from 1. It must be safe for
// concurrent use. Forwarders, queues and subscribers ask it when they are made, for n up to 64, and a panic is an error
// of their constructors. Middlewares ask it after each failure, and where it panics Initial and Max count.
type Backoff struct {
	Initial time.Duration // after the first failure; -1 = no wait
	Max     time.Duration // the longest wait
	Func    func(n int) time.Duration
}
