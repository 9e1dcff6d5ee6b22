package core

import (
	"context"
	"sync/atomic"
	"time"
)

// Throttle slows down repeated failures. Brokers redeliver a failed message immediately, so without a pause a
// programming error would become a hot loop of error lines. It is safe for concurrent use.
type Throttle struct{ times atomic.Int64 }

// Pause waits for 100 ms at first, doubling to 1 s, or until ctx is done. The wait is short because a transaction may
// be open.
func (b *Throttle) Pause(ctx context.Context) {
	Pause(ctx, Backoff{}.WithDefaults(100*time.Millisecond, time.Second).Delay(int(b.times.Add(1))))
}

// Reset makes the next Pause short again.
func (b *Throttle) Reset() { b.times.Store(0) }

// Pause waits until the time has passed or ctx is done. It returns false if ctx is done.
func Pause(ctx context.Context, wait time.Duration) bool {
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return ctx.Err() == nil
}

type throttledKey struct{}

// MarkThrottled marks ctx: its caller pauses before it nacks a message, so the code that it calls need not pause.
func MarkThrottled(ctx context.Context) context.Context {
	ctx, tree := TreeOf(ctx)
	return context.WithValue(ctx, throttledKey{}, tree)
}

// IsThrottled reports whether ctx was marked in this call tree.
func IsThrottled(ctx context.Context) bool {
	tree, ok := ctx.Value(throttledKey{}).(Tree)
	return ok && tree.Has(ctx)
}
