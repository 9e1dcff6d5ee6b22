// Package life is the lifecycle of parts that run once: forwarders, dispatchers, groups of them, fleets.
package life

import (
	"context"
	"sync"

	outbox "github.com/millrace-go/watermill-outbox"
)

// Life tracks whether a part runs, and ends it. It is safe for concurrent use.
type Life struct {
	done chan struct{} // closed when it has ended

	mu     sync.Mutex
	cancel context.CancelFunc // nil before Begin
	closed bool
}

// New returns a Life that has not begun.
func New() *Life { return &Life{done: make(chan struct{})} }

// Begin returns the context to run with, which Close ends, and a function to call at the very end. It returns
// outbox.ErrRunning or outbox.ErrClosed.
func (l *Life) Begin(ctx context.Context) (_ context.Context, end func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, nil, outbox.ErrClosed
	case l.cancel != nil:
		return nil, nil, outbox.ErrRunning
	}
	ctx, l.cancel = context.WithCancel(ctx)
	return ctx, func() {
		l.cancel()
		close(l.done)
	}, nil
}

// Begun reports whether Begin has ever succeeded.
func (l *Life) Begun() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cancel != nil
}

// Over reports whether Close was called or the run has ended.
func (l *Life) Over() bool {
	select {
	case <-l.done:
		return true
	default:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// Done returns a channel that is closed at the end of the run.
func (l *Life) Done() <-chan struct{} { return l.done }

// While calls fn while run is running. If run has not begun, While runs it meanwhile. It waits until run reports that
// it is running, and returns the error of ctx or outbox.ErrClosed if that never happens.
func (l *Life) While(
	ctx context.Context, run func(context.Context) error, running <-chan struct{}, fn func() error,
) error {
	if l.Over() {
		return outbox.ErrClosed
	}
	if !l.Begun() {
		own, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = run(own) // a concurrent caller may be faster
		}()
		defer func() { cancel(); <-ended }()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-l.done:
		return outbox.ErrClosed
	case <-running:
		return fn()
	}
}

// Close ends the run and waits for its end. A Life that has not begun can never begin. It may be called several times.
func (l *Life) Close() {
	l.mu.Lock()
	l.closed = true
	cancel := l.cancel
	l.mu.Unlock()
	if cancel != nil {
		cancel()
		<-l.done
	}
}
