package core

import (
	"context"
	"sync/atomic"
	"time"
)

// Brake slows down what fails again and again. Brokers bring a message that failed again at once, so without a wait a
// mistake in the program, or a message that no handler can handle, is a hot loop of error lines, and the one that names
// the cure is hard to find. It is safe for concurrent use.
type Brake struct{ times atomic.Int64 }

// Pause waits for 100 ms at first, doubling to a second, or until ctx is over. Not longer: a transaction may be open
// around it, or the caller may know what to do about the error.
func (b *Brake) Pause(ctx context.Context) {
	Pause(ctx, Backoff{}.WithDefaults(100*time.Millisecond, time.Second).Delay(int(b.times.Add(1))))
}

// Release has the next Pause be short again.
func (b *Brake) Release() { b.times.Store(0) }

// Pause waits, or until ctx is over.
func Pause(ctx context.Context, wait time.Duration) {
	if wait <= 0 {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

type pacedKey struct{}

// Paced marks ctx: the code that marks it waits before it lets a message be nacked, so what it calls need not.
func Paced(ctx context.Context) context.Context {
	ctx, tree := TreeOf(ctx)
	return context.WithValue(ctx, pacedKey{}, tree)
}

// IsPaced says whether somebody around has said so in this call tree.
func IsPaced(ctx context.Context) bool {
	tree, ok := ctx.Value(pacedKey{}).(Tree)
	return ok && tree.Has(ctx)
}
