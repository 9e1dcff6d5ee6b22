package outbox

import (
	"context"
	"errors"
	"fmt"
)

// Runner is what Run runs: a *message.Router, a *forwarder.Forwarder, and whatever else works until its context ends.
type Runner interface {
	Run(ctx context.Context) error
}

// Run runs all runners at once and returns when all have ended. When ctx ends, or one of them returns, the others are
// ended one after another in the order given, each after the one before it has returned. So give the Router first and
// the forwarder after it: what the last handlers committed can still be published.
//
// It returns the errors of the runners, joined, without those that only say that ctx ended. It waits for each runner as
// long as that takes; Routers and forwarders have a CloseTimeout. A nil runner is an error, and nothing is run then.
func Run(ctx context.Context, runners ...Runner) error {
	for i, r := range runners {
		if r == nil {
			return fmt.Errorf("outbox: runner %d of Run is nil", i+1)
		}
	}
	type running struct {
		end  context.CancelFunc
		done chan struct{}
		err  error
	}
	all := make([]*running, len(runners))
	returned := make(chan struct{}, len(runners))
	for i, r := range runners {
		own, end := context.WithCancel(context.WithoutCancel(ctx))
		defer end()
		one := &running{end: end, done: make(chan struct{})}
		all[i] = one
		go func() {
			defer func() { close(one.done); returned <- struct{}{} }()
			one.err = r.Run(own)
		}()
	}
	if len(runners) > 0 {
		select {
		case <-ctx.Done():
		case <-returned:
		}
	}
	var errs []error
	for _, one := range all {
		one.end()
		<-one.done
		if !errors.Is(one.err, context.Canceled) {
			errs = append(errs, one.err)
		}
	}
	return errors.Join(errs...)
}
