package kafka

import (
	"sync"
	"sync/atomic"
)

// budget limits the total bytes that the partitions of a subscription may hold. It is safe for concurrent use.
type budget struct {
	limit int64
	used  atomic.Int64

	mu      sync.Mutex
	waiting map[chan struct{}]bool
}

func newBudget(limit int) *budget {
	return &budget{limit: int64(limit), waiting: map[chan struct{}]bool{}}
}

// join returns a channel that is signalled when bytes are free again, until leave.
func (b *budget) join() chan struct{} {
	freed := make(chan struct{}, 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting[freed] = true
	return freed
}

func (b *budget) leave(freed chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.waiting, freed)
}

func (b *budget) take(bytes int64) { b.used.Add(bytes) }

// give frees bytes, and wakes all waiters when usage falls to half of the limit.
func (b *budget) give(bytes int64) {
	half := b.limit / 2
	if now := b.used.Add(-bytes); now > half || now+bytes <= half {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for freed := range b.waiting {
		select {
		case freed <- struct{}{}:
		default:
		}
	}
}

func (b *budget) exhausted() bool { return b.used.Load() >= b.limit }
func (b *budget) half() bool      { return b.used.Load() <= b.limit/2 }
