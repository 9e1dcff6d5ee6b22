package forwarder

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"
)

type contextKey struct{}

func TestCallContext(t *testing.T) {
	base := context.WithValue(context.Background(), contextKey{}, "value")
	c := &callContext{base: base}
	if c.Err() != nil || context.Cause(c) != nil || c.Value(contextKey{}) != "value" {
		t.Fatalf("%v %v %v at first", c.Err(), context.Cause(c), c.Value(contextKey{}))
	}
	before := runtime.NumGoroutine()
	derived, cancel := context.WithTimeout(c, time.Hour)
	defer cancel()
	if n := runtime.NumGoroutine(); n > before {
		t.Errorf("a derived context has started %d goroutines", n-before)
	}
	select {
	case <-c.Done():
		t.Fatal("over too soon")
	default:
	}
	c.over(ErrPublishTimeout)
	c.over(context.Canceled)
	for _, ctx := range []context.Context{c, derived} {
		<-ctx.Done()
		if ctx.Err() == nil || !errors.Is(context.Cause(ctx), ErrPublishTimeout) || ctx.Value(contextKey{}) != "value" {
			t.Errorf("%v because of %v", ctx.Err(), context.Cause(ctx))
		}
	}
}

// Whoever looks only afterwards sees the same.
func TestCallContextThatNobodyWatched(t *testing.T) {
	for _, cause := range []error{context.Canceled, ErrPublishTimeout} {
		c := &callContext{base: context.Background()}
		c.over(cause)
		want := context.Canceled
		if cause == ErrPublishTimeout {
			want = context.DeadlineExceeded
		}
		if c.Err() != want || context.Cause(c) != cause {
			t.Errorf("%v because of %v", c.Err(), context.Cause(c))
		}
		<-c.Done()
	}
	if n := testing.AllocsPerRun(100, func() {
		(&callContext{base: context.Background()}).over(context.Canceled)
	}); n > 1 {
		t.Errorf("%v allocations", n)
	}
}
