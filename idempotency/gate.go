package idempotency

import (
	"context"
	"sync"
	"time"
)

// gate lets one request of an identity through at a time. A waiting request holds no connection: otherwise a client
// with a few repetitions of a slow request could use up a pool.
type gate struct {
	mu     sync.Mutex
	inside map[identity]chan struct{} // closed when the request inside leaves
}

// enter waits until no request of the identity is inside, until deadline, or until ctx ends. It reports whether the
// caller may continue; if so, the caller must call leave. After the deadline it does not wait.
func (g *gate) enter(ctx context.Context, id identity, deadline time.Time) (leave func(), ok bool) {
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for {
		g.mu.Lock()
		busy, taken := g.inside[id]
		if !taken {
			mine := make(chan struct{})
			if g.inside == nil {
				g.inside = map[identity]chan struct{}{}
			}
			g.inside[id] = mine
			g.mu.Unlock()
			return func() {
				g.mu.Lock()
				defer g.mu.Unlock()
				delete(g.inside, id)
				close(mine)
			}, true
		}
		g.mu.Unlock()
		select {
		case <-busy:
		case <-timer.C:
			return nil, false
		case <-ctx.Done():
			return nil, false
		}
	}
}
