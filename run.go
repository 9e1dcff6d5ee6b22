package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Runner is a part that Run runs: a *message.Router, a *forwarder.Forwarder, or any other that works until its context
// ends. HTTPServer makes a Runner of an http.Server.
type Runner interface {
	Run(ctx context.Context) error
}

// RunConfig configures RunWith.
type RunConfig struct {
	// CloseTimeout is how long all runners may take to end; default 25 s, -1 no limit. Kubernetes waits for 30 s. After
	// two thirds of it the remaining runners are ended concurrently. Raise terminationGracePeriodSeconds with it.
	CloseTimeout time.Duration
}

const defaultCloseTimeout = 25 * time.Second

// ErrCloseTimeout is returned by Run if runners have not ended within RunConfig.CloseTimeout. They still run: end the
// process. Their unfinished work is rolled back, redelivered, or published again.
//
// Cure: also raise terminationGracePeriodSeconds.
var ErrCloseTimeout = errors.New("outbox: runners did not end in time: find what hangs, " +
	"or raise RunConfig.CloseTimeout")

// Run runs all runners and returns when all have ended. When ctx ends or a runner returns, the others are ended one
// after another in the given order: pass the HTTP server first, then the Router, then the forwarder, so that it can
// still publish the last handlers' messages.
//
// The runners have 25 s to end; RunWith sets another deadline. Run returns their errors, joined, without those that
// only report the end of ctx, and ErrCloseTimeout if a runner has not ended. A nil runner is an error, and nothing
// runs.
func Run(ctx context.Context, runners ...Runner) error {
	return RunWith(ctx, RunConfig{}, runners...)
}

// running is a runner that was started.
type running struct {
	runner Runner
	end    context.CancelFunc
	done   chan struct{}
	err    error // valid when done is closed
	early  bool  // it returned before end was called; valid when done is closed
}

// RunWith runs all runners, like Run, with a configuration. It returns an error that names an invalid field.
func RunWith(ctx context.Context, cfg RunConfig, runners ...Runner) error {
	switch {
	case cfg.CloseTimeout == 0:
		cfg.CloseTimeout = defaultCloseTimeout
	case cfg.CloseTimeout < -1:
		return fmt.Errorf("outbox: RunConfig.CloseTimeout is %s: use a positive duration, 0 for %s, or -1 for no limit",
			cfg.CloseTimeout, defaultCloseTimeout)
	}
	for i, r := range runners {
		if r == nil {
			return fmt.Errorf("outbox: runner %d of Run is nil", i+1)
		}
	}
	all := make([]*running, len(runners))
	returned := make(chan struct{}, len(runners))
	for i, r := range runners {
		own, end := context.WithCancel(context.WithoutCancel(ctx))
		defer end()
		if router, ok := r.(*message.Router); ok && len(router.Handlers()) == 0 {
			// It waits for a first handler, even when its context has ended. Close ends it.
			defer context.AfterFunc(own, func() { _ = router.Close() })()
		}
		one := &running{runner: r, end: end, done: make(chan struct{})}
		all[i] = one
		go func() {
			defer func() { close(one.done); returned <- struct{}{} }()
			one.err = r.Run(own)
			one.early = own.Err() == nil
		}()
	}
	if len(runners) > 0 {
		select {
		case <-ctx.Done():
		case <-returned:
		}
	}
	return endAll(all, cfg.CloseTimeout)
}

// endAll ends runners one after another, or all together when time runs short.
func endAll(all []*running, timeout time.Duration) error {
	var short, over <-chan time.Time
	if timeout > 0 {
		atOnce, last := time.NewTimer(timeout*2/3), time.NewTimer(timeout)
		defer atOnce.Stop()
		defer last.Stop()
		short, over = atOnce.C, last.C
	}
	var errs []error
	var hang []string
	for i, one := range all {
		one.end()
	wait:
		for {
			select {
			case <-one.done:
				break wait
			case <-short:
				short = nil
				for _, later := range all[i:] {
					later.end()
				}
			case <-over:
				closed := make(chan time.Time)
				close(closed)
				over = closed // for those after it, too
				break wait
			}
		}
		select {
		case <-one.done:
			if one.early || !onlyCanceled(one.err) {
				errs = append(errs, one.err)
			}
		default:
			hang = append(hang, fmt.Sprintf("%d of %d (%T)", i+1, len(all), one.runner))
		}
	}
	if len(hang) > 0 {
		errs = append(errs, fmt.Errorf("%w: still running after %s: %s", ErrCloseTimeout, timeout, strings.Join(hang, ", ")))
	}
	return errors.Join(errs...)
}

// onlyCanceled reports whether err wraps context.Canceled and no other error.
func onlyCanceled(err error) bool {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return !slices.ContainsFunc(joined.Unwrap(), func(err error) bool { return !onlyCanceled(err) })
	}
	if inner := errors.Unwrap(err); inner != nil {
		return onlyCanceled(inner)
	}
	return errors.Is(err, context.Canceled)
}
