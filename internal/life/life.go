// Package life is that of what runs once and ends once: forwarders, dispatchers, groups of them, fleets.
package life

import (
	"context"
	"sync"

	outbox "github.com/millrace-go/watermill-outbox"
)

// Life says whether something runs, and ends it. It is safe for concurrent use.
type Life struct {
	done chan struct{} // closed when it has ended

	mu     sync.Mutex
	cancel context.CancelFunc // nil before Begin
	closed bool
}

// New makes one that has not begun.
func New() *Life { return &Life{done: make(chan struct{})} }

// Begin returns the context to run with, which Close ends, and what is to be called at the very end. It returns
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

// Begun says whether Begin has succeeded, be it long ago.
func (l *Life) Begun() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cancel != nil
}

// Over says whether Close was called or what has begun has ended.
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

// Done is closed at the end of what has begun.
func (l *Life) Done() <-chan struct{} { return l.done }

// While calls fn while run is under way: for that time alone, unless it has begun already. It waits until run says that
// it is running, and returns the error of ctx or outbox.ErrClosed if it never is.
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
			_ = run(own) // somebody else may be faster
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

// Close ends what has begun and waits for its end. What has not can never begin. It may be called several times.
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
