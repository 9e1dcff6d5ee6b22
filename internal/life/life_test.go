package life

import (
	"context"
	"errors"
	"testing"

	outbox "github.com/millrace-go/watermill-outbox"
)

func TestLife(t *testing.T) {
	l := New()
	if l.Begun() || l.Over() {
		t.Error("Begun before Begin")
	}
	ctx, end, err := l.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !l.Begun() || l.Over() {
		t.Error("it is over while it runs")
	}
	if _, _, err := l.Begin(t.Context()); !errors.Is(err, outbox.ErrRunning) {
		t.Error(err)
	}
	closed := make(chan struct{}, 2)
	for range 2 {
		go func() { l.Close(); closed <- struct{}{} }()
	}
	<-ctx.Done()
	select {
	case <-closed:
		t.Error("Close does not wait")
	default:
	}
	end()
	<-closed
	<-closed
	l.Close()
	if !l.Over() || !errors.Is(context.Cause(ctx), context.Canceled) {
		t.Error("not over after Close")
	}
	if _, _, err := l.Begin(t.Context()); !errors.Is(err, outbox.ErrClosed) {
		t.Error(err)
	}

	ran := New()
	_, end, _ = ran.Begin(t.Context())
	end()
	if _, _, err := ran.Begin(t.Context()); !ran.Over() || !errors.Is(err, outbox.ErrRunning) {
		t.Error("a second run: ", err)
	}
	never := New()
	never.Close()
	if _, _, err := never.Begin(t.Context()); !never.Over() || !errors.Is(err, outbox.ErrClosed) {
		t.Error(err)
	}
}

func TestWhile(t *testing.T) {
	l, running := New(), make(chan struct{})
	run := func(ctx context.Context) error {
		ctx, end, err := l.Begin(ctx)
		if err != nil {
			return err
		}
		defer end()
		close(running)
		<-ctx.Done()
		return nil
	}
	failed := errors.New("failed")
	err := l.While(t.Context(), run, running, func() error {
		if !l.Begun() || l.Over() {
			t.Error("fn is called while it does not run")
		}
		within := false
		if err := l.While(t.Context(), run, running, func() error {
			within = true
			return nil
		}); err != nil || !within || l.Over() {
			t.Errorf("one more: %v", err)
		}
		return failed
	})
	if !errors.Is(err, failed) || !l.Over() {
		t.Errorf("%v; it is over: %v", err, l.Over())
	}
	if err := l.While(t.Context(), run, running, nil); !errors.Is(err, outbox.ErrClosed) {
		t.Error(err)
	}

	never, over := New(), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	starts := func(ctx context.Context) error { // but never runs
		ctx, end, err := never.Begin(ctx)
		if err == nil {
			cancel()
			<-ctx.Done()
			end()
			close(over)
		}
		return err
	}
	if err := never.While(ctx, starts, make(chan struct{}), nil); !errors.Is(err, context.Canceled) &&
		!errors.Is(err, outbox.ErrClosed) {
		t.Error(err)
	}
	<-over
}
