package core

import (
	"context"
	"testing"
	"time"
)

func TestLifetime(t *testing.T) {
	type key struct{}
	parent, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, "v"))
	cancel()
	ctx, stop := Lifetime(parent, -1)
	if ctx.Err() != nil || ctx.Value(key{}) != "v" {
		t.Error("the context is cancelled with the message's, or has lost its values")
	}
	if _, ok := ctx.Deadline(); ok {
		t.Error("an unexpected deadline")
	}
	if stop(); ctx.Err() == nil {
		t.Error("the context outlives the attempt")
	}

	soon := time.Now().Add(time.Minute)
	parent, cancel = context.WithDeadline(context.Background(), soon)
	defer cancel()
	for _, timeout := range []time.Duration{-1, time.Hour} {
		ctx, stop = Lifetime(parent, timeout)
		defer stop()
		if d, _ := ctx.Deadline(); !d.Equal(soon) {
			t.Errorf("timeout %s: deadline %s, want the message's %s", timeout, d, soon)
		}
	}
	ctx, stop = Lifetime(parent, time.Second)
	defer stop()
	if d, _ := ctx.Deadline(); !d.Before(soon) {
		t.Error("the timeout does not shorten the message's deadline")
	}
}
