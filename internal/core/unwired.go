package core

import (
	"context"
	"sync/atomic"
	"time"
)

// Unwired waits after mistakes that only a change of the program mends. Brokers bring a message that failed again at once, so without a
// wait such a mistake is a hot loop of error lines, and the one that names the cure is hard to find. It is safe for concurrent use.
type Unwired struct{ times atomic.Int64 }

// Pause waits for 100 ms at first, doubling to a second, or until ctx is over. Not longer: a transaction may be open around it, or the caller
// may know what to do about the error.
func (u *Unwired) Pause(ctx context.Context) {
	wait := Backoff{}.WithDefaults(100*time.Millisecond, time.Second).Delay(int(u.times.Add(1)))
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
