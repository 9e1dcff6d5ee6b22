package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
)

type runnerFunc func(ctx context.Context) error

func (f runnerFunc) Run(ctx context.Context) error { return f(ctx) }

// ledger records the order in which runners end.
type ledger struct {
	mu   sync.Mutex
	ends []string
}

func (l *ledger) untilEnded(name string, result error) runnerFunc {
	return func(ctx context.Context) error {
		<-ctx.Done()
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ends = append(l.ends, name)
		return result
	}
}

func TestRunEndsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var l ledger
		ended := make(chan error, 1)
		go func() {
			ended <- Run(ctx, l.untilEnded("router", nil), l.untilEnded("forwarder", context.Canceled),
				l.untilEnded("metrics", nil))
		}()
		synctest.Wait()
		if len(l.ends) > 0 {
			t.Fatalf("%v ended before the context", l.ends)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if !slices.Equal(l.ends, []string{"router", "forwarder", "metrics"}) {
			t.Errorf("ended in the order %v", l.ends)
		}
	})
}

func TestRunWaitsForEachBeforeTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		finish := make(chan struct{})
		stillRunning := true
		ended := make(chan error, 1)
		go func() {
			ended <- Run(ctx,
				runnerFunc(func(ctx context.Context) error { <-ctx.Done(); <-finish; return nil }),
				runnerFunc(func(ctx context.Context) error { <-ctx.Done(); stillRunning = false; return nil }))
		}()
		cancel()
		synctest.Wait()
		if !stillRunning {
			t.Error("the second was ended while the first still worked")
		}
		close(finish)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func TestRunEndsAllWhenOneReturns(t *testing.T) {
	broken := errors.New("broken")
	for name, result := range map[string]error{"with an error": broken, "without": nil} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l ledger
				err := Run(t.Context(), l.untilEnded("router", nil), runnerFunc(func(context.Context) error { return result }))
				if !errors.Is(err, result) {
					t.Errorf("returned %v, want %v", err, result)
				}
				if !slices.Equal(l.ends, []string{"router"}) {
					t.Errorf("ended: %v", l.ends)
				}
			})
		})
	}
}

// TestRunHidesOnlyTheEnd: an error that wraps context.Canceled may say more than that Run has ended the runner.
func TestRunHidesOnlyTheEnd(t *testing.T) {
	t.Run("a runner that fails by itself", func(t *testing.T) {
		inner := fmt.Errorf("sync: %w", context.Canceled) // of a context of its own
		err := Run(t.Context(), runnerFunc(func(context.Context) error { return inner }))
		if !errors.Is(err, inner) {
			t.Errorf("returned %v, want %v", err, inner)
		}
	})
	lost := errors.New("lost")
	for name, tt := range map[string]struct {
		result func(ctx context.Context) error
		want   error
	}{
		"the end":                    {func(ctx context.Context) error { return fmt.Errorf("read: %w", ctx.Err()) }, nil},
		"the end and another reason": {func(ctx context.Context) error { return errors.Join(ctx.Err(), lost) }, lost},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			err := Run(ctx, runnerFunc(func(ctx context.Context) error { <-ctx.Done(); return tt.result(ctx) }))
			if !errors.Is(err, tt.want) {
				t.Errorf("returned %v, want %v", err, tt.want)
			}
		})
	}
}

// TestRunEndsARouterWithoutHandlers: such a Router does not end with its context. A Router that got a handler later
// ends too.
func TestRunEndsARouterWithoutHandlers(t *testing.T) {
	for name, late := range map[string]bool{"none": false, "added while it ran": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				var l ledger
				ended := make(chan error, 1)
				go func() { ended <- Run(ctx, router, l.untilEnded("forwarder", nil)) }()
				<-router.Running()
				if late {
					from := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
					router.AddConsumerHandler("late", "orders", from, func(*message.Message) error { return nil })
					if err := router.RunHandlers(ctx); err != nil {
						t.Fatal(err)
					}
				}
				begun := time.Now()
				cancel()
				if err := <-ended; err != nil || time.Since(begun) > 0 {
					t.Errorf("returned %v after %s", err, time.Since(begun))
				}
				synctest.Wait()
			})
		})
	}
}

func TestRunRefusesNil(t *testing.T) {
	var l ledger
	if err := Run(t.Context(), l.untilEnded("router", nil), nil); err == nil {
		t.Error("a nil runner is accepted")
	}
	if len(l.ends) > 0 {
		t.Error("something was run")
	}
	if err := Run(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestRunHasOneDeadline: a hung runner delays later ones for two thirds of the time, and Run for all of it.
func TestRunHasOneDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		finish := make(chan struct{})
		begun := time.Now()
		var ended time.Duration
		result := make(chan error, 1)
		go func() {
			result <- Run(ctx, runnerFunc(func(context.Context) error { <-finish; return nil }),
				runnerFunc(func(ctx context.Context) error { <-ctx.Done(); ended = time.Since(begun); return nil }))
		}()
		cancel()
		err := <-result
		if !errors.Is(err, ErrCloseTimeout) || !strings.Contains(err.Error(), "1 of 2 (outbox.runnerFunc)") {
			t.Errorf("returned %v", err)
		}
		if took := time.Since(begun); took != 25*time.Second || took >= 30*time.Second {
			t.Errorf("Run took %s", took)
		}
		if ended < 16*time.Second || ended > 17*time.Second {
			t.Errorf("the second was ended after %s", ended)
		}
		close(finish)
		synctest.Wait()
	})
}

func TestRunWithAnotherDeadline(t *testing.T) {
	for timeout, want := range map[time.Duration]bool{time.Second: true, -1: false, time.Hour: false} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			err := RunWith(ctx, RunConfig{CloseTimeout: timeout},
				runnerFunc(func(context.Context) error { time.Sleep(time.Minute); return nil }))
			if errors.Is(err, ErrCloseTimeout) != want {
				t.Errorf("%s: %v", timeout, err)
			}
			time.Sleep(time.Minute)
		})
	}
	if err := RunWith(t.Context(), RunConfig{CloseTimeout: -2}); err == nil ||
		!strings.Contains(err.Error(), "RunConfig.CloseTimeout") {
		t.Errorf("returned %v", err)
	}
}
